"""What is said of a dataset: the lengths of its histories, the report of a run, the order."""

import numpy as np
import pytest

from bert4rec.dataset.statistics import describe, lengths_of, order_line


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
