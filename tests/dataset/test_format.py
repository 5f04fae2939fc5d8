"""The form of the dataset folder, to the letter: what other programs read; and its card."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bert4rec.dataset.format import dataset_card, history_columns, lengths_of, negative_columns

HISTORIES = ["user", "items", "times", "n_train", "validation", "test"]
NEGATIVES = ["user", "popular_negatives", "uniform_negatives"]
NOBODY = {"users": 0, "of": 0}


def card_of(n_evaluated: int) -> list[str]:
    """The lines of the card of a small dataset."""
    metadata: dict[str, Any] = {
        "source": "table", "order": {"by": "file", "column": None, "newest_first": False}, "users": 2_000, "items": 3,
        "rows": 50_000, "rows_read": 50_000, "bad_rows": {}, "dropped": {}, "users_read": 2_000, "items_read": 3,
        "density": 0.5, "time_span": None, "train_positions": 46_500, "test_users": n_evaluated,
        "validation_users": n_evaluated, "split_instant": 1_600_000_000,
        "repeated_targets": {"test": {"users": 305, "of": 1_500}, "validation": {"users": 3, "of": 12}},
        "left_out": {"test": {"users": 1_500, "of": 1_500}, "validation": NOBODY},
        "lengths": {"min": 2, "median": 2.5, "mean": 2.5, "max": 3, "histogram": [[2, 3, 2_000]]},
        "preprocessing": {"split": "leave_one_out", "n_eval_negatives": 100},
    }  # fmt: skip
    folders = {"histories": (2_000, HISTORIES), "negatives": (n_evaluated, NEGATIVES)}
    return dataset_card(metadata, folders, ("users", "items")).splitlines()


@pytest.mark.parametrize(("n_evaluated", "names"), [(1_500, ["histories", "negatives"]), (0, ["histories"])])
def test_the_head_names_the_folders_that_have_rows(n_evaluated: int, names: list[str]) -> None:
    card = card_of(n_evaluated)
    configs = [line for name in names for line in (f"- config_name: {name}", f"  data_files: {name}/*.arrow")]
    head = card[: card.index("---", 1)]
    assert head[head.index("configs:") + 1 :] == configs


def test_the_folders_have_these_columns_of_these_types() -> None:
    numbers, offsets = pa.list_(pa.int32()), dict.fromkeys(("n_train", "validation", "test"), pa.int32())
    lists = {"times": pa.list_(pa.int64()), "ratings": pa.list_(pa.float32())}
    for has, known in ((False, {}), (True, lists)):
        found = history_columns(has_times=has, has_ratings=has)
        assert [*found.items()] == [*({"user": pa.int32(), "items": numbers} | known | offsets).items()]
    negatives = {"user": pa.int32(), "popular_negatives": numbers, "uniform_negatives": numbers}
    assert [*negative_columns().items()] == [*negatives.items()]


def test_the_lengths_are_those_of_numpy() -> None:
    assert lengths_of(np.array([1, 2, 3, 4, 7, 8, 100])) == {
        "min": 1, "median": 4.0, "third_quartile": 8, "mean": 17.86, "max": 100,
        "histogram": [[1, 1, 1], [2, 3, 2], [4, 7, 2], [8, 15, 1], [16, 31, 0], [32, 63, 0], [64, 127, 1]],
    }  # fmt: skip
