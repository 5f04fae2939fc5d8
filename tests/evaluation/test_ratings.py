"""Errors on held-out ratings: as written-out arithmetic, and the same on any number of processes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert4rec.config.tables import Config
from bert4rec.dataset.histories import Histories, TrainingPairs
from bert4rec.dataset.reader import open_dataset
from bert4rec.evaluation import ratings
from bert4rec.evaluation.ratings import mean_errors, n_rating_batches, rating_errors
from bert4rec.feed.pairs import TEST_PAIRS, TRAINING_PAIRS, PairExamples, parts_of_pairs
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DivergenceError
from tests.evaluation import jobs

MSE = {"seed": 3, "loss": "mse", "rating_holdout": 0.2, "rating_validation": 0.1}


@pytest.fixture
def pairs(rated_folder: Path) -> TrainingPairs:
    return TrainingPairs(Histories(rated_folder, 10**6))


class Constant(torch.nn.Module):
    """Rates all pairs alike."""

    def __init__(self, rating: float) -> None:
        super().__init__()
        self.rating = rating

    def rate(self, pairs: Any) -> torch.Tensor:
        return torch.full_like(pairs.ratings, self.rating)


def values(examples: PairExamples) -> list[tuple[int, int, float]]:
    users, items, ratings = examples.read(np.arange(len(examples)))
    return list(zip(users.tolist(), items.tolist(), ratings.tolist(), strict=True))


def test_errors_written_out(pairs: TrainingPairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratings, "PAIRS_AT_ONCE", 50)
    held_out = parts_of_pairs(pairs, **MSE)[TEST_PAIRS]
    calls: list[int] = []

    def errors(rating: float) -> dict[str, float]:
        model: Any = Constant(rating)
        return rating_errors(model, held_out, Partition(), torch.device("cpu"), lambda: calls.append(1))

    found = errors(3.0)
    wrong = [rating - 3 for _, _, rating in values(held_out)]
    assert found == pytest.approx(
        {"pairs": len(wrong), "RMSE": math.sqrt(sum(e * e for e in wrong) / len(wrong)),
         "MAE": sum(map(abs, wrong)) / len(wrong)}
    )  # fmt: skip
    assert len(calls) == n_rating_batches(held_out, Partition()) == math.ceil(len(wrong) / 50)
    with pytest.raises(DivergenceError):
        errors(math.nan)


def test_errors_of_means_written_out(pairs: TrainingPairs, rated_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the mean rating, and of damped means of items and users, by the training's pairs alone."""
    monkeypatch.setattr(ratings, "PAIRS_AT_ONCE", 100)
    parts = parts_of_pairs(pairs, **MSE)
    trained, tested = values(parts[TRAINING_PAIRS]), values(parts[TEST_PAIRS])
    mean = np.mean([r for *_, r in trained])
    item_means = {i: sum(r - mean for _, j, r in trained if j == i) for i in {i for _, i, _ in trained}}
    item_means = {i: total / (25 + sum(j == i for _, j, _ in trained)) for i, total in item_means.items()}
    user_means = {u: sum(r - mean - item_means[i] for v, i, r in trained if v == u) for u in {u for u, *_ in trained}}
    user_means = {u: total / (10 + sum(v == u for v, *_ in trained)) for u, total in user_means.items()}
    left = [r - mean - item_means.get(i, 0.0) - user_means.get(u, 0.0) for u, i, r in tested]
    found = mean_errors(pairs, parts, open_dataset(rated_folder))
    assert found == pytest.approx(
        {"baseline_RMSE": math.sqrt(np.mean([(r - mean) ** 2 for *_, r in tested])),
         "means_RMSE": math.sqrt(np.mean(np.square(left)))}
    )  # fmt: skip
    assert found["means_RMSE"] < found["baseline_RMSE"]


def test_any_number_of_processes_finds_the_same(pools: Any, rated_config: Callable[..., Config]) -> None:
    alone = pools(1).run(jobs.rating_errors, rated_config())
    assert alone[0]["pairs"] > 90
    assert pools(2).run(jobs.rating_errors, rated_config()) == 2 * alone
    assert pools(3).run(jobs.rating_errors, rated_config()) == 3 * alone
