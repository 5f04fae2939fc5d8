"""What is said of a dataset: the lengths of its histories, the report of a run, the order."""

import numpy as np

from bert4rec.dataset.format import lengths_of


def test_the_lengths_are_those_of_numpy() -> None:
    lengths = np.array([1, 2, 3, 4, 7, 8, 100])
    assert lengths_of(lengths) == {
        "min": 1, "median": 4.0, "third_quartile": 8, "mean": 17.86, "max": 100,
        "histogram": [[1, 1, 1], [2, 3, 2], [4, 7, 2], [8, 15, 1], [16, 31, 0], [32, 63, 0], [64, 127, 1]],
    }  # fmt: skip
