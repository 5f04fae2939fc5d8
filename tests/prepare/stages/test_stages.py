"""Each stage by hand: rows read, ordered, limited, numbered, split, surveyed and described."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.config.load import load_config
from bert4rec.config.tables import Preprocessing
from bert4rec.dataset.format import NO_ITEM
from bert4rec.prepare import rows
from bert4rec.prepare.engine import describe_rows
from bert4rec.prepare.histories import (
    HistoryStats,
    choose_split,
    instant_of_share,
    item_table,
    sample_users,
)
from bert4rec.prepare.ordering import Parts, SortedRuns
from bert4rec.prepare.rows import OrderedRows, RawRows, order_rows, read_rows
from bert4rec.prepare.survey import LogSurvey
from bert4rec.prepare.writer import in_order
from bert4rec.sources.progress import BadRows, Progress
from bert4rec.sources.synthetic import GeneratedSource
from tests.checks import one_line

NO_LOG = LogSurvey(0, has_times=False)


def ordered(folder: Path, *parts: list[tuple[object, list[int]]], n_known: int = 0) -> OrderedRows:
    """Rows of four items: of each part its users with the codes of their items."""
    rows = Parts(folder)
    for users in parts:
        cells = [(user, code) for user, codes in users for code in codes]
        kind = pl.Int64 if all(isinstance(user, int) for user, _ in cells) else pl.String
        rows.add(pl.DataFrame(cells, {"user": kind, "item": pl.Int32}, orient="row"))
    codes = [code for users in parts for _, some in users for code in some]
    return OrderedRows(rows, pl.Series(["a", "b", "c", "d"]), np.bincount(codes, minlength=4), n_known)


class Source:
    """A hundred bytes: of each part how many rows are bad, how many good, and how many bytes have been read."""

    n_bytes = 100

    def __init__(self, frame: pl.DataFrame, *parts: tuple[int, int, int]) -> None:
        self.bad, self._frame, self._parts = BadRows(), frame, parts

    def __iter__(self) -> Iterator[tuple[pl.DataFrame, int]]:
        for n_bad, n_good, done in self._parts:
            self.bad.add("empty line", n_bad)
            self.bad.show(Path("t.csv"), "line", 7, "is empty")
            yield self._frame[:n_good], done


def read(place: Path, source: Any, **settings: Any) -> RawRows:
    return read_rows(source, Preprocessing(**settings), None, folder=place, run_bytes=10**6, progress=Progress())


ALIKE = pl.DataFrame({"user": [1] * 1000, "item": [1] * 1000})


def test_the_share_of_bad_rows_is_that_of_all_rows_read_so_far() -> None:
    def run(*parts: tuple[int, int, int], few: int = 0, share: float = 0.002) -> int:
        with tempfile.TemporaryDirectory() as place, patch.object(rows, "FEW_BAD_ROWS", few):
            return len(read(Path(place), Source(ALIKE, *parts), max_bad_rows=share))

    assert run((2, 3, 100), (0, 997, 100)) == 1000  # two bad rows before a quote that nothing closes, and all others
    assert run((10, 90, 100), few=10) == 90  # ten rows pass, as a tenth of all
    for words, parts, few, share in (
        ("3 of 1,003 rows", [(3, 1000, 100)], 0, 0.002),
        ("50 of 1,625 rows", [(50, 500, 50), (0, 75, 100), (0, 1000, 100)], 0, 0.002),
        ("150 of 153 rows", [(50, 1, 30), (50, 1, 60), (50, 1, 100)], 0, 0.002),  # not those of its first parts alone
        ("first 100 rows", [(50, 0, 30), (50, 0, 60), (50, 1000, 100)], 0, 0.002),  # said at once
        ("11 of 500 rows", [(11, 489, 100)], 10, 0.002), ("3 of 29 rows", [(3, 26, 100)], 10, 0.002),
        ("max_bad_rows = 0", [(1, 999, 100)], 10, 0.0),
    ):  # fmt: skip
        with one_line("t.csv, line 7: ", words):
            run(*parts, few=few, share=share)
    # while reading, a tenth is one of all that are to come: here of 300 rows, the first third of which is read
    assert run((10, 90, 33), (0, 100, 66), (0, 100, 100), few=10) == 290


ROWS = pl.DataFrame({"user": [2, 1, 2, 2, 3], "item": [30, 10, 20, 10, 10], "time": [3, 1, 1, 2, 9]})


def run_order(
    place: Path, settings: Preprocessing, *, frame: pl.DataFrame = ROWS, newest_first: bool = False
) -> OrderedRows:
    raw = RawRows(SortedRuns(place / "known", run_bytes=10**6), SortedRuns(place / "new", run_bytes=10**6))
    raw.new.add(frame)
    raw.items.add(frame.select("item"))
    progress, also = Progress(), [pl.Series([40])]
    order = {"newest_first": newest_first}
    return order_rows(raw, settings, order, folder=place / "parts", progress=progress, also=also)


def test_rows_are_in_order_of_users_and_times_and_items_are_codes(tmp_path: Path) -> None:
    found = run_order(tmp_path, Preprocessing(time_until="9", min_user_interactions=2))
    assert [part.select("user", "item").rows() for part in found.parts] == [[(2, 1), (2, 0), (2, 2)]]
    assert (found.items.to_list(), found.counts.tolist()) == ([10, 20, 30, 40], [1, 1, 1, 0])
    assert (found.n_rows_read, found.n_users_read, found.n_items_read) == (5, 3, 3)
    assert found.dropped == {"time_until": 1, "min_user_interactions": 1}


@pytest.mark.parametrize(("newest_first", "codes"), [(False, [0, 2, 1, 0, 0]), (True, [0, 0, 1, 2, 0])])
def test_without_times_the_order_of_the_file_counts_and_users_wait_for_rare_items(
    tmp_path: Path, newest_first: bool, codes: list[int]
) -> None:
    settings = Preprocessing(min_user_interactions=2, min_item_interactions=2)
    found = run_order(tmp_path, settings, frame=ROWS.drop("time"), newest_first=newest_first)
    assert [part["item"].to_list() for part in found.parts] == [codes]
    assert found.dropped == {}


def test_a_split_by_time_without_times_is_refused(tmp_path: Path) -> None:
    with one_line("", "preprocessing.split"):
        choose_split(Preprocessing(split="time"), ordered(tmp_path / "parts", [(1, [0])]).parts)


@pytest.mark.parametrize(("at", "instant"), [("30", 30), ("1970-01-01T00:00:20", 20), (0.5, 21)])
def test_the_instant_is_named_or_that_of_a_share_of_the_rows(tmp_path: Path, at: float | str, instant: int) -> None:
    parts = Parts(tmp_path / "parts")
    parts.add(pl.DataFrame({"time": [10, 20, 30, 40]}))
    rule, found = choose_split(Preprocessing(split="time", split_at=at), parts)
    marked = pl.DataFrame({"items": [[1, 2, 3, 4]], "times": [[10, 20, 30, 40]]}).select(**rule)
    assert (found, marked["before"].to_list()) == (instant, [sum(time < instant for time in (10, 20, 30, 40))])


NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("lengths", "times", "n_warnings"),
    [
        ([3, 4], (NOW - 5, NOW + 3600), 0),  # an hour ahead: a time zone
        ([3, 4], (NOW - 5, NOW + 90_000), 1), ([3, 0, 4], None, 0),
        ([1, 0], (NOW, NOW), 1),  # of its one user: a single row is no reason to doubt the times
    ],
)  # fmt: skip
def test_what_is_usual_is_not_warned_of(lengths: list[int], times: tuple[int, int] | None, n_warnings: int) -> None:
    found = HistoryStats(
        np.array(lengths), np.zeros(4, np.int64), np.zeros(len(lengths), bool), times, LogSurvey(0, has_times=False)
    )
    assert len(found.warnings(is_table=True, now=NOW)) == n_warnings


def test_items_stand_by_dense_id_and_those_dropped_are_left_out(tmp_path: Path) -> None:
    rows = ordered(tmp_path / "parts", [(1, [0, 0, 2, 3])])
    survey = HistoryStats(np.array([4]), np.array([1, 1, 0]), np.array([False]), None, NO_LOG)
    ids = np.array([2, NO_ITEM, 0, 1], np.int32)
    titles = pl.DataFrame({"item": ["d", "b"], "title": ["Drei", "Bee"]})
    found = item_table(rows, ids, survey, titles)
    assert found.rows() == [(0, "c", 1, 1, None), (1, "d", 1, 1, "Drei"), (2, "a", 2, 0, None)]
    assert item_table(rows, ids, survey, None).columns == ["item", "original", "count", "train_count"]


def test_threads_keep_the_order() -> None:
    begun: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(9):
            begun.append(number)
            yield number

    results = in_order(lambda number: number**2, numbers(), n_threads=2)
    assert next(results) == 0
    assert begun == [0, 1, 2]
    assert list(results) == [number**2 for number in range(1, 9)]


def test_rows_add_up_and_filters_stand_in_the_order_in_which_they_work(tmp_path: Path) -> None:
    rows = ordered(tmp_path / "parts", [(1, [0, 0, 2]), (2, [3])])
    rows.n_rows_read, rows.dropped = 9, Counter({"min_user_interactions": 2, "repeats": 3, "min_rating": 0})
    source = GeneratedSource("random", n_users=20, n_items=20, n_rows=100, seed=1)
    source.bad.add("empty line", 2)
    survey = HistoryStats(
        np.array([3, 1, 0]), np.array([1, 0, 1]), np.array([False] * 3), (5, 9), LogSurvey(0, has_times=False)
    )
    found = describe_rows(load_config(None), source, rows, survey, {}, {})
    assert (found["rows_read"], found["rows"], found["bad_rows"]) == (11, 4, {"empty line": 2})
    assert list(found["dropped"].items()) == [("repeats", 3), ("min_user_interactions", 2)]
    assert (found["users"], found["items"], found["density"]) == (3, 3, 4 / 9)
    assert (found["lengths"]["max"], found["time_span"], found["train_positions"]) == (3, [5, 9], 2)
    assert (found["order"], found["has_times"], found["extends"]) == (source.order, False, False)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2_000_000), max_size=9), min_size=1, max_size=4).filter(any),
    st.floats(0.01, 0.99),
    st.sampled_from([4, 1 << 16]),
)
def test_the_instant_of_a_share_is_the_first_that_leaves_no_more(
    parts: list[list[int]], share: float, bins: int
) -> None:
    found = instant_of_share(lambda: [pl.Series(part, dtype=pl.Int64) for part in parts], share, n_bins=bins)
    every = [time for part in parts for time in part]
    assert sum(time >= found for time in every) <= share * len(every) < sum(time >= found - 1 for time in every)


def test_the_validation_sample_is_seeded() -> None:
    users = np.arange(1, 40, 2)

    def sample(n_users: int | Literal["all"], seed: int) -> list[int]:
        return sample_users(users, n_users=n_users, seed=seed).tolist()

    assert sample("all", 1) == sample(100, 1) == users.tolist()
    assert len(set(sample(5, 1))) == 5
    assert set(sample(5, 1)) < set(users.tolist())
    assert sample(5, 1) == sample(5, 1) != sample(5, 2)
