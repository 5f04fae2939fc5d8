"""Frames of any size become frames of one size, with the same rows."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.order.chunks import Chunks, chunked


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
    assert [[rows_of(full) for full in chunks.add(frame)] for frame in given] == [
        [],
        [[1, 2, 3]],
        [[4, 5, 6], [7, 8, 9]],
    ]
    assert [rows_of(frame) for frame in chunks.rest()] == [[10]]
    assert list(chunks.rest()) == []
