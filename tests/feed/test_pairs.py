"""Pairs of a dataset: read where they are, held out at random."""

from pathlib import Path

import datasets
import numpy as np
import pytest

from bert4rec.dataset.histories import Histories, TrainingPairs
from bert4rec.feed.pairs import TEST_PAIRS, TRAINING_PAIRS, VALIDATION_PAIRS, PairExamples, parts_of_pairs

MSE = {"seed": 3, "loss": "mse", "rating_holdout": 0.1, "rating_validation": 0.05}


@pytest.fixture
def training_pairs(rated_folder: Path) -> TrainingPairs:
    return TrainingPairs(Histories(rated_folder, 10**6))


@pytest.fixture
def pairs(rated_folder: Path) -> list[tuple[int, int, float]]:
    """All of them as another library reads them."""
    rows = datasets.load_from_disk(str(rated_folder / "histories"))
    return [(row["user"], row["items"][at], row["ratings"][at]) for row in rows for at in range(row["n_train"])]


def read(examples: PairExamples, indices: list[int]) -> list[tuple[int, int, float]]:
    found = examples.batch(np.array(indices), 0)
    users = found.users.ids[found.places]
    return list(zip(users.tolist(), found.targets.tolist(), found.ratings.tolist(), strict=True))


def test_pairs_are_those_of_the_folder(training_pairs: TrainingPairs, pairs: list[tuple[int, int, float]]) -> None:
    everything = PairExamples(training_pairs, range(len(training_pairs)), seed=None, has_ratings=True)
    assert len(everything) == len(pairs) > 900
    assert read(everything, list(range(len(pairs)))) == pairs
    assert read(everything, [5, 900, 5, 0]) == [pairs[0], pairs[5], pairs[5], pairs[900]]


def test_parts_share_the_pairs_out_by_the_seed(training_pairs: TrainingPairs) -> None:
    parts = parts_of_pairs(training_pairs, **MSE)
    numbers = {name: part.numbers(np.arange(len(part))).tolist() for name, part in parts.items()}
    n = len(training_pairs)
    assert {name: len(part) for name, part in numbers.items()} == {
        TEST_PAIRS: round(0.1 * n),
        VALIDATION_PAIRS: round(0.05 * n),
        TRAINING_PAIRS: n - round(0.1 * n) - round(0.05 * n),
    }  # fmt: skip
    assert sorted(number for part in numbers.values() for number in part) == list(range(n))
    assert numbers[TEST_PAIRS] != sorted(numbers[TEST_PAIRS])
    without = parts_of_pairs(training_pairs, **MSE | {"rating_validation": 0.0})
    assert without[TEST_PAIRS].numbers(np.arange(20)).tolist() == numbers[TEST_PAIRS][:20]
    others = parts_of_pairs(training_pairs, **MSE | {"seed": 4})
    assert others[TEST_PAIRS].numbers(np.arange(20)).tolist() != numbers[TEST_PAIRS][:20]


def test_rankings_are_learnt_from_all_pairs_without_ratings(training_pairs: TrainingPairs) -> None:
    parts = parts_of_pairs(training_pairs, **MSE | {"loss": "bpr"})
    assert parts.keys() == {TRAINING_PAIRS}
    assert len(parts[TRAINING_PAIRS]) == len(training_pairs)
    assert parts[TRAINING_PAIRS].batch(np.arange(3), 0).ratings is None
