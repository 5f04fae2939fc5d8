"""Filters, the external sort, dense ids and histories: what is kept, in which order, under which number."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.config.tables import Preprocessing
from bert4rec.dataset.format import NO_ITEM
from bert4rec.prepare.ordering import Chunks, SortedRuns, chunked, item_ids
from bert4rec.prepare.rows import apply, filters_by_row, filters_in_order
from tests.checks import one_line

ROWS = pl.DataFrame({"user": [1, 1, 1, 1, 2, 2], "item": [7, 7, 8, 7, 7, 7], "at": [0, 1, 2, 3, 4, 5]})


@pytest.mark.parametrize("setting", [{"time_from": "1970-01-02"}, {"time_until": "2024"}, {"min_rating": 4}])
def test_a_filter_by_what_the_source_lacks_is_refused(setting: dict[str, Any]) -> None:
    with one_line(f"preprocessing.{next(iter(setting))} = ", "remove this setting"):
        filters_by_row(Preprocessing(**setting), ROWS.columns)


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        ({"min_rating": 4}, [2, 3]), ({"time_from": "1970-01-01T00:00:01"}, [1, 2, 3]),
        ({"time_until": "1970-01-01T00:00:02"}, [0, 1]), ({"only_read": True}, [0, 3]), ({}, [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_rows_are_filtered_one_by_one(setting: dict[str, Any], kept: list[int]) -> None:
    values = {"time": [0, 1, 2, 3], "rating": [3.9, 1.0, 4.0, 5.0], "is_read": [True, False, False, True]}
    rows, dropped = pl.DataFrame(values), Counter[str]()
    assert apply(filters_by_row(Preprocessing(**setting), rows.columns), rows, dropped)["time"].to_list() == kept
    assert dropped == dict.fromkeys(setting, 4 - len(kept))


def test_filters_follow_each_other_and_what_each_drops_is_counted() -> None:
    filters, dropped = filters_in_order(Preprocessing(repeats="last", min_user_interactions=2)), Counter(repeats=1)
    assert apply(filters, ROWS, dropped)["at"].to_list() == [2, 3]
    assert dropped == {"repeats": 4, "min_user_interactions": 1}


FRAMES = st.lists(st.lists(st.tuples(st.integers(-3, 20), st.integers(0, 5)), max_size=30), max_size=8)


def frame_of(rows: list[tuple[int, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"user": pl.Int64, "item": pl.Int64}, orient="row")


@settings(max_examples=30, deadline=None)
@given(FRAMES, st.sampled_from([50, 400, 10**6]), st.integers(0, 8))
def test_rows_come_back_user_by_user_in_the_order_in_which_they_came(
    frames: list[list[tuple[int, int]]], run_bytes: int, as_text_from: int
) -> None:
    """From frame `as_text_from` on ids are text: those before become text, and sort as such."""
    with tempfile.TemporaryDirectory() as place:
        spool = SortedRuns(Path(place) / "spool", run_bytes=run_bytes)
        for i, rows in enumerate(frames):
            spool.add(frame_of(rows).cast({"user": pl.String} if i >= as_text_from else {}))
        parts = list(spool.partitions())
        spool.remove()
        assert not list(Path(place).iterdir())
    rows = [row for part in frames for row in part]
    is_text = any(part for part in frames[as_text_from:])
    key = (lambda row: str(row[0])) if is_text else (lambda row: row[0])
    wanted = sorted(((str(user) if is_text else user, item) for user, item in rows), key=lambda row: key(row))
    assert [row for part in parts for row in part.sort("user", maintain_order=True).rows()] == wanted
    users = [set(part["user"]) for part in parts]
    assert sum(map(len, users)) == len({user for user, _ in wanted})  # no user stands in two parts
    assert spool.n_rows == len(rows)


def rows_of(frame: pl.DataFrame) -> list[int]:
    return frame["a"].to_list()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 7))
def test_all_rows_come_in_order_in_frames_of_one_size_of_which_the_last_may_be_smaller(
    lengths: list[int], size: int
) -> None:
    frames = [pl.DataFrame({"a": [10 * i + k for k in range(n)]}, {"a": pl.Int64}) for i, n in enumerate(lengths)]
    found = [rows_of(frame) for frame in chunked(frames, size)]
    rows = [10 * i + k for i, n in enumerate(lengths) for k in range(n)]
    assert found == [rows[first : first + size] for first in range(0, len(rows), size)]


def test_a_frame_is_given_back_as_soon_as_it_is_full() -> None:
    chunks = Chunks(3)
    given = [pl.DataFrame({"a": rows}) for rows in ([1, 2], [3], [4, 5, 6, 7, 8, 9, 10])]
    filled = [[rows_of(full) for full in chunks.add(frame)] for frame in given]
    assert filled == [[], [[1, 2, 3]], [[4, 5, 6], [7, 8, 9]]]
    assert [[rows_of(frame) for frame in chunks.rest()] for _ in range(2)] == [[[10]], []]


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(-(10**12), 10**12), min_size=1, max_size=50), st.integers(0, 5))
def test_ids_are_a_permutation_by_seed_of_the_sorted_originals(originals: set[int], seed: int) -> None:
    found = item_ids(pl.Series(sorted(originals)), np.ones(len(originals), bool), seed=seed)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(originals))
    assert found.tolist() == order.tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.sets(st.integers(0, 25), max_size=10))
def test_known_items_keep_their_ids_and_new_ones_come_after(kept: list[bool], old: set[int]) -> None:
    known = pl.DataFrame({"original": [str(item) for item in old], "item": range(len(old))})
    known = known.cast({"original": pl.String, "item": pl.Int32})
    originals = sorted({*range(len(kept)), *old})
    mask = np.array([kept[item] if item < len(kept) else False for item in originals])
    found = dict(zip(originals, item_ids(pl.Series(originals), mask, seed=1, known=known).tolist(), strict=True))
    assert {str(item): found[item] for item in old} == dict(known.rows())
    new = [item for item, is_kept in zip(originals, mask, strict=True) if is_kept and item not in old]
    assert sorted(found[item] for item in new) == list(range(len(old), len(old) + len(new)))
    assert all(found[item] == NO_ITEM for item in originals if item not in {*old, *new})


def test_many_small_frames_take_time_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad lines cut a file into small frames; their sizes are not added up again with each further one."""
    spool, frame, sizes = SortedRuns(tmp_path / "spool", run_bytes=10**9), frame_of([(1, 2)]), []

    def size(self: pl.DataFrame) -> int:
        sizes.append(16)
        return 16

    monkeypatch.setattr(pl.DataFrame, "estimated_size", size)
    for _ in range(300):
        spool.add(frame)
    assert len(sizes) <= 2 * 300
    assert spool.n_bytes == 16 * 300
