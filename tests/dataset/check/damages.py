"""A sound folder, and all damages that `bert4rec check` must refuse."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.dataset.check.folders import LISTS, Event, Folder, Maker, Row, cut, load, seal

Damage = Callable[[Folder], object]
FileDamage = Callable[[Path], object]
Cases = dict[str, tuple[Damage, str]]  # name → the damage, and the file, row and column that the error must name
FileCases = dict[str, tuple[FileDamage, str]]
Sound = dict[str, Path]  # a sound folder of each kind of split

N_USERS, N_ITEMS = 24, 60
FIRST = "train/data-00000-of-00002.arrow"
SHORT, LONG, CHECKED = 1, 2, 3  # users with 2, 19 and 18 interactions; of them only CHECKED is validated
ONE = 4  # a user with one interaction


def histories(seed: int) -> list[list[Event]]:
    """Histories of 1 to 20 interactions at increasing times; together they hold every item."""
    rng = random.Random(seed)
    lengths = [20, 2, 19, 18, 1, *(rng.randint(1, 20) for _ in range(N_USERS - 5))]
    every = rng.sample(range(2, 2 + N_ITEMS), N_ITEMS)
    items = iter([*every, *(rng.randint(2, 1 + N_ITEMS) for _ in range(sum(lengths)))])
    return [
        [Event(next(items), 10 * place + rng.randint(0, 9), rng.randint(1, 5) / 2) for place in range(length)]
        for length in lengths
    ]


def made(split: str = "leave_one_out", **settings: Any) -> Folder:
    """A sound folder."""
    for seed in range(1000):
        folder = Maker(histories(seed), split=split, n_items=N_ITEMS, wanted=8, seed=seed, **settings).make()
        validated = {row["user"] for row in folder.splits["validation"]}
        if split == "none" or (CHECKED in validated and LONG not in validated):
            return folder
    raise AssertionError("no seed makes it")


def cases(**splits: Cases) -> list[Any]:
    """The parameters `split`, `damage`, `words` of a test: the damages to the sound folder of each kind of split."""
    return [
        pytest.param(split, *case, id=f"{split}: {name}")
        for split, table in splits.items()
        for name, case in table.items()
    ]


def damaged(sound: Path, damage: Damage, place: Path) -> Path:
    """A copy of the folder `sound` with another content, and with the checksums of that."""
    folder = load(sound)
    damage(folder)
    return folder.save(place)


def damaged_files(sound: Path, damage: FileDamage, place: Path, *, sealed: bool) -> Path:
    """A copy of the folder `sound` with other files; where `sealed`, with the checksums of those."""
    shutil.copytree(sound, place)
    damage(place)
    if sealed:
        seal(place)
    return place


# Verbs: each makes a damage.


def put(split: str, user: int, name: str, place: int, value: Any, /, *, window: int = 0) -> Damage:
    """Another value in a list; `value` may be a function of the folder and the row."""

    def damage(folder: Folder) -> None:
        row = folder.rows(split, user)[window]
        row[name][place] = value(folder, row) if callable(value) else value

    return damage


def change(split: str, user: int, /, *, window: int = 0, **values: Any) -> Damage:
    """Other values in a row; each may be a function of the folder and the row."""

    def damage(folder: Folder) -> None:
        row = folder.rows(split, user)[window]
        row.update({name: value(folder, row) if callable(value) else value for name, value in values.items()})

    return damage


def table(name: str, place: int, /, **values: Any) -> Damage:
    """Other values in a row of a table; numbers by which `count` and `train_count` grow."""

    def damage(folder: Folder) -> None:
        row = folder.tables[name][place]
        for column, value in values.items():
            row[column] = row[column] + value if column.endswith("count") and value is not None else value

    return damage


def metadata(**values: Any) -> Damage:
    return lambda folder: folder.metadata.update(values)


def setting(**values: Any) -> Damage:
    return lambda folder: folder.metadata["preprocessing"].update(values)


def more(name: str) -> Damage:
    """One more in a count of the metadata."""
    return lambda folder: folder.metadata.update({name: folder.metadata[name] + 1})


def without(split: str, user: int, *, window: int | None = None) -> Damage:
    """No row of the user; or only one of its windows is gone."""

    def damage(folder: Folder) -> None:
        gone = folder.rows(split, user)
        gone = gone if window is None else [gone[window]]
        folder.splits[split] = [row for row in folder.splits[split] if not any(row is other for other in gone)]

    return damage


def swap(split: str, a: int, b: int) -> Damage:
    """Two rows in each other's place."""

    def damage(folder: Folder) -> None:
        rows = folder.tables[split] if split in folder.tables else folder.splits[split]
        rows[a], rows[b] = rows[b], rows[a]

    return damage


def twice(split: str, user: int) -> Damage:
    """The first row of a user a second time."""

    def damage(folder: Folder) -> None:
        rows, row = folder.splits[split], folder.rows(split, user)[0]
        rows.insert(rows.index(row), row)

    return damage


def typed(**kinds: pa.DataType) -> Damage:
    """Columns (`split__name`) of another type."""
    return lambda folder: folder.types.update({name.replace("__", "."): kind for name, kind in kinds.items()})


def leaked(user: int, split: str) -> Damage:
    """The target of the user in `split` is trained on too, in windows that are as they must be for that."""

    def damage(folder: Folder) -> None:
        row = folder.rows(split, user)[0]
        last = {"items": row["target"], "times": row["times"][-1], "ratings": 1.0}
        folder.cut_again({"user": user} | {name: [*row[name], last[name]] for name in LISTS})

    return damage


# Values.


def another(folder: Folder, row: Row) -> int:
    """An item that the user has not taken and that was not drawn."""
    taken = {item for name in ("items", "popular_negatives", "uniform_negatives") for item in row.get(name, ())}
    return next(item for item in range(2, 2 + N_ITEMS) if item not in taken and item != row.get("target"))


def target_in(split: str) -> Callable[[Folder, Row], int]:
    return lambda folder, row: folder.rows(split, row["user"])[0]["target"]


# Damages to a file.


def flip(path: Path, place: int, bits: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= bits
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


# The damages.


def edit(path: Path, change: Callable[[dict], object]) -> None:
    metadata = json.loads((path / "metadata.json").read_text())
    change(metadata)
    (path / "metadata.json").write_text(json.dumps(metadata))


def swapped(split: Path) -> None:
    """The shards in another order."""
    names = json.loads((split / "state.json").read_text())["_data_files"]
    (split / "state.json").write_text(json.dumps({"_data_files": names[::-1]}))


def shift(folder: Folder) -> None:
    """The last window begins one position earlier."""
    before, last = folder.rows("train", LONG)[-2:]
    last.update({name: [before[name][-3], *last[name][:-1]] for name in LISTS})


def early_windows(folder: Folder) -> None:
    """Windows of a user that are cut from the beginning, not from the end."""
    history = folder.history(LONG)
    ends = list(range(6, 18, 4))
    new = [cut({name: history[name][:end] for name in history if name != "user"}, 6, 4)[-1] for end in ends]
    rest = {name: history[name][14:] for name in LISTS}
    folder.put_windows(LONG, [*new, rest])


def one_sided(folder: Folder) -> None:
    """None in the test, as might be right of a user who has taken much after it, whose count says so."""
    change("test", CHECKED, popular_negatives=[], uniform_negatives=[])(folder)
    table("users", CHECKED, count=60)(folder)


def untested(folder: Folder) -> None:
    """No test of a user who must be tested, and the counts say so too."""
    without("test", LONG)(folder)
    folder.metadata["test_users"] -= 1


def short_test(folder: Folder) -> None:
    """A test of a user with two interactions."""
    (row,) = folder.rows("train", SHORT)
    drawn = {name: [2, 3, 4] for name in ("popular_negatives", "uniform_negatives")}
    history = {name: row[name][:1] for name in LISTS}
    folder.splits["test"].insert(
        1, {"user": SHORT, **history, "target": row["items"][1], "target_time": row["times"][1], **drawn}
    )
    folder.cut_again({"user": SHORT, **history})


def one_test(folder: Folder) -> None:
    """A test where there is none."""
    folder.splits["test"] = made().splits["test"][:1]
    folder.cut_again({name: folder.splits["test"][0][name] for name in ("user", *LISTS)})
    folder.metadata["test_users"] = 1


def not_validated(folder: Folder) -> None:
    """A user fewer is validated than the settings say, and everything else is as it must be then."""
    (row,) = folder.rows("test", CHECKED)
    folder.cut_again({name: row[name] for name in ("user", *LISTS)})
    without("validation", CHECKED)(folder)
    folder.tables["items"][row["items"][-1] - 2]["train_count"] += 1
    folder.metadata["train_positions"] += 1
    folder.metadata["train_windows"] = len(folder.splits["train"])
    folder.metadata["validation_users"] -= 1


LEAVE_ONE_OUT: Cases = {
    "format_version": (metadata(format_version=99), "metadata.json: format_version ="),
    "key missing": (lambda f: f.metadata.pop("train_positions"), "metadata.json: train_positions ="),
    "key of another type": (metadata(users="24"), "metadata.json: users ="),
    "setting missing": (lambda f: f.metadata["preprocessing"].pop("split"), "metadata.json: split ="),
    "validation_users, neither number nor all": (setting(validation_users="some"), "metadata.json: validation_users ="),
    "max_len of 0": (metadata(max_len=0), "metadata.json: max_len ="),
    "too many users for ids": (metadata(users=2**31), "metadata.json: users ="),
    "unknown split": (setting(split="odd"), "metadata.json: split ="),
    "sliding_step above max_len": (setting(sliding_step=7), "metadata.json: sliding_step ="),
    "train out of order": (swap("train", 0, -1), "train: row 1 (user 0):"),
    "test out of order": (swap("test", 1, 2), "test: row 2 (user 2):"),
    "user tested twice": (twice("test", LONG), "test: row 2 (user 2):"),
    "no such user": (change("test", LONG, user=24), "test: row 1 (user 24):"),
    "negative user": (change("train", 0, user=-1), "train: row 0 (user -1):"),
    "negatives of one kind only": (
        change("test", LONG, popular_negatives=[]),
        "test: row 1 (user 2): popular_negatives",
    ),
    "too few negatives": (
        change("test", LONG, popular_negatives=[2, 3], uniform_negatives=[2, 3]),
        "test: row 1 (user 2): popular_negatives",
    ),
    "too many negatives": (
        change("validation", CHECKED, uniform_negatives=[2, 3, 4, 5]),
        "validation: row 0 (user 3): uniform_negatives",
    ),
    "lists of unequal length": (change("train", 0, times=[1]), "train: row 0 (user 0): times"),
    "item is null": (put("train", 0, "items", 0, None), "train: row 0: items"),
    "list is null": (change("train", 0, times=None), "train: row 0: times"),
    "target is null": (change("test", 0, target=None), "test: row 0: target"),
    "column missing": (lambda f: [row.pop("times") for row in f.splits["test"]], "test/data-00000-of-00002.arrow"),
    "column too many": (
        lambda f: [row.update(x=1) for row in f.splits["train"]] and typed(train__x=pa.int32())(f),
        "train/data-00000-of-00002.arrow",
    ),
    "items of another type": (typed(validation__items=pa.list_(pa.int64())), "validation/data-00000-of-00002.arrow"),
    "users of another type": (typed(train__user=pa.int64()), "train/data-00000-of-00002.arrow"),
    "has_ratings": (metadata(has_ratings=False), "train/data-00000-of-00002.arrow"),
    "n_eval_negatives": (setting(n_eval_negatives=2), "validation: row 0 (user 3): popular_negatives"),
    "item missing": (lambda f: f.tables["items"].pop(9), "items.parquet"),
    "user missing": (lambda f: f.tables["users"].pop(9), "users.parquet"),
    "original of two items": (table("items", 50, original=42), "items.parquet: row 50: original"),
    "original of two users": (table("users", 7, original="u3"), "users.parquet: row 7: original"),
    "original is null": (table("items", 3, original=None), "items.parquet: row 3: original"),
    "count is null": (table("users", 3, count=None), "users.parquet: row 3: count"),
    "no originals": (lambda f: [row.pop("original") for row in f.tables["users"]], "users.parquet"),
    "counts are text": (lambda f: [row.update(count="1") for row in f.tables["items"]], "items.parquet"),
    "ranks of other users": (lambda f: f.tables.update(oracle=[{"user": 0}]), "oracle.parquet"),
    "users": (more("users"), "users.parquet"),
    "items": (more("items"), "items.parquet"),
    "negative twice": (
        put("test", LONG, "popular_negatives", 0, lambda _, row: row["popular_negatives"][2]),
        "test: row 1 (user 2): popular_negatives",
    ),
    "negative out of range": (put("test", LONG, "uniform_negatives", 1, 62), "test: row 1 (user 2): uniform_negatives"),
    "negative is padding": (put("test", LONG, "popular_negatives", 0, 0), "test: row 1 (user 2): popular_negatives"),
    "item is the mask": (put("train", 0, "items", 0, 1), "train: row 0 (user 0): items"),
    "item too large": (put("test", 0, "items", 3, 62), "test: row 0 (user 0): items"),
    "target too large": (change("test", 0, target=62), "test: row 0 (user 0): target"),
    "times decrease": (put("test", LONG, "times", 3, -1), "test: row 1 (user 2): times"),
    "target before its history": (
        change("test", LONG, target_time=lambda _, row: row["times"][-1] - 1),
        "test: row 1 (user 2): target_time",
    ),
    "rating without end": (put("train", 0, "ratings", 2, float("inf")), "train: row 0 (user 0): ratings"),
    "rating is no number": (put("test", 0, "ratings", 0, float("nan")), "test: row 0 (user 0): ratings"),
    "window shifted": (shift, "train: row 9 (user 2): items"),
    "windows cut from the beginning": (early_windows, "train: row 9 (user 2):"),
    "item of an overlap": (put("train", LONG, "items", 1, another, window=1), "train: row 7 (user 2): items"),
    "time of an overlap": (put("train", LONG, "times", 0, 0, window=1), "train: row 7 (user 2): times"),
    "rating of an overlap": (put("train", LONG, "ratings", 0, 9.5, window=1), "train: row 7 (user 2): ratings"),
    "first window missing": (without("train", LONG, window=0), "test: row 1 (user 2):"),
    "middle window missing": (without("train", LONG, window=1), "train: row 7 (user 2): items"),
    "last window missing": (without("train", LONG, window=-1), "test: row 1 (user 2):"),
    "window doubled": (twice("train", LONG), "train: row 7 (user 2): items"),
    "first window too short": (change("train", LONG, items=[2], times=[1], ratings=[1.0]), "train: row 6 (user 2):"),
    "later window too short": (
        change("train", LONG, items=[2], times=[1], ratings=[1.0], window=2),
        "train: row 8 (user 2):",
    ),
    "window too long": (
        change("train", SHORT, items=[2] * 7, times=[1] * 7, ratings=[1.0] * 7),
        "train: row 5 (user 1):",
    ),
    "empty window": (change("train", ONE, items=[], times=[], ratings=[]), "train: row 14 (user 4):"),
    "max_len": (metadata(max_len=5), "train: row 1 (user 0):"),
    "sliding_step": (setting(sliding_step=3), "train: row 0 (user 0):"),
    "test target in train": (leaked(LONG, "test"), "test: row 1 (user 2):"),
    "test target of a validated user in train": (leaked(CHECKED, "test"), "validation: row 0 (user 3):"),
    "validation target in train": (leaked(CHECKED, "validation"), "validation: row 0 (user 3):"),
    "validation target changed": (change("validation", CHECKED, target=another), "test: row 2 (user 3): items"),
    "validation target's time changed": (
        change("validation", CHECKED, target_time=lambda _, row: row["target_time"] + 1),
        "test: row 2 (user 3): times",
    ),
    "item of a test history": (put("test", LONG, "items", 4, another), "test: row 1 (user 2): items"),
    "time of a test history": (put("test", LONG, "times", 0, 0), "test: row 1 (user 2): times"),
    "rating of a validation history": (
        put("validation", CHECKED, "ratings", 3, 7.25),
        "validation: row 0 (user 3): ratings",
    ),
    "item of a validation history": (
        put("validation", CHECKED, "items", 0, another),
        "validation: row 0 (user 3): items",
    ),
    "validation row missing": (without("validation", CHECKED), "test: row 2 (user 3):"),
    "user missing in train": (without("train", LONG), "test: row 1 (user 2):"),
    "negative trained on": (
        put("test", LONG, "uniform_negatives", 2, lambda _, row: row["items"][7]),
        "test: row 1 (user 2): uniform_negatives",
    ),
    "negative is the target": (
        put("test", LONG, "popular_negatives", 1, target_in("test")),
        "test: row 1 (user 2): popular_negatives",
    ),
    "negative is the validation target": (
        put("test", CHECKED, "popular_negatives", 1, target_in("validation")),
        "test: row 2 (user 3): popular_negatives",
    ),
    "negative of validation is the test target": (
        put("validation", CHECKED, "uniform_negatives", 0, target_in("test")),
        "validation: row 0 (user 3): uniform_negatives",
    ),
    "no negatives, though there are unseen items": (
        change("test", LONG, popular_negatives=[], uniform_negatives=[]),
        "test: row 1 (user 2):",
    ),
    "no negatives in both splits, though there are unseen items": (
        lambda f: [
            change(split, CHECKED, popular_negatives=[], uniform_negatives=[])(f) for split in ("validation", "test")
        ],
        "validation: row 0 (user 3):",
    ),
    "user not tested": (untested, "users.parquet: row 2 (user 2): count"),
    "test row missing": (without("test", LONG), "users.parquet: row 2 (user 2): count"),
    "too short for a test": (short_test, "test: row 1 (user 1): count"),
    "untested user missing in train": (without("train", SHORT), "users.parquet: row 1 (user 1): count"),
    "count of a user": (table("users", SHORT, count=1), "users.parquet: row 1 (user 1): count"),
    "count of a tested user": (table("users", LONG, count=1), "users.parquet: row 2 (user 2): count"),
    "user without interactions": (table("users", ONE, count=-1), "users.parquet: row 4 (user 4): count"),
    "users swapped": (swap("users", 3, 4), "users.parquet: row 4 (user 3):"),
    "ranks in another order": (
        lambda f: f.tables.update(oracle=[{"user": row["user"]} for row in f.splits["test"]][::-1]),
        "oracle.parquet: row 1 (user 22):",
    ),
    "item in one window only": (put("train", SHORT, "items", 0, another), "items.parquet: row 0 (item 2): train_count"),
    "test target changed": (change("test", LONG, target=another), "items.parquet: row 1 (item 3): count"),
    "user not validated": (not_validated, "validation"),
    "count of an item": (table("items", 5, count=1), "items.parquet: row 5 (item 7): count"),
    "train_count of an item": (table("items", 5, train_count=-1), "items.parquet: row 5 (item 7): train_count"),
    "items swapped": (swap("items", 3, 4), "items.parquet: row 4 (item 5):"),
    "validation_users, the setting": (setting(validation_users="all"), "validation"),
    "rows": (more("rows"), "items.parquet: count"),
    "train_windows": (more("train_windows"), "metadata.json: train_windows ="),
    "train_positions": (more("train_positions"), "metadata.json: train_positions ="),
    "validation_users": (more("validation_users"), "metadata.json: validation_users ="),
    "test_users": (more("test_users"), "metadata.json: test_users ="),
    "repeated_targets": (
        lambda f: f.metadata["repeated_targets"]["test"].update(users=99),
        "metadata.json: repeated_targets =",
    ),
    "left_out": (lambda f: f.metadata["left_out"]["validation"].update(of=9), "metadata.json: left_out ="),
    "left_out is no table": (metadata(left_out=3), "metadata.json: left_out ="),
}


BY_TIME: Cases = {
    "no instant": (lambda f: f.metadata.pop("split_instant"), "metadata.json: split_instant ="),
    "earlier instant": (
        lambda f: f.metadata.update(split_instant=f.metadata["split_instant"] - 10),
        "train: row 4 (user 2): times",
    ),
    "test target in train": (leaked(LONG, "test"), "test: row 1 (user 2):"),
    "validation row missing": (without("validation", CHECKED), "test: row 2 (user 3):"),
    "validation target changed": (change("validation", CHECKED, target=another), "test: row 2 (user 3): items"),
    "negatives in one of the splits": (one_sided, "test: row 2 (user 3):"),
    "test row missing": (without("test", LONG), "users.parquet: row 2 (user 2): count"),
    "count of a user": (table("users", LONG, count=-9), "users.parquet: row 2 (user 2): count"),
    "item trained on": (put("train", SHORT, "items", 0, another), "items.parquet: row 0 (item 2): train_count"),
    "user missing": (without("train", SHORT), "items.parquet: row 47 (item 49): train_count"),
    "counts of items": (table("items", 5, count=1), "items.parquet: count"),
    "count of an item": (table("items", 5, count=-99), "items.parquet: row 5 (item 7): count"),
}


WITHOUT_TEST: Cases = {
    "a test": (one_test, "test: row 0 (user 0): count"),
    "window missing": (without("train", LONG, window=-1), "users.parquet: row 2 (user 2): count"),
    "item changed": (put("train", LONG, "items", 0, another), "items.parquet: row 0 (item 2): train_count"),
}


FILES: FileCases = {
    "no folder": (shutil.rmtree, "dataset"),
    "a file": (lambda p: (shutil.rmtree(p), p.write_text("x")), "dataset"),
    "no JSON": (lambda p: (p / "metadata.json").write_text("{"), "metadata.json"),
    "no table": (lambda p: (p / "metadata.json").write_text("[]"), "metadata.json: format_version ="),
    "fingerprint": (lambda p: edit(p, lambda m: m.update(fingerprint="0")), "metadata.json"),
    "checksum in the metadata": (
        lambda p: edit(p, lambda m: m["files"]["users.parquet"].update(sha256="0")),
        "metadata.json",
    ),
    "entry without a checksum": (
        lambda p: edit(p, lambda m: m["files"]["users.parquet"].pop("sha256")),
        "metadata.json",
    ),
    "a byte of a split": (lambda p: flip(p / FIRST, 900), "train/data-00000-of-00002.arrow"),
    "a byte of a table": (lambda p: flip(p / "items.parquet", 99), "items.parquet"),
    "a byte of the card": (lambda p: flip(p / "README.md", 3), "README.md"),
    "a byte more": (lambda p: (p / "README.md").write_text("Another text"), "README.md"),
    "truncated": (lambda p: truncate(p / FIRST), "train/data-00000-of-00002.arrow"),
    "table missing": (lambda p: (p / "items.parquet").unlink(), "items.parquet"),
    "split missing": (lambda p: shutil.rmtree(p / "test"), "test/data-00000-of-00002.arrow"),
    "another file": (lambda p: (p / "test" / "cache.arrow").write_text("x"), "test/cache.arrow"),
    "another folder": (lambda p: ((p / "old").mkdir(), (p / "old" / ".x").write_text("x")), "old/.x"),
}


SEALED: FileCases = {
    "table missing": (lambda p: (p / "items.parquet").unlink(), "items.parquet"),
    "list of files missing": (lambda p: (p / "test" / "state.json").unlink(), "test/state.json"),
    "list of files broken": (lambda p: (p / "test" / "state.json").write_text("{}"), "test/state.json"),
    "shard missing": (lambda p: (p / FIRST).unlink(), "train/state.json"),
    "shard not listed": (lambda p: shutil.copy(p / FIRST, p / "train" / "data-2.arrow"), "train/state.json"),
    "shards swapped": (lambda p: swapped(p / "test"), "test: row 10 (user 0):"),
    "truncated": (lambda p: truncate(p / FIRST), "train/data-00000-of-00002.arrow"),
    "no Parquet": (lambda p: (p / "users.parquet").write_text("x"), "users.parquet"),
    "no Arrow": (lambda p: (p / FIRST).write_text("x" * 99), "train/data-00000-of-00002.arrow"),
}
