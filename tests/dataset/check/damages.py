"""A sound folder, and what may be wrong with one: name → the damage, and the words of the line that refuses it."""

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.dataset.check.folders import LISTS, Event, Folder, Maker, Row, cut

Damage = Callable[[Folder], object]

N_USERS, N_ITEMS = 24, 60
EVALUATED = ("validation", "test")
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


# Damages of their own.


def shift(folder: Folder) -> None:
    """The last window begins one position earlier."""
    before, last = folder.rows("train", LONG)[-2:]
    last.update({name: [before[name][-3], *last[name][:-1]] for name in LISTS})


def untested(folder: Folder) -> None:
    """No test of a user who must be tested, and the counts say so too."""
    without("test", LONG)(folder)
    folder.metadata["test_users"] -= 1


def tested(folder: Folder) -> None:
    """A test of a user with two interactions."""
    (row,) = folder.rows("train", SHORT)
    drawn = {name: [2, 3, 4] for name in ("popular_negatives", "uniform_negatives")}
    history = {name: row[name][:1] for name in LISTS}
    folder.splits["test"].insert(1, {"user": SHORT, **history, "target": row["items"][1], **drawn})
    folder.cut_again({"user": SHORT, **history})


def not_validated(folder: Folder) -> None:
    """A user fewer is validated than the settings say, and everything else is as it must be then."""
    (row,) = folder.rows("test", CHECKED)
    folder.cut_again({name: row[name] for name in ("user", *LISTS)})
    without("validation", CHECKED)(folder)
    folder.tables["items"][row["items"][-1] - 2]["train_count"] += 1
    folder.metadata["train_positions"] += 1
    folder.metadata["train_windows"] = len(folder.splits["train"])
    folder.metadata["validation_users"] -= 1


def early_windows(folder: Folder) -> None:
    """Windows of a user that are cut from the beginning, not from the end."""
    history = folder.history(LONG)
    ends = list(range(6, 18, 4))
    new = [cut({name: history[name][:end] for name in history if name != "user"}, 6, 4)[-1] for end in ends]
    rest = {name: history[name][14:] for name in LISTS}
    folder.put_windows(LONG, [*new, rest])


WINDOWS: dict[str, tuple[Damage, str]] = {
    "window shifted": (shift, r"train: row \d+ \(user 2\): items\[0\] is \d+, the window before has \d+ for the same"),
    "windows cut from the beginning": (early_windows, r"train: row \d+ \(user 2\): a later window has 4 items"),
    "item of an overlap": (
        put("train", LONG, "items", 1, another, window=1),
        r"\(user 2\): items\[1\] is .* before has",
    ),
    "time of an overlap": (put("train", LONG, "times", 0, 0, window=1), r"\(user 2\): times\[0\] is 0, .* before has"),
    "rating of an overlap": (
        put("train", LONG, "ratings", 0, 9.5, window=1),
        r"\(user 2\): ratings\[0\] is 9\.5, .* has",
    ),
    "first window missing": (
        without("train", LONG, window=0),
        r"test: row \d+ \(user 2\): has 18 items .* train 14 pos",
    ),
    "middle window missing": (without("train", LONG, window=1), r"train: row \d+ \(user 2\): .* the window before has"),
    "last window missing": (
        without("train", LONG, window=-1),
        r"test: row \d+ \(user 2\): has 18 items .* train 14 pos",
    ),
    "window doubled": (twice("train", LONG), r"train: row \d+ \(user 2\): items\[0\] is \d+, the window before has"),
    "first window too short": (
        change("train", LONG, items=[2], times=[1], ratings=[1.0]),
        r"train: row \d+ \(user 2\): the first of 4 windows has 1 items, it must have 3 to 6",
    ),
    "later window too short": (
        change("train", LONG, items=[2], times=[1], ratings=[1.0], window=2),
        r"train: row \d+ \(user 2\): a later window has 1 items, not max_len = 6",
    ),
    "window too long": (
        change("train", SHORT, items=[2] * 7, times=[1] * 7, ratings=[1.0] * 7),
        r"train: row \d+ \(user 1\): the first of 1 windows has 7 items, it must have 1 to 6",
    ),
    "empty window": (
        change("train", ONE, items=[], times=[], ratings=[]),
        r"\(user 4\): the first of 1 windows has 0 items",
    ),
    "item in one window only": (
        put("train", SHORT, "items", 0, another),
        r"items\.parquet: row \d+ \(item \d+\): train_count is",
    ),
}

LEAKS: dict[str, tuple[Damage, str]] = {
    "test target in train": (leaked(LONG, "test"), r"test: row \d+ \(user 2\): has 18 items .* train 19 positions"),
    "test target of a validated user in train": (
        leaked(CHECKED, "test"),
        r"validation: row \d+ \(user 3\): has 16 items .* train 18 positions",
    ),
    "validation target in train": (
        leaked(CHECKED, "validation"),
        r"validation: row \d+ \(user 3\): has 16 items .* train 17 positions",
    ),
    "test target changed": (change("test", LONG, target=another), r"items\.parquet: row \d+ \(item \d+\): count is"),
    "validation target changed": (
        change("validation", CHECKED, target=another),
        r"test: .* \(user 3\): items\[16\] is \d+, the validation target is",
    ),
    "item of a test history": (
        put("test", LONG, "items", 4, another),
        r"test: row \d+ \(user 2\): items\[4\] is \d+, the training history has \d+",
    ),
    "time of a test history": (
        put("test", LONG, "times", 0, 0),
        r"test: row \d+ \(user 2\): times\[0\] is 0, the training history has \d+",
    ),
    "rating of a validation history": (
        put("validation", CHECKED, "ratings", 3, 7.25),
        r"validation: .* \(user 3\): ratings\[3\] is 7\.25, the training",
    ),
    "item of a validation history": (
        put("validation", CHECKED, "items", 0, another),
        r"validation: .* \(user 3\): items\[0\] is \d+, the training his",
    ),
}

ROWS: dict[str, tuple[Damage, str]] = {
    "train out of order": (swap("train", 0, -1), r"train: row 1 \(user 0\): stands behind user 23"),
    "test out of order": (swap("test", 1, 2), r"test: row 2 \(user 2\): stands behind user 3"),
    "user tested twice": (twice("test", LONG), r"test: row 2 \(user 2\): a second row of this user"),
    "no such user": (change("test", LONG, user=24), r"test: row 1 \(user 24\): there is no such user.* from 0 to 23"),
    "negative user": (change("train", 0, user=-1), r"train: row 0 \(user -1\): there is no such user"),
    "user not tested": (untested, r"test: no row of user 2, who has 19 interactions"),
    "test row missing": (without("test", LONG), r"test: no row of user 2, who has 19 interactions"),
    "too short for a test": (tested, r"test: row 1 \(user 1\): this user has 2 interactions, evaluation needs 3"),
    "user not validated": (not_validated, r"validation: has 7 users, preprocessing\.validation_users and .* make 8"),
    "validation row missing": (
        without("validation", CHECKED),
        r"test: .* \(user 3\): has 17 items .* train 16 positions of this user;",
    ),
    "user missing in train": (without("train", LONG), r"test: row 1 \(user 2\): this user has no training window"),
    "untested user missing in train": (
        without("train", SHORT),
        r"users\.parquet: row 1 \(user 1\): count is 2, .* hold 0",
    ),
}

NEGATIVES: dict[str, tuple[Damage, str]] = {
    "negative twice": (
        put("test", LONG, "popular_negatives", 0, lambda _, row: row["popular_negatives"][2]),
        r"test: row 1 \(user 2\): popular_negatives has item \d+ twice",
    ),
    "negative trained on": (
        put("test", LONG, "uniform_negatives", 2, lambda _, row: row["items"][7]),
        r"test: row 1 \(user 2\): uniform_negatives has item \d+, which this user has taken",
    ),
    "negative is the target": (
        put("test", LONG, "popular_negatives", 1, target_in("test")),
        r"test: .* popular_negatives .* this user has taken",
    ),
    "negative is the validation target": (
        put("test", CHECKED, "popular_negatives", 1, target_in("validation")),
        r"test: .* popular_negatives .* has taken",
    ),
    "negative of validation is the test target": (
        put("validation", CHECKED, "uniform_negatives", 0, target_in("test")),
        r"validation: .* uniform_neg.* has taken",
    ),
    "negative out of range": (
        put("test", LONG, "uniform_negatives", 1, 62),
        r"\(user 2\): uniform_negatives\[1\] is 62, items have ids from 2 to 61",
    ),
    "negative is padding": (
        put("test", LONG, "popular_negatives", 0, 0),
        r"\(user 2\): popular_negatives\[0\] is 0, items",
    ),
    "negatives of one kind only": (
        change("test", LONG, popular_negatives=[]),
        r"\(user 2\): popular_negatives has 0 elements, not 3 as preprocessing\.",
    ),
    "too few negatives": (
        change("test", LONG, popular_negatives=[2, 3], uniform_negatives=[2, 3]),
        r"\(user 2\): popular_negatives has 2 elements, not 3 as preprocessing\.",
    ),
    "no negatives, though there are unseen items": (
        change("test", LONG, popular_negatives=[], uniform_negatives=[]),
        r"test: row 1 \(user 2\): has no negatives, though its user has 4\d or more unseen items, enough for 3",
    ),
    "no negatives in both splits, though there are unseen items": (
        lambda f: [change(split, CHECKED, popular_negatives=[], uniform_negatives=[])(f) for split in EVALUATED],
        r"validation: row \d+ \(user 3\): has no negatives, though its user has \d+ or more unseen items, enough for 3",
    ),
    "too many negatives": (
        change("validation", CHECKED, uniform_negatives=[2, 3, 4, 5]),
        r"\(user 3\): uniform_negatives has 4 elements, not 3",
    ),
}

VALUES: dict[str, tuple[Damage, str]] = {
    "item is the mask": (
        put("train", 0, "items", 0, 1),
        r"train: row 0 \(user 0\): items\[0\] is 1, items have ids from 2",
    ),
    "item too large": (
        put("test", 0, "items", 3, 62),
        r"test: row 0 \(user 0\): items\[3\] is 62, items have ids .* to 61",
    ),
    "target too large": (
        change("test", 0, target=62),
        r"test: row 0 \(user 0\): target is 62, items have ids from 2 to 61",
    ),
    "times decrease": (
        put("test", LONG, "times", 3, -1),
        r"test: row 1 \(user 2\): times\[3\] is -1, earlier than the one",
    ),
    "rating without end": (
        put("train", 0, "ratings", 2, float("inf")),
        r"train: .* ratings\[2\] is inf, must be finite",
    ),
    "rating is no number": (
        put("test", 0, "ratings", 0, float("nan")),
        r"test: .* ratings\[0\] is nan, must be finite",
    ),
    "lists of unequal length": (
        change("train", 0, times=[1]),
        r"train: row 0 \(user 0\): times has 1 elements, not \d as it",
    ),
    "item is null": (put("train", 0, "items", 0, None), r"train: rows 0 to \d+: column items has a null"),
    "list is null": (change("train", 0, times=None), r"train: rows 0 to \d+: column times has a null"),
    "target is null": (change("test", 0, target=None), r"test: rows 0 to \d+: column target has a null"),
}

TABLES: dict[str, tuple[Damage, str]] = {
    "count of a user": (table("users", SHORT, count=1), r"test: no row of user 1, who has 3 interactions"),
    "count of a tested user": (
        table("users", LONG, count=1),
        r"users\.parquet: row 2 \(user 2\): count is 20, the splits hold 19 interactions",
    ),
    "user without interactions": (table("users", ONE, count=-1), r"row 4 \(user 4\): count is 0, must be 1 or more"),
    "count of an item": (table("items", 5, count=1), r"items\.parquet: row 5 \(item 7\): count is \d+, must be \d+;"),
    "train_count of an item": (
        table("items", 5, train_count=-1),
        r"row 5 \(item 7\): train_count is \d+, must be \d+;",
    ),
    "item missing": (lambda f: f.tables["items"].pop(9), r"items\.parquet: has 59 rows, metadata\.json says 60"),
    "user missing": (lambda f: f.tables["users"].pop(9), r"users\.parquet: has 23 rows, metadata\.json says 24"),
    "items swapped": (swap("items", 3, 4), r"items\.parquet: row 3 \(item 5\): item is 6, must be 5"),
    "users swapped": (swap("users", 3, 4), r"users\.parquet: row 3 \(user 4\): user 3 must stand here"),
    "original of two items": (
        table("items", 50, original=42),
        r"items\.parquet: row 50: original 42 is that of row 4 too",
    ),
    "original of two users": (
        table("users", 7, original="u3"),
        r"users\.parquet: row 7: original 'u3' is that of row 3",
    ),
    "original is null": (table("items", 3, original=None), r"items\.parquet: row 3: original is null"),
    "count is null": (table("users", 3, count=None), r"users\.parquet: row 3: count is null"),
    "no originals": (lambda f: [row.pop("original") for row in f.tables["users"]], r"must have a column original"),
    "counts are text": (
        lambda f: [row.update(count="1") for row in f.tables["items"]],
        r"items\.parquet: must have a column count of integers",
    ),
    "ranks in another order": (
        lambda f: f.tables.update(oracle=[{"user": row["user"]} for row in f.splits["test"]][::-1]),
        r"oracle\.parquet: row 0 \(user \d+\): user 0 must stand here, as in test",
    ),
    "ranks of other users": (lambda f: f.tables.update(oracle=[{"user": 0}]), r"oracle\.parquet: has 1 rows, metadata"),
}

COLUMNS: dict[str, tuple[Damage, str]] = {
    "column missing": (
        lambda f: [row.pop("times") for row in f.splits["test"]],
        r"test/data-0\S+: has the columns user int32, items",
    ),
    "column too many": (
        lambda f: [row.update(x=1) for row in f.splits["train"]] and typed(train__x=pa.int32())(f),
        r"train/data-00000-of-00002\.arrow: has the columns .* x int32; must be user int32",
    ),
    "items of another type": (
        typed(validation__items=pa.list_(pa.int64())),
        r"validation/data-0\S+: has the columns .* items list<item: int64>",
    ),
    "users of another type": (typed(train__user=pa.int64()), r"train/data-0\S+: .* user int64, .* must be user int32"),
}

METADATA: dict[str, tuple[Damage, str]] = {
    "format_version": (metadata(format_version=99), r"json: format_version 99, this program reads \d"),
    "key missing": (lambda f: f.metadata.pop("train_positions"), r"json: train_positions = null: must be of type int"),
    "key of another type": (metadata(users="24"), r'json: users = "24": must be of type int'),
    "setting missing": (lambda f: f.metadata["preprocessing"].pop("split"), r"json: split = null: must be of type str"),
    "validation_users, neither number nor all": (
        setting(validation_users="some"),
        r'json: validation_users = "some": must',
    ),
    "max_len of 0": (metadata(max_len=0), r"json: max_len = 0: must be at least 1"),
    "too many users for ids": (metadata(users=2**31), r"json: more than \d+ users or items cannot have ids"),
    "unknown split": (setting(split="odd"), r'json: split = "odd": this program knows no such split'),
    "sliding_step above max_len": (setting(sliding_step=7), r"json: sliding_step = 7: must be from 0 to max_len = 6"),
    "has_ratings": (metadata(has_ratings=False), r"train/data-0\S+: has the columns .* ratings"),
    "max_len": (metadata(max_len=5), r"train: row \d+ \(user \d+\): the first of .* has 6 items, it must have"),
    "sliding_step": (setting(sliding_step=3), r"train: row \d+ \(user \d+\)"),
    "n_eval_negatives": (setting(n_eval_negatives=2), r"popular_negatives has 3 elements, not 2"),
    "validation_users, the setting": (setting(validation_users="all"), r"validation: has 8 users, .* make \d\d"),
    "users": (more("users"), r"users\.parquet: has 24 rows, metadata\.json says 25"),
    "items": (more("items"), r"items\.parquet: has 60 rows, metadata\.json says 61"),
    "rows": (more("rows"), r"items\.parquet: the counts are \d+ in all, metadata\.json says rows = \d+"),
    "train_windows": (more("train_windows"), r"json: train_windows = \d+, the folder holds \d+"),
    "train_positions": (more("train_positions"), r"json: train_positions = \d+, the folder holds \d+"),
    "validation_users": (more("validation_users"), r"json: validation_users = 9, the folder holds 8"),
    "test_users": (more("test_users"), r"json: test_users = \d+, the folder holds \d+"),
    "repeated_targets": (
        lambda f: f.metadata["repeated_targets"]["test"].update(users=99),
        r"json: repeated_targets = .*'test': {'users': 99, .*, the folder holds .*'test': {'users': 1, 'of': 20}}",
    ),
    "left_out": (
        lambda f: f.metadata["left_out"]["validation"].update(of=9),
        r"json: left_out = {'validation': {'users': 0, 'of': 9}, .* holds {'validation': {'users': 0, 'of': 8}, ",
    ),
    "left_out is no table": (metadata(left_out=3), r"json: left_out = 3, the folder holds {'validation': "),
}


def one_sided(folder: Folder) -> None:
    """None in the test, as might be right of a user who has taken much after it, whose count says so."""
    change("test", CHECKED, popular_negatives=[], uniform_negatives=[])(folder)
    table("users", CHECKED, count=60)(folder)


BY_TIME: dict[str, tuple[Damage, str]] = {
    "no instant": (lambda f: f.metadata.pop("split_instant"), r"json: split_instant = null: must be of type int"),
    "earlier instant": (
        lambda f: f.metadata.update(split_instant=f.metadata["split_instant"] - 10),
        r": row \d+ \(user \d+\): times\[\d+\] is \d+, not before \d+, when the test begins",
    ),
    "test target in train": (leaked(LONG, "test"), r"test: row \d+ \(user 2\): has \d+ items .* train \d+ positions"),
    "test row missing": (without("test", LONG), r"users\.parquet: row 2 \(user 2\): count is 19, the splits hold \d+"),
    "validation row missing": (without("validation", CHECKED), r"test: row \d+ \(user 3\): has \d+ items"),
    "validation target changed": (change("validation", CHECKED, target=another), r"the validation target is"),
    "negatives in one of the splits": (
        one_sided,
        r"test: row \d+ \(user 3\): has negatives in one of validation and test only",
    ),
    "item trained on": (put("train", SHORT, "items", 0, another), r"items\.parquet: .* train_count is"),
    "user missing": (without("train", SHORT), r"metadata\.json|users\.parquet|items\.parquet"),
    "count of a user": (
        table("users", LONG, count=-9),
        r"users\.parquet: row 2 \(user 2\): count is 10, the splits hold",
    ),
    "counts of items": (table("items", 5, count=1), r"items\.parquet: the counts are \d+ in all, metadata\.json says"),
    "count of an item": (
        table("items", 5, count=-99),
        r"items\.parquet: row 5 \(item 7\): count is -\d+, must be \d+ or",
    ),
}


def one_test(folder: Folder) -> None:
    """A test where there is none."""
    folder.splits["test"] = made().splits["test"][:1]
    folder.cut_again({name: folder.splits["test"][0][name] for name in ("user", *LISTS)})
    folder.metadata["test_users"] = 1


WITHOUT_TEST: dict[str, tuple[Damage, str]] = {
    "a test": (one_test, r"test: row 0 \(user 0\): with preprocessing\.split = none there is no evaluation"),
    "window missing": (without("train", LONG, window=-1), r"users\.parquet: row 2 \(user 2\): count is 19, .* hold 15"),
    "item changed": (put("train", LONG, "items", 0, another), r"items\.parquet: row \d+ \(item \d+\): train_count is"),
}

LEAVE_ONE_OUT = {
    f"{kind}: {name}": damage
    for kind, damages in {
        "windows": WINDOWS,
        "leaks": LEAKS,
        "rows": ROWS,
        "negatives": NEGATIVES,
        "values": VALUES,
        "tables": TABLES,
        "columns": COLUMNS,
        "metadata": METADATA,
    }.items()
    for name, damage in damages.items()
}
