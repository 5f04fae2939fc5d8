"""Rows of one second and rows of one time: their order, what is counted of them, and baskets that are held out."""

import json
import random
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import preprocessing
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.reader import open_dataset
from bert4rec.prepare import engine
from bert4rec.sources.interactions import open_histories, open_interactions
from tests.checks import one_line
from tests.preparation import Prepare
from tests.prepare.test_pipeline import stored

START = 1_767_225_780
TABLE = ["--data.source=table", "--user=user", "--item=item", "--time=time", "--preprocessing.n_eval_negatives=1"]


def histories_of(folder: Path) -> dict[str, list[str]]:
    return {row["user"]: [str(item) for item in row["items"]] for row in stored(folder)}


def log_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metadata.json").read_text())["log"]
    return found


def iso(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(START + nanoseconds // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return moment + (f".{nanoseconds % 10**9:09}" if nanoseconds % 10**9 else "")


STEPS = [number * 200_000_000 for number in range(8)]  # nanoseconds
FORMS = {
    "ms": lambda time: START * 1000 + time // 10**6, "us": lambda time: START * 10**6 + time // 1000,
    "ns": lambda time: START * 10**9 + time, "float": lambda time: START + time / 1e9, "ISO": iso,
    "ISO, offset": lambda time: iso(time) + "+00:00",
    "milliseconds as text": lambda time: f"{START * 1000 + time // 10**6}.0",
    "format": lambda time: datetime.fromtimestamp(START + time / 1e9, UTC).strftime("%d/%m/%Y %H:%M:%S.%f"),
}  # fmt: skip
OPTIONS = {"format": ["--data.time_format=%d/%m/%Y %H:%M:%S.%f"]}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_one_second_are_sorted_by_its_fraction(prepare: Prepare, tmp_path: Path, form: str) -> None:
    rows = [(user, f"i{number}", FORMS[form](time)) for user in "abc" for number, time in enumerate(STEPS)]
    table = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row", strict=False)
    table.reverse().write_csv(tmp_path / "log.csv")
    folder = prepare(f"--data.path={tmp_path / 'log.csv'}", *TABLE, *OPTIONS.get(form, []))
    assert histories_of(folder) == {user: [f"i{number}" for number in range(8)] for user in "abc"}
    assert [row["times"] for row in stored(folder)] == [[START + time // 10**9 for time in STEPS]] * 3
    assert log_of(folder)["tied"] == 0
    check_dataset(folder)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_arrow_timestamps_are_sorted_in_any_unit(prepare: Prepare, tmp_path: Path, unit: Any) -> None:
    smallest = {"ms": 10**6, "us": 10**3, "ns": 1}[unit]
    ticks = pl.Series("time", [START * 10**9 + smallest * number for number in range(8)]) // smallest
    table = pl.DataFrame({"user": ["a"] * 8, "item": [f"i{number}" for number in range(8)]})
    table.with_columns(ticks.cast(pl.Datetime(unit))).reverse().write_parquet(tmp_path / "log.parquet")
    folder = prepare(f"--data.path={tmp_path / 'log.parquet'}", *TABLE)
    assert histories_of(folder) == {"a": [f"i{number}" for number in range(8)]}


@pytest.mark.parametrize("first", ["whole", "parts"])
def test_only_one_of_several_files_has_fractions(prepare: Prepare, tmp_path: Path, first: str) -> None:
    whole = [(user, f"i{number}", START + number) for user in "abc" for number in (9, 8, 7)]
    parts = [(user, f"i{number}", START + number / 10) for user in "abc" for number in (6, 5, 4, 3)]
    for name, rows in zip("12", (whole, parts) if first == "whole" else (parts, whole), strict=True):
        table = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
        table.write_csv(tmp_path / f"log{name}.csv")
    folder = prepare(f"--data.path={tmp_path / 'log*.csv'}", *TABLE)
    assert histories_of(folder) == {user: [f"i{number}" for number in range(3, 10)] for user in "abc"}


def test_events_of_one_second_are_no_duplicates(prepare: Prepare, tmp_path: Path) -> None:
    times = [START + 0.1 * number for number in range(4)] + [START + 0.3] * 2
    rows = [("a", item, time) for item, time in zip("xxxyyy", times, strict=True)] + [("b", "x", START)]
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_csv(tmp_path / "log.csv")
    log = log_of(prepare(f"--data.path={tmp_path / 'log.csv'}", *TABLE))
    assert (log["repeats_in_a_row"], log["duplicates"], log["tied"]) == (4, 2, 2)
    assert log["tied_targets"] == {"users": 1, "of": 1}


def test_a_file_of_histories_is_sorted_as_a_preparation(tmp_path: Path) -> None:
    rows = [("a", f"i{number}", 5 + number // 4 / 10, 9 - number) for number in range(12)]
    random.Random(1).shuffle(rows)
    table = pl.DataFrame(rows, schema=["user", "item", "time", "line"], orient="row")
    table.write_csv(tmp_path / "log.csv")
    data = Data(source="table", user_column="user", item_column="item", time_column="time", order_column="line")
    expected = [f"i{number}" for first in (0, 4, 8) for number in reversed(range(first, first + 4))]
    path = str(tmp_path / "log.csv")
    pytest.importorskip("torch")
    from bert4rec.commands.history_files import read_histories

    found = read_histories(path, lambda path: open_histories(path, data, Preprocessing(), is_named=False))
    assert [*found] == [[("a", expected)]]


ORDERS = {
    "numbers": ["2", "10", "-1", "1e2", "9223372036854775806", "9223372036854775807"],
    "times of day": ["00:05", "9:30", "10:00:00.5", "12:30 PM", "1:00 PM", "23:59"],
    "text": ["a", "b", "c", "d", "e", "f"],
}


@pytest.mark.parametrize("kind", ORDERS)
def test_a_column_orders_rows_of_one_time(prepare: Prepare, tmp_path: Path, kind: str) -> None:
    values = ORDERS[kind] if kind != "numbers" else sorted(ORDERS[kind], key=lambda text: (float(text), text))
    rows = [("a", f"i{number}", START, value) for number, value in enumerate(values)]
    rows = [*reversed(rows), ("a", "z", START - 1, values[-1]), ("a", "missing", START, "")]
    pl.DataFrame(rows, schema=["user", "item", "time", "line"], orient="row").write_csv(tmp_path / "log.csv")
    folder = prepare(f"--data.path={tmp_path / 'log.csv'}", *TABLE, "--order=line")
    assert histories_of(folder)["a"] == ["z", "missing", *(f"i{number}" for number in range(len(values)))]
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["columns"]["order"] == metadata["order"]["then"] == "line"
    assert metadata["log"]["unordered"] == {"line": 1}
    assert metadata["log"]["tied"] == 0
    check_dataset(folder)


def test_without_times_the_column_orders_all_rows(prepare: Prepare, tmp_path: Path) -> None:
    table = pl.DataFrame({"user": ["a"] * 4, "item": ["w", "x", "y", "z"], "add_to_cart_order": [4, 10, 2, 1]})
    table.write_csv(tmp_path / "log.csv")
    named = [option if option != "--time=time" else "--time=" for option in TABLE]
    folder = prepare(f"--data.path={tmp_path / 'log.csv'}", *named, "--order=add_to_cart_order")
    assert histories_of(folder) == {"a": ["z", "y", "w", "x"]}


@pytest.mark.parametrize("name", ["line_no", "whatever", "trans_time"])
@pytest.mark.parametrize("has_times", [True, False])
def test_a_column_that_orders_ties_is_offered(prepare: Prepare, tmp_path: Path, name: str, *, has_times: bool) -> None:
    rng = np.random.default_rng(2)
    items = [f"i{item}" for item in rng.integers(0, 30, 600)]
    prices = {item: number for number, item in enumerate(sorted(set(items)))}
    table = pl.DataFrame(
        {
            "user": [f"u{row // 30}" for row in range(600)], "item": items,
            "time": [START + 86_400 * (row // 6) for row in range(600)],
            "price": [prices[item] for item in items], "order_id": [row // 6 for row in range(600)],
            name: [row % (6 if has_times else 30) for row in range(600)],
        }
    )  # fmt: skip
    (table if has_times else table.drop("time", "order_id")).write_csv(tmp_path / "log.csv")
    named = [option if has_times or option != "--time=time" else "--time=" for option in TABLE]
    folder = prepare(f"--data.path={tmp_path / 'log.csv'}", *named)
    is_time = name == "trans_time" and not has_times
    assert log_of(folder)["order_options"] == [f"--{'time' if is_time else 'order'}={name}"]


class Row(NamedTuple):
    user: str
    item: int
    time: float


ROWS = st.lists(
    st.builds(Row, st.sampled_from("abcd"), st.integers(1, 9), st.sampled_from([1, 2, 3, 3.25, 3.5, 4, 5])),
    min_size=8, max_size=40,
)  # fmt: skip


def prepared(place: Path, rows: list[Row], name: str, *options: str, n_runs: int = 24) -> Path | None:
    """The dataset of the rows, None where there are too few."""
    pl.DataFrame(rows, schema=[*Row._fields], orient="row").write_csv(place / f"{name}.csv")
    folder = place / name
    arguments = [f"--data.path={place / f'{name}.csv'}", f"--data.dataset_dir={folder}", *TABLE, *options]
    with patch.object(engine, "RUNS", n_runs):
        status = preprocessing.main(["--config=/dev/null", *arguments])
    return folder if status == 0 else None


def baskets(rows: list[Row]) -> dict[str, list[list[int]]]:
    """The items of each user by time."""
    found: dict[str, dict[float, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: row.time):
        found[row.user][row.time].append(row.item)
    return {user: [*by_time.values()] for user, by_time in found.items()}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 3))
def test_shuffled_ties_depend_on_the_seed_and_neither_on_the_file_nor_on_parts(
    rows: list[Row], shuffler: random.Random, seed: int
) -> None:
    options = ["--preprocessing.ties=shuffle", f"--seed={seed}", "--split=none"]
    with tempfile.TemporaryDirectory() as place:
        again, newest_first = shuffler.sample(rows, len(rows)), sorted(rows, key=lambda row: -row.time)
        one, other, last = (
            prepared(Path(place), *arguments, *options, n_runs=n)
            for arguments, n in (((rows, "one"), 24), ((again, "other"), 10**9), ((newest_first, "last"), 24))
        )
        if one is None or other is None or last is None:
            assert len({row.item for row in rows}) == 1
            return
        assert stored(one) == stored(other) == stored(last)
        for history in stored(one):
            ends = np.cumsum([len(basket) for basket in baskets(rows)[history["user"]]])[:-1]
            for part, basket in zip(np.split(history["items"], ends), baskets(rows)[history["user"]], strict=True):
                assert sorted(map(int, part)) == sorted(basket)


def test_every_order_of_a_basket_is_as_likely(prepare: Prepare, tmp_path: Path) -> None:
    table = pl.DataFrame({"user": np.repeat(np.arange(3000), 3), "item": [1, 2, 3] * 3000, "time": [START] * 9000})
    table.write_csv(tmp_path / "log.csv")
    found = stored(prepare(f"--data.path={tmp_path / 'log.csv'}", *TABLE, "--preprocessing.ties=shuffle"))
    _, counts = np.unique([row["items"] for row in found], axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 500).max() < 5 * 500**0.5


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.sampled_from(["all", 2]), st.sampled_from(["all", 1]), st.integers(0, 3), st.sampled_from([24, 10**9]))
def test_the_last_basket_is_held_out_whole(
    rows: list[Row], tested: str | int, validated: str | int, seed: int, n_runs: int
) -> None:
    options = [
        "--split=leave_last_basket", f"--seed={seed}", f"--preprocessing.test_users={tested}",
        f"--preprocessing.validation_users={validated}",
        "--preprocessing.reverse_file_order=false",  # a few rows may happen to be newest first
    ]  # fmt: skip
    user_baskets = baskets(rows)
    testable = {user for user, mine in user_baskets.items() if sum(map(len, mine[:-1])) >= 2}
    with tempfile.TemporaryDirectory() as place:
        folder = prepared(Path(place), rows, "log", *options, n_runs=n_runs)
        if folder is None:
            assert not testable or len({row.item for row in rows}) == 1
            return
        check_dataset(folder)
        found = {row["user"]: row for row in stored(folder)}
        n_tested = sum(row["test"] >= 0 for row in found.values())
        assert n_tested == (len(testable) if tested == "all" else min(int(tested), len(testable)))
        for user, row in found.items():
            by_time, items, test = user_baskets[user], [*map(int, row["items"])], row["test"]
            assert sorted(items) == sorted(item for basket in by_time for item in basket)
            assert row.get("test_tied", 0) == 0
            if test < 0:
                assert (row["validation"], row["n_train"]) == (-1, len(items))
                assert items == [item for basket in by_time for item in basket]
                continue
            assert test == sum(map(len, by_time[:-1]))
            assert items[test] in by_time[-1]
            if row["validation"] < 0:
                assert row["n_train"] == test
                assert items[:test] == [item for basket in by_time[:-1] for item in basket]
                continue
            assert row["validation"] == row["n_train"] == sum(map(len, by_time[:-2])) >= 1
            assert items[row["validation"]] in by_time[-2]
            assert items[: row["n_train"]] == [item for basket in by_time[:-2] for item in basket]
        if validated == "all":
            able = {user for user, row in found.items() if row["test"] >= 0 and len(user_baskets[user]) > 2}
            assert {user for user, row in found.items() if row["validation"] >= 0} == able


def test_each_item_of_the_last_basket_is_as_likely_and_no_negative(prepare: Prepare, tmp_path: Path) -> None:
    n = 3000
    items = np.tile([1, 2, 3, 4, 5], n)
    times = START + np.tile([0, 0, 9, 9, 9], n)
    pl.DataFrame({"user": np.repeat(np.arange(n), 5), "item": items, "time": times}).vstack(
        pl.DataFrame({"user": [n] * 3, "item": [6, 7, 8], "time": [START] * 3})
    ).write_csv(tmp_path / "log.csv")
    folder = prepare(f"--data.path={tmp_path / 'log.csv'}", *TABLE, "--split=leave_last_basket")
    targets, counts = np.unique([r["items"][r["test"]] for r in stored(folder) if r["test"] > 0], return_counts=True)
    assert sorted(map(int, targets)) == [3, 4, 5]
    assert abs(counts - 1000).max() < 5 * 1000**0.5
    split = open_dataset(folder, verify=False).splits["test"]
    read = split.read(np.arange(len(split)))
    assert set(read.lengths.tolist()) == {2}
    assert not read.are_repeated().any()
    assert split.are_tied is not None
    assert not split.are_tied.any()
    ids = pl.read_parquet(folder / "items.parquet").sort("item")["original"].to_numpy()
    assert read.negatives is not None
    assert {*ids[read.negatives["uniform"]].ravel().tolist()} <= {6, 7, 8}


@pytest.mark.parametrize("option", ["--split=leave_last_basket", "--preprocessing.ties=shuffle"])
def test_baskets_need_times(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    pl.DataFrame({"user": ["a"] * 4, "item": [1, 2, 3, 4]}).write_csv(tmp_path / "log.csv")
    arguments = ["--data.source=table", "--user=user", "--item=item", f"--data.path={tmp_path / 'log.csv'}", option]
    assert preprocessing.main(["--config=/dev/null", f"--data.dataset_dir={tmp_path / 'd'}", *arguments]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert option.partition("=")[0].removeprefix("--").rpartition(".")[2] in line


def test_only_tables_have_an_order_column(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("1 2\n1 3\n1 4\n")
    data = Data(source="sequences", path=str(tmp_path / "log.txt"), order_column="line")
    with one_line("data.order_column = line: "):
        open_interactions(data, Preprocessing())
