"""Rows of one second and rows of one time: their order, what is counted of them, and baskets that are held out."""

import random
import tempfile
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert4rec.config.tables import Data, Preprocessing
from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.reader import open_dataset
from bert4rec.sources.interactions import open_histories
from tests.folders import id_table
from tests.preparation import metadata_of, prepared, small_tasks, stored

START = 1_767_225_780
ABC = "abc"


def histories_of(folder: Path) -> dict[str, list[str]]:
    return {row["user"]: [str(item) for item in row["items"]] for row in stored(folder)}


def table_of(*rows: tuple[Any, ...], order: str = "line") -> pl.DataFrame:
    names = ["user", "item", "time", order][: len(rows[0])]
    return pl.DataFrame(rows, schema=names, orient="row", strict=False)


def iso(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(START + nanoseconds // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return moment + (f".{nanoseconds % 10**9:09}" if nanoseconds % 10**9 else "")


FORMS = {
    "ms": lambda time: START * 1000 + time // 10**6, "us": lambda time: START * 10**6 + time // 1000,
    "ns": lambda time: START * 10**9 + time, "float": lambda time: START + time / 1e9, "ISO": iso,
    "ISO, offset": lambda time: iso(time) + "+00:00",
    "milliseconds as text": lambda time: f"{START * 1000 + time // 10**6}.0",
    "format": lambda time: datetime.fromtimestamp(START + time / 1e9, UTC).strftime("%d/%m/%Y %H:%M:%S.%f"),
}  # fmt: skip
OPTIONS = {"format": ["--data.time_format=%d/%m/%Y %H:%M:%S.%f"]}
UNITS = {"Datetime ms": 10**6, "Datetime us": 10**3, "Datetime ns": 1}  # of Arrow, in nanoseconds


@pytest.mark.parametrize("form", [*FORMS, *UNITS])
def test_rows_of_one_second_are_sorted_by_its_fraction(tmp_path: Path, form: str) -> None:
    steps, unit = [number * UNITS.get(form, 200_000_000) for number in range(8)], form.removeprefix("Datetime ")
    table = table_of(*((user, f"i{number}", FORMS[unit](at)) for user in ABC for number, at in enumerate(steps)))
    options = OPTIONS.get(form, [])
    if form in UNITS:
        dated = table.with_columns(pl.col("time").cast(pl.Datetime(unit)))  # type: ignore[arg-type]
        dated.reverse().write_parquet(tmp_path / "log.parquet")
        folder = prepared(tmp_path, "--data.source=table", f"--data.path={tmp_path / 'log.parquet'}")
    else:
        folder = prepared(tmp_path, *options, table=table.reverse())
    assert histories_of(folder) == {user: [f"i{number}" for number in range(8)] for user in ABC}
    assert [row["times"] for row in stored(folder)] == [[START + at // 10**9 for at in steps]] * 3
    assert metadata_of(folder)["log"]["tied"] == 0
    check_dataset(folder)


@pytest.mark.parametrize("first", ["whole", "parts"])
def test_only_one_of_several_files_has_fractions(tmp_path: Path, first: str) -> None:
    whole = table_of(*((user, f"i{number}", START + number) for user in ABC for number in (9, 8, 7)))
    parts = table_of(*((user, f"i{number}", START + number / 10) for user in ABC for number in (6, 5, 4, 3)))
    for name, table in zip("12", (whole, parts) if first == "whole" else (parts, whole), strict=True):
        table.write_csv(tmp_path / f"log{name}.csv")
    folder = prepared(tmp_path, "--data.source=table", f"--data.path={tmp_path / 'log*.csv'}")
    assert histories_of(folder) == {user: [f"i{number}" for number in range(3, 10)] for user in ABC}


def test_events_of_one_second_are_no_duplicates(tmp_path: Path) -> None:
    times = [START + 0.1 * number for number in range(4)] + [START + 0.3] * 2
    rows = [("a", item, time) for item, time in zip("xxxyyy", times, strict=True)] + [("b", "x", START)]
    log = metadata_of(prepared(tmp_path, table=table_of(*rows)))["log"]
    assert (log["repeats_in_a_row"], log["duplicates"], log["tied"]) == (4, 2, 2)
    assert log["tied_targets"] == {"users": 1, "of": 1}


def test_a_file_of_histories_is_sorted_as_a_preparation(tmp_path: Path) -> None:
    rows = [("a", f"i{number}", 5 + number // 4 / 10, 9 - number) for number in range(12)]
    random.Random(1).shuffle(rows)
    table_of(*rows).write_csv(tmp_path / "log.csv")
    data = Data(source="table", user_column="user", item_column="item", time_column="time", order_column="line")
    expected = [f"i{number}" for first in (0, 4, 8) for number in reversed(range(first, first + 4))]
    path = str(tmp_path / "log.csv")
    pytest.importorskip("torch")
    from bert4rec.commands.history_files import read_histories

    found = read_histories(path, lambda path: open_histories(path, data, Preprocessing(), is_named=False))
    assert [*found] == [[("a", expected)]]


ORDERS = {
    "numbers": ["-1", "2", "10", "1e2", "9223372036854775806", "9223372036854775807"],
    "times of day": ["00:05", "9:30", "10:00:00.5", "12:30 PM", "1:00 PM", "23:59"],
    "text": ["a", "b", "c", "d", "e", "f"],
}


@pytest.mark.parametrize("kind", ORDERS)
def test_a_column_orders_rows_of_one_time(tmp_path: Path, kind: str) -> None:
    values = ORDERS[kind]
    rows = [("a", f"i{number}", START, value) for number, value in enumerate(values)]
    table = table_of(*reversed(rows), ("a", "z", START - 1, values[-1]), ("a", "missing", START, ""))
    folder = prepared(tmp_path, "--order=line", table=table)
    assert histories_of(folder)["a"] == ["z", "missing", *(f"i{number}" for number in range(len(values)))]
    metadata = metadata_of(folder)
    assert metadata["columns"]["order"] == metadata["order"]["then"] == "line"
    assert (metadata["log"]["unordered"], metadata["log"]["tied"]) == ({"line": 1}, 0)
    check_dataset(folder)


def test_without_times_the_column_orders_all_rows(tmp_path: Path) -> None:
    table = pl.DataFrame({"user": ["a"] * 4, "item": ["w", "x", "y", "z"], "add_to_cart_order": [4, 10, 2, 1]})
    folder = prepared(tmp_path, "--time=", "--order=add_to_cart_order", table=table)
    assert histories_of(folder) == {"a": ["z", "y", "w", "x"]}


@pytest.mark.parametrize(
    ("name", "has_times", "option"),
    [("line_no", True, "order"), ("whatever", False, "order"), ("trans_time", True, "order"),
     ("trans_time", False, "time")],
)  # fmt: skip
def test_a_column_that_orders_ties_is_offered(tmp_path: Path, name: str, has_times: bool, option: str) -> None:
    items, row = np.random.default_rng(2).integers(0, 30, 600), np.arange(600)
    table = pl.DataFrame({"user": row // 30, "item": [f"i{item}" for item in items], "price": items})
    table = table.with_columns(pl.Series(name, row % (6 if has_times else 30)))
    if has_times:
        table = table.with_columns(time=START + 86_400 * (row // 6), order_id=row // 6)
    options = ["--user=user", "--item=item", "--time=time" if has_times else "--time="]
    assert metadata_of(prepared(tmp_path, *options, table=table))["log"]["order_options"] == [f"--{option}={name}"]


class Row(NamedTuple):
    user: str
    item: int
    time: float


TIMES = st.sampled_from([1, 2, 3, 3.25, 3.5, 4, 5])
ROWS = st.lists(st.builds(Row, st.sampled_from("abcd"), st.integers(1, 9), TIMES), min_size=8, max_size=40)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 3))
def test_shuffled_ties_depend_on_the_seed_and_neither_on_the_file_nor_on_parts(
    rows: list[Row], shuffler: random.Random, seed: int
) -> None:
    options = ["--preprocessing.ties=shuffle", f"--seed={seed}", "--split=none", "--time=time"]
    again, newest_first = shuffler.sample(rows, len(rows)), sorted(rows, key=lambda row: -row.time)
    with tempfile.TemporaryDirectory() as place:
        folders = []
        for name, log, is_small in (("one", rows, False), ("other", again, True), ("last", newest_first, False)):
            with small_tasks() if is_small else nullcontext():
                folders.append(prepared(Path(place), *options, table=table_of(*log), name=name))
        if not all(folder.exists() for folder in folders):
            assert len({row.item for row in rows}) == 1
            return
        one, other, last = map(stored, folders)
    assert one == other == last
    for history in one:
        items = map(int, history["items"])
        mine = sorted((row for row in rows if row.user == history["user"]), key=lambda row: row.time)
        for _, basket in groupby(mine, key=lambda row: row.time):
            expected = sorted(row.item for row in basket)
            assert sorted(islice(items, len(expected))) == expected


def test_every_order_and_each_target_of_a_basket_is_as_likely(tmp_path: Path) -> None:
    users, n = np.repeat(np.arange(3000), 5), 3000
    table = pl.DataFrame(
        {"user": users, "item": np.tile([1, 2, 3, 4, 5], n), "time": START + np.tile([0, 0, 9, 9, 9], n)}
    )
    shuffled = stored(prepared(tmp_path, "--preprocessing.ties=shuffle", table=table, name="shuffled"))
    _, counts = np.unique([row["items"][2:] for row in shuffled], axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 500).max() < 5 * 500**0.5

    table = table.vstack(pl.DataFrame({"user": [n] * 3, "item": [6, 7, 8], "time": [START] * 3}))
    folder = prepared(tmp_path, "--split=leave_last_basket", table=table)
    targets, counts = np.unique([r["items"][r["test"]] for r in stored(folder) if r["test"] > 0], return_counts=True)
    assert sorted(map(int, targets)) == [3, 4, 5]
    assert abs(counts - 1000).max() < 5 * 1000**0.5
    split = open_dataset(folder, verify=False).splits["test"]
    read = split.read(np.arange(len(split)))
    assert set(read.lengths.tolist()) == {2}
    assert not read.are_repeated().any()
    assert split.are_tied is not None
    assert not split.are_tied.any()
    ids = id_table(folder, "items")["original"].to_numpy()
    assert read.negatives is not None
    assert {*ids[read.negatives["uniform"]].ravel().tolist()} <= {6, 7, 8}
