"""All damages that `bert4rec check` must refuse: to the content, sealed again, and to the files."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.dataset.check.folders import Event, Folder, Row, make

Damage = Callable[[Folder], object]
FileDamage = Callable[[Path], object]
Cases = dict[str, tuple[Damage, str]]  # name → the damage, and the file, row and column that the error must name
FileCases = dict[str, tuple[FileDamage, str]]

N_USERS, N_ITEMS = 24, 60
SHORT, LONG, CHECKED = 1, 2, 3  # users with 2, 19 and 18 interactions; of them only CHECKED is validated
ONE, LAST = 4, N_USERS - 1  # users with one interaction, and with 5
BOTH = ("popular_negatives", "uniform_negatives")


def sound(split: str) -> Folder:
    """Return a folder as it must be; together its histories hold every item, at increasing times."""
    lengths = [20, 2, 19, 18, 1, *(1 + user * 7 % 20 for user in range(N_USERS - 6)), 5]
    for seed in range(1000):
        rng = random.Random(seed)
        items = iter([*rng.sample(range(N_ITEMS), N_ITEMS), *rng.choices(range(N_ITEMS), k=sum(lengths))])
        histories = [
            [Event(next(items), 10 * place + rng.randint(0, 9), rng.randint(1, 5) / 2) for place in range(length)]
            for length in lengths
        ]
        folder = make(histories, split=split, n_items=N_ITEMS, wanted=8, seed=seed)
        validated = {row["user"] for row in folder.histories if row["validation"] >= 0}
        if split == "none" or (CHECKED in validated and not validated & {SHORT, LONG}):
            return folder
    raise AssertionError("no seed makes it")


# Verbs: each makes a damage. A value may be a function of the folder and the user.


def put(name: str, user: int, column: str, place: int, value: Any) -> Damage:
    """Another value in a list."""

    def damage(folder: Folder) -> None:
        folder.row(name, user)[column][place] = value(folder, user) if callable(value) else value

    return damage


def change(name: str, user: int, /, **values: Any) -> Damage:
    """Other values in a row."""

    def damage(folder: Folder) -> None:
        new = {column: value(folder, user) if callable(value) else value for column, value in values.items()}
        folder.row(name, user).update(new)

    return damage


def shift(user: int, **steps: int) -> Damage:
    """Targets, or the end of what is trained on, some places later."""
    return lambda folder: folder.row("histories", user).update(
        {name: folder.row("histories", user)[name] + step for name, step in steps.items()}
    )


def table(name: str, place: int, **values: Any) -> Damage:
    """Other values in a row of a table; numbers by which `count` and `train_count` grow."""

    def damage(folder: Folder) -> None:
        row = folder.tables[name][place]
        for column, value in values.items():
            row[column] = row[column] + value if column.endswith("count") and value is not None else value

    return damage


def every(name: str, change: Callable[[Row], object]) -> Damage:
    """All rows of a folder or table changed."""
    return lambda folder: [change(row) for row in folder.rows(name)]


def without(name: str, user: int) -> Damage:
    return lambda folder: folder.rows(name).remove(folder.row(name, user))


def more(name: str, **row: Any) -> Damage:
    """One more row, at the end, like the last one."""
    return lambda folder: folder.rows(name).append(folder.rows(name)[-1] | row)


def swap(name: str, a: int, b: int) -> Damage:
    """Two rows in each other's place."""

    def damage(folder: Folder) -> None:
        rows = folder.rows(name)
        rows[a], rows[b] = rows[b], rows[a]

    return damage


def metadata(**values: Any) -> Damage:
    """Other values in the metadata; numbers by which counts grow."""

    def damage(folder: Folder) -> None:
        for name, value in values.items():
            folder.metadata[name] = folder.metadata[name] + value if type(value) is int else value

    return damage


def setting(**values: Any) -> Damage:
    return lambda folder: folder.metadata["preprocessing"].update(values)


def typed(column: str, kind: pa.DataType) -> Damage:
    return lambda folder: folder.types.update({column: kind})


def oracle(choose: Callable[[list[Row]], list[Row]]) -> Damage:
    """Ranks for other users than those with a test target."""
    return lambda folder: folder.tables.update(
        oracle=choose([{"user": row["user"]} for row in folder.histories if row["test"] >= 0])
    )


def all_of(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def item_at(place: int) -> Callable[[Folder, int], int]:
    return lambda folder, user: folder.row("histories", user)["items"][place]


def target(split: str) -> Callable[[Folder, int], int]:
    return lambda folder, user: item_at(folder.row("histories", user)[split])(folder, user)


def unseen(folder: Folder, user: int) -> int:
    """Return an item that the user has not taken and that was not drawn."""
    negatives = [item for row in folder.negatives if row["user"] == user for name in BOTH for item in row[name]]
    return next(item for item in range(N_ITEMS) if item not in {*folder.row("histories", user)["items"], *negatives})


def not_validated(folder: Folder) -> None:
    """A user fewer is validated than the settings say, and everything else is as it must be then."""
    row = folder.row("histories", CHECKED)
    folder.tables["items"][row["items"][row["validation"]]]["train_count"] += 1
    row.update(validation=-1, n_train=row["n_train"] + 1)
    folder.metadata["train_positions"] += 1
    folder.metadata["validation_users"] -= 1


LEAVE_ONE_OUT: Cases = {
    # Metadata.
    "format_version": (metadata(format_version=-1), "metadata.json: format_version ="),
    "key missing": (lambda f: f.metadata.pop("train_positions"), "metadata.json: train_positions ="),
    "neither true nor false": (metadata(extends=None), "metadata.json: extends ="),
    "setting missing": (lambda f: f.metadata["preprocessing"].pop("split"), "metadata.json: split ="),
    "test_users, neither number nor all": (setting(test_users="some"), "metadata.json: test_users ="),
    "validation_users, neither number nor all": (setting(validation_users="some"), "metadata.json: validation_users ="),
    "no negatives wanted": (setting(n_eval_negatives=0), "metadata.json: n_eval_negatives ="),
    "too many users for ids": (metadata(users=2**31), "metadata.json: users ="),
    "unknown split": (setting(split="odd"), "metadata.json: split ="),
    # Columns and nulls.
    "column missing": (every("histories", lambda row: row.pop("times")), "histories/data-00000-of-00002.arrow"),
    "column too many": (
        all_of(every("negatives", lambda row: row.update(x=1)), typed("negatives.x", pa.int32())),
        "negatives/data-00000-of-00002.arrow",
    ),
    "items of another type": (typed("histories.items", pa.list_(pa.int64())), "histories/data-00000-of-00002.arrow"),
    "no originals": (every("users", lambda row: row.pop("original")), "users.parquet"),
    "counts are text": (every("items", lambda row: row.update(count="1")), "items.parquet"),
    "item is null": (put("histories", 9, "items", 0, None), "histories: row 9: items"),
    "list is null": (change("histories", 0, times=None), "histories: row 0: times"),
    "count is null": (table("users", 3, count=None), "users.parquet: row 3: count"),
    "original is null": (table("items", 3, original=None), "items.parquet: row 3: original"),
    # Which rows there are.
    "histories swapped": (swap("histories", 3, 4), "histories: row 3 (user 4):"),
    "history missing": (without("histories", LONG), "histories: row 2 (user 3):"),
    "last history missing": (without("histories", LAST), "histories: row 23: must be user 23"),
    "history too many": (more("histories", user=24), "histories: row 24: must be the end"),
    "negative user": (change("histories", 0, user=-1), "histories: row 0 (user -1):"),
    "negatives missing": (without("negatives", LONG), "negatives: row 1 (user 3):"),
    "negatives of a user without a target": (change("negatives", LONG, user=SHORT), "negatives: row 1 (user 1):"),
    "no such user": (more("negatives", user=24), "must be the end"),
    "ranks of another user": (oracle(lambda rows: [{"user": SHORT}, *rows[1:]]), "oracle.parquet: row 0 (user 1):"),
    "ranks missing": (oracle(lambda rows: rows[:5]), "oracle.parquet: row 5: must be user"),
    "user missing": (lambda f: f.tables["users"].pop(9), "users.parquet: row 9 (user 10):"),
    "item missing": (lambda f: f.tables["items"].pop(), "items.parquet: row 59: must be item 59"),
    "item too many": (more("items", item=60), "items.parquet: row 60: must be the end"),
    "users": (metadata(users=1), "users.parquet: row 24: must be user 24"),
    "fewer users": (metadata(users=-1), "users.parquet: row 23: must be the end"),
    "items": (metadata(items=1), "items.parquet: row 60: must be item 60"),
    "original of two items": (table("items", 50, original=42), "items.parquet: row 50: original"),
    "original of two users": (table("users", 7, original="u3"), "users.parquet: row 7: original"),
    # Lists of a history.
    "lists of unequal length": (change("histories", 0, times=[1]), "histories: row 0 (user 0): times"),
    "empty history": (
        change("histories", ONE, items=[], times=[], ratings=[], n_train=0),
        "histories: row 4 (user 4): items",
    ),
    "item is none": (put("histories", LONG, "items", 5, -1), "histories: row 2 (user 2): items[5] is -1"),
    "item too large": (put("histories", 0, "items", -1, 60), "histories: row 0 (user 0): items[19] is 60"),
    "times decrease": (put("histories", LONG, "times", 3, -1), "histories: row 2 (user 2): times[3] is -1"),
    "rating without end": (put("histories", 0, "ratings", 2, float("inf")), "histories: row 0 (user 0): ratings[2]"),
    # Targets.
    "validation target in train": (shift(CHECKED, n_train=1), "histories: row 3 (user 3): n_train is 17, must be 16"),
    "nothing trained on": (change("histories", ONE, n_train=0), "histories: row 4 (user 4): n_train"),
    "no test": (change("histories", LONG, test=-1, n_train=19), "histories: row 2 (user 2): test is -1, must be 18"),
    "too short for a test": (change("histories", SHORT, test=1, n_train=1), "histories: row 1 (user 1): test"),
    "too short for validation": (
        change("histories", SHORT, validation=1, n_train=1),
        "histories: row 1 (user 1): validation",
    ),
    "validation earlier": (
        shift(CHECKED, validation=-1, n_train=-1),
        "histories: row 3 (user 3): validation is 15, must be 16",
    ),
    "validation is the test": (shift(CHECKED, validation=1), "histories: row 3 (user 3): validation"),
    "offset below -1": (change("histories", LONG, validation=-2), "histories: row 2 (user 2): validation"),
    "user not validated": (not_validated, "histories: 7 users"),
    "test_users, the setting": (setting(test_users=3), "users have a test target, must be 3 with test_users = 3"),
    "validation_users, the setting": (setting(validation_users="all"), "histories: 8 users"),
    # Negatives.
    "negatives of one kind only": (
        change("negatives", LONG, popular_negatives=[]),
        "row 1 (user 2): popular_negatives",
    ),
    "too few negatives": (change("negatives", LONG, **{name: [2, 3] for name in BOTH}), "row 1 (user 2): popular"),
    "too many negatives": (change("negatives", CHECKED, uniform_negatives=[2, 3, 4, 5]), "row 2 (user 3): uniform"),
    "n_eval_negatives": (setting(n_eval_negatives=2), "negatives: row 0 (user 0): popular_negatives"),
    "negatives, though too few items are unseen": (setting(n_eval_negatives=59), "must have 0"),
    "no negatives, though there are unseen items": (
        change("negatives", LONG, popular_negatives=[], uniform_negatives=[]),
        "negatives: row 1 (user 2): popular_negatives has 0",
    ),
    "negative twice": (
        put("negatives", LONG, BOTH[0], 2, lambda f, user: f.row("negatives", user)[BOTH[0]][0]),
        "negatives: row 1 (user 2): popular_negatives[2]",
    ),
    "negative out of range": (put("negatives", LONG, BOTH[1], 1, 60), "row 1 (user 2): uniform_negatives[1] is 60"),
    "negative is none": (put("negatives", LONG, BOTH[0], 0, -1), "row 1 (user 2): popular_negatives[0] is -1"),
    "negative is the target": (
        put("negatives", LONG, BOTH[0], 1, target("test")),
        "row 1 (user 2): popular_negatives[1]",
    ),
    # Counts.
    "count of a user": (table("users", SHORT, count=1), "histories: row 1 (user 1): items"),
    "user without interactions": (table("users", ONE, count=-1), "users.parquet: row 4 (user 4): count"),
    "item trained on": (put("histories", SHORT, "items", 0, unseen), "items.parquet: row"),
    "test target changed": (put("histories", LONG, "items", -1, unseen), "items.parquet: row"),
    "count of an item": (table("items", 5, count=1), "items.parquet: row 5 (item 5): count"),
    "train_count of an item": (table("items", 5, train_count=-1), "items.parquet: row 5 (item 5): train_count"),
    "item without interactions": (
        all_of(more("items", item=60, original=0, count=0, train_count=0), metadata(items=1)),
        "items.parquet: row 60 (item 60): count",
    ),
    "rows": (metadata(rows=1), "metadata.json: rows ="),
    "train_positions": (metadata(train_positions=1), "metadata.json: train_positions ="),
    "validation_users": (metadata(validation_users=1), "metadata.json: validation_users ="),
    "test_users": (metadata(test_users=1), "metadata.json: test_users ="),
    "repeated_targets": (
        lambda f: f.metadata["repeated_targets"]["test"].update(users=99),
        "metadata.json: repeated_targets =",
    ),
    "left_out": (lambda f: f.metadata["left_out"]["validation"].update(of=9), "metadata.json: left_out ="),
    "left_out is no table": (metadata(left_out=[]), "metadata.json: left_out ="),
}


BY_TIME: Cases = {
    "no instant": (lambda f: f.metadata.pop("split_instant"), "metadata.json: split_instant ="),
    "no times": (metadata(has_times=False), "metadata.json: has_times ="),
    "earlier instant": (metadata(split_instant=-10), "histories: row 0 (user 0): test"),
    "time beyond the instant": (
        put("histories", LONG, "times", 0, lambda f, _: f.metadata["split_instant"]),
        "histories: row 2 (user 2): times[1]",
    ),
    "test target in train": (shift(LONG, n_train=1), "histories: row 2 (user 2): n_train"),
    "test later": (shift(LONG, test=1, n_train=1), "histories: row 2 (user 2): test"),
    "no test": (lambda f: f.row("histories", LONG).update(test=-1, n_train=19), "histories: row 2 (user 2): test"),
    "too little before the instant": (
        change("histories", ONE, validation=0, n_train=0),
        "histories: row 4 (user 4): validation",
    ),
    "user not validated": (not_validated, "histories: 7 users"),
    "negatives missing": (without("negatives", LONG), "negatives: row 1 (user 3):"),
    "negative taken after the test": (put("negatives", LONG, BOTH[0], 0, item_at(-1)), "popular_negatives[0]"),
    "count of an item": (table("items", 5, count=1), "items.parquet: row 5 (item 5): count"),
}


WITHOUT_TEST: Cases = {
    "a test": (change("histories", LONG, test=18, n_train=18), "histories: row 2 (user 2): test"),
    "a validation": (change("histories", LONG, validation=18, n_train=18), "histories: row 2 (user 2): validation"),
    "trained on too little": (shift(LONG, n_train=-1), "histories: row 2 (user 2): n_train"),
    "negatives": (
        lambda f: f.negatives.append({"user": LONG, BOTH[0]: [2, 3, 4], BOTH[1]: [2, 3, 4]}),
        "negatives: row 0: must be the end",
    ),
}


# Damages to the files.

FIRST = "histories/data-00000-of-00002.arrow"


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


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


FILES: FileCases = {
    "no folder": (shutil.rmtree, "dataset"),
    "a file": (lambda p: (shutil.rmtree(p), p.write_text("x")), "dataset"),
    "no JSON": (lambda p: (p / "metadata.json").write_text("{"), "metadata.json"),
    "no table": (lambda p: (p / "metadata.json").write_text("[]"), "metadata.json: format_version ="),
    "fingerprint": (lambda p: edit(p / "metadata.json", lambda m: m.update(fingerprint="0")), "metadata.json"),
    "checksum in the metadata": (
        lambda p: edit(p / "metadata.json", lambda m: m["files"]["users.parquet"].update(sha256="0")),
        "metadata.json",
    ),
    "entry without a checksum": (
        lambda p: edit(p / "metadata.json", lambda m: m["files"]["users.parquet"].pop("sha256")),
        "metadata.json: files: users.parquet: sha256 =",
    ),
    "a byte of a folder": (lambda p: flip(p / FIRST, 900), FIRST),
    "a byte more": (lambda p: (p / "README.md").write_text("Another text"), "README.md"),
    "truncated": (lambda p: truncate(p / FIRST), f"{FIRST}: has"),
    "table missing": (lambda p: (p / "items.parquet").unlink(), "items.parquet: is missing"),
    "folder missing": (lambda p: shutil.rmtree(p / "negatives"), "negatives/data-00000-of-00002.arrow: is missing"),
    "another file": (lambda p: (p / "negatives" / "cache.arrow").write_text("x"), "negatives/cache.arrow"),
    "another folder": (lambda p: ((p / "old").mkdir(), (p / "old" / ".x").write_text("x")), "old/.x"),
}


SEALED: FileCases = {  # with the checksums of the damaged files
    "other counts": (lambda p: flip(p / "train_counts.npy", 140), "train_counts.npy: differs from train_count"),
    "other type of counts": (
        lambda p: np.save(p / "train_counts.npy", np.load(p / "train_counts.npy").astype(np.int64)),
        "train_counts.npy: differs",
    ),
    "table missing": (lambda p: (p / "items.parquet").unlink(), "items.parquet: is missing"),
    "list of files missing": (lambda p: (p / "negatives" / "state.json").unlink(), "negatives/state.json: is missing"),
    "list of files broken": (lambda p: (p / "negatives" / "state.json").write_text("{}"), "negatives/state.json"),
    "file missing": (lambda p: (p / FIRST).unlink(), "histories/state.json"),
    "file not listed": (lambda p: shutil.copy(p / FIRST, p / "histories" / "data-2.arrow"), "histories/state.json"),
    "files swapped": (
        lambda p: edit(p / "histories" / "state.json", lambda state: state["_data_files"].reverse()),
        "histories: row 0 (user 12):",
    ),
    "batches of other sizes": (
        lambda p: edit(p / "histories" / "state.json", lambda state: state["_data_files"][0]["batches"].pop()),
        "histories/state.json: lists other batches",
    ),
    "another first user": (
        lambda p: edit(p / "negatives" / "state.json", lambda state: state["_data_files"][1]["batches"][0].sort()),
        "negatives/state.json: lists other batches",
    ),
    "truncated": (lambda p: truncate(p / FIRST), FIRST),
    "list outside the file": (
        lambda p: point_outside(p / "negatives" / "data-00000-of-00002.arrow"),
        "negatives/data-00000-of-00002.arrow: cannot be read",
    ),
    "no Parquet": (lambda p: (p / "users.parquet").write_text("x"), "users.parquet"),
    "no Arrow": (lambda p: (p / FIRST).write_text("x" * 99), FIRST),
}
