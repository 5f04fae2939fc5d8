"""All damages that `bert4rec check` must refuse: to the content, sealed again, and to the files."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.dataset.check.folders import Folder, Row, load, prepared

Damage = Callable[[Folder], object]
FileDamage = Callable[[Path], object]
Cases = dict[str, tuple[Damage, str]]  # name → the damage, and the file, row and column that the error must name
FileCases = dict[str, tuple[FileDamage, str]]

N_USERS, N_ITEMS = 24, 60
SHORT, LONG, CHECKED = 1, 2, 3  # users with 2, 19 and 18 interactions; of them only CHECKED is validated
ONE, LAST = 4, N_USERS - 1  # users with one interaction, and with 5
WIDE_ITEMS = {"histories.items": pa.list_(pa.int64())}
BOTH = ("popular_negatives", "uniform_negatives")


def sound(place: Path, split: str) -> Folder:
    """Return a folder as the preparation writes it; its histories hold every item, at increasing times."""
    lengths = [20, 2, 19, 18, 1, *(1 + user * 7 % 20 for user in range(N_USERS - 6)), 5]
    rng = random.Random(1)
    items = iter([*rng.sample(range(N_ITEMS), N_ITEMS), *rng.choices(range(N_ITEMS), k=sum(lengths))])
    rows = [
        (f"u{user:02}", 7 * next(items), 10 * at + rng.randint(0, 9), rng.randint(1, 5) / 2)
        for user, length in enumerate(lengths)
        for at in range(length)
    ]
    chosen = {"split": split, "split_at": sorted(at for _, _, at, _ in rows)[int(len(rows) * 0.7)]}
    for seed in range(18, 100):  # the first of these is right, as validated users are drawn now
        path = prepared(place, rows, ["at", "stars"], **chosen, n_eval_negatives=3, validation_users=8, seed=seed)
        assert path is not None
        folder = load(path)
        validated = {row["user"] for row in folder.histories if row["validation"] >= 0}
        if split == "none" or (CHECKED in validated and not validated & {SHORT, LONG}):
            return folder
    raise AssertionError("no seed makes it")


# Verbs: each makes a damage.


def put(name: str, user: int, column: str, place: int, value: Any) -> Damage:
    """Another value in a list."""

    def damage(folder: Folder) -> None:
        folder.row(name, user)[column][place] = value(folder, user) if callable(value) else value

    return damage


def change(name: str, user: int, /, **values: Any) -> Damage:
    """Other values in a row."""
    return lambda folder: folder.row(name, user).update(values)


def table(name: str, place: int, **values: Any) -> Damage:
    """Other values in a row of a table; numbers by which `count` and `train_count` grow."""

    def damage(folder: Folder) -> None:
        row = folder.tables[name][place]
        row.update({column: row[column] + value if type(value) is int else value for column, value in values.items()})

    return damage


def every(name: str, change: Callable[[Row], object]) -> Damage:
    """All rows of a folder or table changed."""
    return lambda folder: [change(row) for row in folder.rows(name)]


def without(name: str, user: int) -> Damage:
    return lambda folder: folder.rows(name).remove(folder.row(name, user))


def more(name: str, **row: Any) -> Damage:
    """One more row, at the end, like the last one."""
    return lambda folder: folder.rows(name).append(folder.rows(name)[-1] | row)


def metadata(**values: Any) -> Damage:
    """Other values in the metadata; numbers by which counts grow."""

    def damage(folder: Folder) -> None:
        for name, value in values.items():
            folder.metadata[name] = folder.metadata[name] + value if type(value) is int else value

    return damage


def setting(**values: Any) -> Damage:
    return lambda folder: folder.metadata["preprocessing"].update(values)


def ranks_of_another_user(folder: Folder) -> None:
    tested = [{"user": row["user"]} for row in folder.histories if row["test"] >= 0]
    folder.tables["oracle"] = [{"user": SHORT}, *tested[1:]]


def item_at(place: int) -> Callable[[Folder, int], int]:
    return lambda folder, user: folder.row("histories", user)["items"][place]


def drawn_first(folder: Folder, user: int) -> int:
    return folder.row("negatives", user)[BOTH[0]][0]


def an_original_twice(folder: Folder) -> None:
    folder.tables["items"][50]["original"] = folder.tables["items"][42]["original"]


def a_cold_item(folder: Folder) -> None:
    more("items", item=60, original=1, count=0, train_count=0)(folder)
    metadata(items=1)(folder)
    folder.metadata["segments"]["items"].append([1, 0])


def a_user_more(folder: Folder) -> None:
    metadata(users=1)(folder)
    folder.metadata["segments"]["users"] = [N_USERS + 1]


def numbers_swapped(folder: Folder) -> None:
    first, second = folder.tables["items"][:2]
    first.update(second | {"original": first["original"]})


def ids_swapped(folder: Folder) -> None:
    first, second = folder.tables["users"][8:10]
    first["original"], second["original"] = second["original"], first["original"]


def text_first(folder: Folder) -> None:
    """Ids of an older segment are text, those of a newer one whole numbers."""
    sizes = folder.metadata["segments"]["users"] = [N_USERS - 3, 3]
    for number, row in enumerate(folder.tables["users"][sizes[0] :]):
        row["original"] = number


def an_id_in_two_segments(folder: Folder) -> None:
    folder.metadata["segments"]["users"] = [N_USERS - 3, 3]
    folder.tables["users"][-3]["original"] = folder.tables["users"][7]["original"]


def not_validated(folder: Folder) -> None:
    """A user fewer is validated than the settings say, and everything else is as it must be then."""
    row = folder.row("histories", CHECKED)
    target = row["items"][row["validation"]]
    next(item for item in folder.tables["items"] if item["item"] == target)["train_count"] += 1
    row.update(validation=-1, n_train=row["n_train"] + 1)
    folder.metadata["train_positions"] += 1
    folder.metadata["validation_users"] -= 1


ARROW, PART = "data-00000-of-00002.arrow", "items/part-0000000000.parquet"
HISTORY, NEGATIVE, ITEM = "histories: row", "negatives: row 1 (user 2): ", "items: row"


def at(user: int, what: str) -> str:
    return f"{HISTORY} {user} (user {user}): {what}"


LEAVE_ONE_OUT: Cases = {
    # Metadata.
    "format_version": (metadata(format_version=-1), "metadata.json: format_version ="),
    "key missing": (lambda f: f.metadata.pop("train_positions"), "metadata.json: train_positions ="),
    "test_users, neither number nor all": (setting(test_users="some"), "metadata.json: test_users ="),
    "too many users for ids": (metadata(users=2**31), "metadata.json: users ="),
    # Columns and nulls.
    "column missing": (every("histories", lambda row: row.pop("times")), f"histories/{ARROW}"),
    "items of another type": (lambda f: f.types.update(WIDE_ITEMS), f"histories/{ARROW}"),
    "counts are text": (every("items", lambda row: row.update(count="1")), PART),
    "item is null": (put("histories", 9, "items", 0, None), f"{HISTORY} 9: items"),
    "original is null": (table("items", 3, original=None), f"{ITEM} 3: original"),
    # Which rows there are.
    "last history missing": (without("histories", LAST), f"{HISTORY} 23: must be user 23"),
    "history too many": (more("histories", user=24), f"{HISTORY} 24: must be the end"),
    "negatives missing": (without("negatives", LONG), "negatives: row 1 (user 3):"),
    "ranks of another user": (ranks_of_another_user, "oracle.parquet: row 0 (user 1):"),
    "users": (a_user_more, "users: row 24: must be user 24"),
    "segments of fewer users": (metadata(users=1), "metadata.json: segments ="),
    "numbers of items": (numbers_swapped, f"{ITEM} 0 (item"),
    "order of ids": (ids_swapped, "users: row 9: original 'u08' must come after 'u09'"),
    "text before numbers": (text_first, "users: has text ids before whole numbers"),
    "original of two segments": (an_id_in_two_segments, "users: row 21: original 'u07' is also that of row 7"),
    "original of two items": (an_original_twice, f"{ITEM} 50: original"),
    # Lists of a history.
    "lists of unequal length": (change("histories", 0, times=[1]), at(0, "times")),
    "empty history": (change("histories", ONE, items=[], times=[], ratings=[]), at(ONE, "items")),
    "item too large": (put("histories", 0, "items", -1, 60), at(0, "items[19] is 60")),
    "times decrease": (put("histories", LONG, "times", 3, -1), at(LONG, "times[3] is -1")),
    "rating without end": (put("histories", 0, "ratings", 2, float("inf")), at(0, "ratings[2]")),
    # Targets.
    "validation target in train": (change("histories", CHECKED, n_train=17), at(CHECKED, "n_train is 17, must be 16")),
    "no test": (change("histories", LONG, test=-1, n_train=19), at(LONG, "test is -1, must be 18")),
    "validation earlier": (change("histories", CHECKED, validation=15), at(CHECKED, "validation is 15, must be 16")),
    "user not validated": (not_validated, "histories: 7 users"),
    "test_users, the setting": (setting(test_users=3), "users have a test target, must be 3 with test_users = 3"),
    "validation_users, the setting": (setting(validation_users="all"), "histories: 8 users"),
    # Negatives.
    "negatives, though too few items are unseen": (setting(n_eval_negatives=59), "must have 0"),
    "no negatives": (change("negatives", LONG, popular_negatives=[], uniform_negatives=[]), f"{NEGATIVE}popular"),
    "negative twice": (put("negatives", LONG, BOTH[0], 2, drawn_first), f"{NEGATIVE}popular_negatives[2]"),
    "negative is the target": (put("negatives", LONG, BOTH[0], 1, item_at(-1)), f"{NEGATIVE}popular_negatives[1]"),
    # Counts.
    "count of a user": (table("users", SHORT, count=1), at(SHORT, "items")),
    "user without interactions": (table("users", ONE, count=-1), "users: row 4 (user 4): count"),
    "count of an item": (table("items", 5, count=1), f"{ITEM} 5 (item"),
    "item without interactions": (a_cold_item, f"{ITEM} 60 (item 60): count"),
    "test_users": (metadata(test_users=1), "metadata.json: test_users ="),
    "repeated_targets": (lambda f: f.metadata["repeated_targets"]["test"].update(users=99), "json: repeated_targets ="),
    "left_out": (lambda f: f.metadata["left_out"]["validation"].update(of=9), "metadata.json: left_out ="),
}
BY_TIME: Cases = {
    "no instant": (lambda f: f.metadata.pop("split_instant"), "metadata.json: split_instant ="),
    "no times": (metadata(has_times=False), "metadata.json: has_times ="),
    "earlier instant": (metadata(split_instant=-10), at(0, "test")),
    "test target in train": (change("histories", LONG, n_train=19), at(LONG, "n_train")),
    "no test": (change("histories", LONG, test=-1, n_train=19), at(LONG, "test")),
    "negative taken after the test": (put("negatives", LONG, BOTH[0], 0, item_at(-1)), "popular_negatives[0]"),
}
WITHOUT_TEST: Cases = {
    "trained on too little": (change("histories", LONG, n_train=18), at(LONG, "n_train")),
    "negatives": (lambda f: f.negatives.append({"user": 2, BOTH[0]: [2], BOTH[1]: [2]}), "row 0: must be the end"),
}  # fmt: skip


# Damages to the files.

FIRST, COUNTS = f"histories/{ARROW}", "train_counts.npy"


def flip(path: Path, place: int, bits: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= bits
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-400])


def point_outside(path: Path) -> None:
    """Let the second list of three elements end far behind the file."""
    before, after = (b"".join(n.to_bytes(4, "little") for n in (0, 3, end)) for end in (6, 2**30))
    assert before in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(before, after))


def edit(name: str, change: Callable[[dict], object]) -> FileDamage:
    """Another content of a file of JSON."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return damage


def of_files(change: Callable[[list], object]) -> FileDamage:
    """Another list of the files of the histories."""
    return edit("histories/state.json", lambda state: change(state["_data_files"]))


FILES: FileCases = {
    "no folder": (shutil.rmtree, "dataset"),
    "a file": (lambda p: (shutil.rmtree(p), p.write_text("x")), "dataset"),
    "no JSON": (lambda p: (p / "metadata.json").write_text("{"), "metadata.json"),
    "no table": (lambda p: (p / "metadata.json").write_text("[]"), "metadata.json: format_version ="),
    "fingerprint": (edit("metadata.json", lambda m: m.update(fingerprint="0")), "metadata.json"),
    "no checksum": (edit("metadata.json", lambda m: m["files"][FIRST].pop("sha256")), f"files: {FIRST}: sha256 ="),
    "truncated": (lambda p: truncate(p / FIRST), f"{FIRST}: has"),
    "table missing": (lambda p: (p / PART).unlink(), f"{PART}: is missing"),
    "another file": (lambda p: ((p / "old").mkdir(), (p / "old" / ".x").write_text("x")), "old/.x"),
}
SEALED: FileCases = {  # with the checksums of the damaged files
    "a part of another name": (lambda p: (p / PART).rename(p / "items/part-0000000007.parquet"), "is missing"),
    "no segments": (edit("metadata.json", lambda m: m.pop("segments")), "metadata.json: segments ="),
    "a part more": (lambda p: shutil.copy(p / PART, p / "items/part-0000000099.parquet"), "row 60: must be the end"),
    "other counts": (lambda p: flip(p / COUNTS, 140), f"{COUNTS}: differs from train_count"),
    "other type of counts": (lambda p: np.save(p / COUNTS, np.load(p / COUNTS) + 0.0), COUNTS),
    "list of files broken": (lambda p: (p / "negatives" / "state.json").write_text("{}"), "negatives/state.json"),
    "file missing": (lambda p: (p / FIRST).unlink(), "histories/state.json"),
    "file not listed": (lambda p: shutil.copy(p / FIRST, p / "histories" / "data-2.arrow"), "histories/state.json"),
    "files swapped": (of_files(lambda files: files.reverse()), f"{HISTORY} 0 (user 12):"),
    "batches of other sizes": (of_files(lambda files: files[0]["batches"].pop()), "state.json: lists other batches"),
    "truncated, sealed": (lambda p: truncate(p / FIRST), FIRST),
    "list outside the file": (lambda p: point_outside(p / f"negatives/{ARROW}"), f"negatives/{ARROW}: cannot be read"),
}  # fmt: skip
