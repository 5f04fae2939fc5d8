"""Filters by row, the external sort, and the instant of a split."""

import tempfile
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.histories import instant_of_share
from bert4rec.prepare.ordering import SortedRuns
from bert4rec.prepare.rows import apply, filters_by_row


def test_filters_follow_each_other_and_what_each_drops_is_counted() -> None:
    limits = {"min_rating": 4, "time_from": "1970-01-01T00:00:01", "time_until": "1970-01-01T00:00:04"}
    rows = pl.DataFrame(
        {"time": range(5), "rating": [4.0, 3.9, 4.0, 5.0, 4.5], "is_read": [True, True, True, False, True]}
    )
    dropped = Counter[str]()
    filters = filters_by_row(Preprocessing(only_read=True, **limits), rows.columns)  # type: ignore[arg-type]
    assert apply(filters, rows, dropped)["time"].to_list() == [2]
    assert dropped == dict.fromkeys([*limits, "only_read"], 1)


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


def test_many_small_frames_take_time_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad lines cut a file into small frames; their sizes are not added up again with each further one."""
    spool, frame, sizes = SortedRuns(tmp_path / "spool", run_bytes=10**9), frame_of([(1, 2)]), [16] * 600
    monkeypatch.setattr(pl.DataFrame, "estimated_size", lambda _: sizes.pop())
    for _ in range(300):
        spool.add(frame)
    assert spool.n_bytes == 16 * 300


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
