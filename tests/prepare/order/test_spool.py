"""The external sort, and what is said of a dataset."""

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.statistics import describe, lengths_of, order_line
from bert4rec.prepare.order.spool import Parts, Spool

FRAMES = st.lists(st.lists(st.tuples(st.integers(-3, 20), st.integers(0, 5)), max_size=30), max_size=8)


def frame_of(rows: list[tuple[int, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"user": pl.Int64, "item": pl.Int64}, orient="row")


@settings(max_examples=60, deadline=None)
@given(FRAMES, st.sampled_from([50, 400, 10**6]), st.integers(0, 8))
def test_rows_come_back_user_by_user_in_the_order_in_which_they_came(
    frames: list[list[tuple[int, int]]], run_bytes: int, as_text_from: int
) -> None:
    """From frame `as_text_from` on ids are text: those before become text, and sort as such."""
    with tempfile.TemporaryDirectory() as place:
        spool = Spool(Path(place) / "spool", run_bytes=run_bytes)
        for i, rows in enumerate(frames):
            spool.add(frame_of(rows).cast({"user": pl.String} if i >= as_text_from else {}))
        parts = [part.collect() for part in spool.partitions()]
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


def test_parts_are_replaced_and_read_by_columns(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "parts")
    for rows in ([(1, 2)], [(3, 4), (5, 6)]):
        parts.add(frame_of(rows))
    parts.replace(0, frame_of([(7, 8)]))
    assert [part.rows() for part in parts] == [[(7, 8)], [(3, 4), (5, 6)]]
    assert [part.rows() for part in parts.read("item")] == [[(8,)], [(4,), (6,)]]
    assert (len(parts), parts.columns) == (2, ["user", "item"])


def test_the_lengths_are_those_of_numpy() -> None:
    lengths = np.array([1, 2, 3, 4, 7, 8, 100])
    assert lengths_of(lengths) == {
        "min": 1, "median": 4.0, "mean": 17.86, "max": 100,
        "histogram": [[1, 1, 1], [2, 3, 2], [4, 7, 2], [8, 15, 1], [64, 127, 1]],
    }  # fmt: skip


def test_the_report_of_a_run() -> None:
    metadata = {
        "source": "table", "order": {"by": "time", "column": "at", "newest_first": False},
        "rows_read": 1_000_010, "bad_rows": {"empty line": 10}, "dropped": {"min_rating": 999_000}, "rows": 1000,
        "users": 20, "users_read": 40, "items": 50, "items_read": 50, "density": 1.0, "time_span": [0, 86_400],
        "train_windows": 30, "validation_users": 5, "test_users": 20, "preprocessing": {"n_eval_negatives": 100},
        "repeated_targets": {"validation": {"users": 0, "of": 5}, "test": {"users": 1, "of": 20}},
        "left_out": {"validation": {"users": 0, "of": 5}, "test": {"users": 0, "of": 20}},
        "lengths": {"min": 1, "median": 3.0, "mean": 50.0, "max": 90, "histogram": [[1, 1, 4], [64, 127, 16]]},
    }  # fmt: skip
    assert describe(metadata).splitlines() == [
        "rows read                                 1,000,010",
        "  unusable: empty line                          -10",
        "  dropped by min_rating                    -999,000",
        "rows kept                                     1,000",
        "users                                            20  of 40 read",
        "items                                            50  of 50 read",
        "density                                   100.0000%",
        "from, to                                 1970-01-01  1970-01-02",
        "train windows                                    30",
        "validation users                                  5",
        "test users                                       20",
        "  target seen before                              1  5.0 %",
        "",
        "order: by time (column at)",
        "interactions of a user: 1 to 90, median 3, mean 50.0",
        "              1–1           4 ██████████",
        "           64–127          16 ████████████████████████████████████████",
    ]


@pytest.mark.parametrize(
    ("source", "order", "line"),
    [
        ("ml-1m", {"by": "time", "column": None, "newest_first": False}, "order: by time"),
        ("sequences", {"by": "file", "column": None, "newest_first": False}, "order: as the file's rows stand"),
        (
            "goodreads", {"by": "file", "column": None, "newest_first": True},
            "order: as the file's rows stand, the last one first",
        ),
        (
            "table", {"by": "file", "column": None, "newest_first": True},
            "order: as the file's rows stand, the last one first (no time column is named)",
        ),
    ],
)  # fmt: skip
def test_the_order_in_one_line(source: str, order: dict[str, object], line: str) -> None:
    assert order_line(source, order) == line
