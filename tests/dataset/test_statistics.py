"""What is said of a dataset: the lengths of its histories, the report of a run, the order."""

import numpy as np

from bert4rec.dataset.format import describe, lengths_of


def test_the_lengths_are_those_of_numpy() -> None:
    lengths = np.array([1, 2, 3, 4, 7, 8, 100])
    assert lengths_of(lengths) == {
        "min": 1, "median": 4.0, "third_quartile": 8, "mean": 17.86, "max": 100,
        "histogram": [[1, 1, 1], [2, 3, 2], [4, 7, 2], [8, 15, 1], [16, 31, 0], [32, 63, 0], [64, 127, 1]],
    }  # fmt: skip


def test_the_report_of_a_run() -> None:
    metadata = {
        "source": "table", "order": {"by": "time", "column": "at", "newest_first": False},
        "rows_read": 1_000_010, "bad_rows": {"empty line": 10}, "dropped": {"min_rating": 999_000}, "rows": 1000,
        "users": 20, "users_read": 40, "items": 50, "items_read": 50, "density": 1.0, "time_span": [0, 86_400],
        "train_positions": 30, "validation_users": 5, "test_users": 20, "preprocessing": {"n_eval_negatives": 100},
        "repeated_targets": {"validation": {"users": 0, "of": 5}, "test": {"users": 1, "of": 20}},
        "left_out": {"validation": {"users": 0, "of": 5}, "test": {"users": 0, "of": 20}},
        "lengths": {"min": 1, "median": 3.0, "mean": 50.0, "max": 90, "histogram": [[1, 1, 4], [64, 127, 16]]},
    }  # fmt: skip
    report = describe(metadata)
    numbers = ["1,000,010", "-10", "-999,000", "1,000", "20", "100.0000%", "1970-01-01", "1970-01-02", "30", "at"]
    assert [number for number in [*numbers, "5.0 %"] if number not in report] == []
    assert [line.count("█") for line in report.splitlines()[-2:]] == [10, 40]
