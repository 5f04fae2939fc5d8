"""Held-out ratings: RMSE and MAE of a model, and RMSE of mean ratings as baselines."""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from bert4rec.dataset.histories import TrainingPairs
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.batches import assigned, chunks
from bert4rec.feed.pairs import TEST_PAIRS, VALIDATION_PAIRS, PairExamples
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.runtime.arrays import Float64s, Int32s
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DivergenceError

PAIRS_AT_ONCE = 32_768
ITEM_DAMPING, USER_DAMPING = 25, 10  # additional ratings at the mean for each item and user


def n_rating_batches(held_out: PairExamples, partition: Partition) -> int:
    """Return the number of calls of `between` by `rating_errors`."""
    return partition.largest(len(list(chunks(len(held_out), PAIRS_AT_ONCE))))


@torch.no_grad()
def rating_errors(
    model: MatrixFactorization, held_out: PairExamples, partition: Partition, device: torch.device,
    between: Callable[[], None],
) -> dict[str, float]:  # fmt: skip
    """Return `pairs`, `RMSE` and `MAE` of the unwrapped `model`. Raises `DivergenceError`.

    All processes of `partition` make the same call; `between` is called between batches. Batches do not depend on the
    number of processes, and their sums are added in one order: any number of processes gives exactly the same errors.
    """
    model.eval()
    batches = [np.arange(where.start, where.stop) for where in chunks(len(held_out), PAIRS_AT_ONCE)]
    sums = torch.zeros(len(batches), 2, dtype=torch.float64)
    for number, is_own in assigned(len(batches), partition):
        between()
        pairs = held_out.batch(batches[number], 0).to(device)
        assert pairs.ratings is not None, "held-out pairs have ratings"
        wrong = (model.rate(pairs) - pairs.ratings).double()
        if is_own:
            sums[number] = torch.stack([wrong.square().sum(), wrong.abs().sum()])
    squares, absolutes = partition.sum(sums.to(device)).cpu().sum(0).tolist()
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
    everything = PairExamples(pairs, range(len(pairs)), seed=None, has_ratings=True)

    def total(
        n: int, values: Callable[[Int32s, Int32s, Float64s], tuple[Int32s, Float64s]]
    ) -> tuple[Float64s, Float64s]:
        """Return the sums [n] of the `values` of the training pairs by id, and the number of pairs of each id [n]."""
        sums, counts = np.zeros(n), np.zeros(n)
        for sign, examples in ((1, everything), (-1, parts[VALIDATION_PAIRS]), (-1, parts[TEST_PAIRS])):
            for users, items, ratings in _read(examples):
                ids, pair_values = values(users, items, ratings)
                sums += sign * np.bincount(ids, pair_values, n)
                counts += sign * np.bincount(ids, minlength=n)
        return sums, counts

    sums, counts = total(dataset.n_items, lambda users, items, ratings: (items, ratings))
    mean = sums.sum() / counts.sum()
    item_offsets = (sums - mean * counts) / (ITEM_DAMPING + counts)
    sums, counts = total(dataset.n_users, lambda users, items, ratings: (users, ratings - mean - item_offsets[items]))
    user_offsets = sums / (USER_DAMPING + counts)
    wrong = np.zeros(2)
    for users, items, ratings in _read(parts[TEST_PAIRS]):
        from_mean = ratings - mean
        left = from_mean - item_offsets[items] - user_offsets[users]
        wrong += [np.square(from_mean).sum(), np.square(left).sum()]
    mean_error, means_error = np.sqrt(wrong / len(parts[TEST_PAIRS])).tolist()
    return {"baseline_RMSE": mean_error, "means_RMSE": means_error}


def _read(examples: PairExamples) -> Iterator[tuple[Int32s, Int32s, Float64s]]:
    """Yield users, items and ratings of the `examples`, some pairs at a time."""
    for where in chunks(len(examples), PAIRS_AT_ONCE):
        users, items, ratings = examples.read(np.arange(where.start, where.stop))
        assert ratings is not None, "held-out pairs have ratings"
        yield users, items, ratings.astype(np.float64)
