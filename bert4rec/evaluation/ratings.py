"""Held-out ratings: RMSE and MAE of a model, and RMSE of mean ratings as baselines."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bert4rec.dataset.histories import Ints, TrainingPairs
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.batches import assigned, chunks
from bert4rec.feed.batches import Indices
from bert4rec.feed.pairs import TEST, VALIDATION, PairExamples
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DivergenceError

PAIRS_AT_ONCE = 32_768
ITEM_DAMPING, USER_DAMPING = 25, 10  # additional ratings at the mean for each item and user

Floats = npt.NDArray[np.float64]


class Rated(NamedTuple):
    """Hold users, items and ratings of pairs, each [B]."""

    users: Ints
    items: Ints
    ratings: Floats


class RatingMeter:
    """Measures rating errors on all processes of `partition`, which make the same calls.

    `between` is called between batches. Batches do not depend on the number of processes, and their sums are added in
    one order: any number of processes gives exactly the same errors.
    """

    def __init__(self, partition: Partition, device: torch.device, between: Callable[[], None] = lambda: None) -> None:
        self._partition, self._device, self._between = partition, device, between

    def n_batches(self, held_out: PairExamples) -> int:
        """Return the number of calls of `between`."""
        return self._partition.largest(len(list(_batches(len(held_out)))))

    @torch.no_grad()
    def errors(self, model: MatrixFactorization, held_out: PairExamples) -> dict[str, float]:
        """Return `pairs`, `RMSE` and `MAE` of the unwrapped `model`. Raises `DivergenceError`."""
        model.eval()
        batches = list(_batches(len(held_out)))
        sums = torch.zeros(len(batches), 2, dtype=torch.float64)
        for number, is_own in assigned(len(batches), self._partition):
            self._between()
            pairs = held_out.batch(batches[number], 0).to(self._device)
            assert pairs.ratings is not None, "held-out pairs have ratings"
            wrong = (model.rate(pairs) - pairs.ratings).double()
            if is_own:
                sums[number] = torch.stack([wrong.square().sum(), wrong.abs().sum()])
        squares, absolutes = self._partition.sum(sums.to(self._device)).cpu().sum(0).tolist()
        if not math.isfinite(squares):  # the same on all processes
            raise DivergenceError("the ratings of the model are not finite")
        n = len(held_out)
        return {"pairs": n, "RMSE": math.sqrt(squares / n), "MAE": absolutes / n}


def mean_errors(pairs: TrainingPairs, parts: Mapping[str, PairExamples], dataset: Dataset) -> dict[str, float]:
    """Return the test RMSE of the mean rating, and of the mean rating plus item and user offsets.

    The offset of an item is the mean difference of its ratings from the mean; the offset of a user is the mean of the
    remaining differences. Both are damped (Koren 2010, "Factor in the neighbors", section 2.1). Held-out pairs are not
    used. Reads all pairs twice, in memory for a few numbers per user and item.
    """

    def total(value: Callable[[Rated], Floats], by: Callable[[Rated], Ints], n: int) -> tuple[Floats, Floats]:
        """Return the sums [n] of a value of the training pairs, and the number of pairs [n], grouped `by` id."""
        sums, counts = np.zeros(n), np.zeros(n)
        for sign, rated in _training_pairs(pairs, parts):
            sums += sign * np.bincount(by(rated), value(rated), n)
            counts += sign * np.bincount(by(rated), minlength=n)
        return sums, counts

    sums, counts = total(lambda p: p.ratings, lambda p: p.items, dataset.n_items)
    mean = sums.sum() / counts.sum()
    of_items = (sums - mean * counts) / (ITEM_DAMPING + counts)
    sums, counts = total(lambda p: p.ratings - mean - of_items[p.items], lambda p: p.users, dataset.n_users)
    of_users = sums / (USER_DAMPING + counts)
    wrong = np.zeros(2)
    for indices in _batches(len(parts[TEST])):
        rated = _read(parts[TEST], indices)
        from_mean = rated.ratings - mean
        left = from_mean - of_items[rated.items] - of_users[rated.users]
        wrong += [np.square(from_mean).sum(), np.square(left).sum()]
    of_mean, of_means = np.sqrt(wrong / len(parts[TEST])).tolist()
    return {"baseline_RMSE": of_mean, "means_RMSE": of_means}


def _training_pairs(pairs: TrainingPairs, parts: Mapping[str, PairExamples]) -> Iterator[tuple[int, Rated]]:
    """Yield all pairs in order with the sign 1, then the held-out pairs with -1."""
    everything = PairExamples(pairs, range(len(pairs)), seed=None, has_ratings=True)
    for sign, examples in ((1, everything), (-1, parts[VALIDATION]), (-1, parts[TEST])):
        for indices in _batches(len(examples)):
            yield sign, _read(examples, indices)


def _read(examples: PairExamples, indices: Indices) -> Rated:
    users, items, ratings = examples.read(indices)
    assert ratings is not None, "held-out pairs have ratings"
    return Rated(users, items, ratings.astype(np.float64))


def _batches(n: int) -> Iterator[Indices]:
    return (np.arange(where.start, where.stop) for where in chunks(n, PAIRS_AT_ONCE))
