"""Pairs of a user and an item from the training parts of the memory-mapped histories."""

from collections.abc import Sequence

import numpy as np
import torch

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import TrainingPairs
from bert4rec.feed.batch import Pairs, long
from bert4rec.runtime.arrays import Float32s, Int32s, Int64s
from bert4rec.runtime.seeded import Permutation

TRAINING_PAIRS, VALIDATION_PAIRS, TEST_PAIRS = "training", "validation", "test"
PAIRS_STREAM = 0x52415445  # separates the choice of held-out pairs from the epochs' orders, seeded with (seed, epoch)


class PairExamples:
    """The part of `pairs` at `places` of their permutation by `seed`; without a `seed`, in their own order.

    With `has_ratings`, batches include the ratings. With `event_weights` by kind of event, the targets of pairs without
    a positive weight are NO_ITEM.
    """

    def __init__(
        self, pairs: TrainingPairs, places: range, *, seed: int | None, has_ratings: bool,
        event_weights: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self._pairs, self._places, self._has_ratings = pairs, places, has_ratings
        self._event_weights = event_weights
        self._order = None if seed is None else Permutation(len(pairs), (seed, PAIRS_STREAM))

    def __len__(self) -> int:
        return len(self._places)

    def numbers(self, indices: Int64s) -> Int64s:
        """Return the numbers [B], within all pairs, of those at `indices` [B]."""
        places = self._places.start + indices
        return places if self._order is None else self._order.at(places)

    def batch(self, indices: Int64s, epoch: int) -> Pairs:
        """Return the pairs at `indices` [B], sorted by their place in memory; the same in every `epoch`."""
        users, items, ratings = self.read(indices)
        pairs = Pairs.between(long(users), long(items), None if ratings is None else torch.from_numpy(ratings))
        if not self._event_weights:
            return pairs
        weights = torch.tensor(self._event_weights)[long(self._pairs.events(np.sort(self.numbers(indices))))]
        return pairs._replace(targets=torch.where(weights > 0, pairs.targets, NO_ITEM), weights=weights)

    def read(self, indices: Int64s) -> tuple[Int32s, Int32s, Float32s | None]:
        """Return users, items and ratings [B] of the pairs at `indices` [B], sorted by their place in memory."""
        return self._pairs.read(np.sort(self.numbers(indices)), with_ratings=self._has_ratings)


def parts_of_pairs(
    pairs: TrainingPairs, *, seed: int, loss: str, rating_validation: float, rating_holdout: float = 0.1,
    event_weights: Sequence[float] = (), **_: object,
) -> dict[str, PairExamples]:  # fmt: skip
    """Return the pairs to train on and, if `loss` is "mse", random held-out shares of all pairs, by part.

    The choice of held-out pairs depends only on `seed` and on the number of pairs. Only the training part is never
    empty.
    """
    if loss != "mse":
        whole = range(len(pairs))
        return {TRAINING_PAIRS: PairExamples(pairs, whole, seed=None, has_ratings=False, event_weights=event_weights)}
    n_test = round(rating_holdout * len(pairs))
    n_held_out = min(n_test + round(rating_validation * len(pairs)), len(pairs) - 1)
    bounds = {TEST_PAIRS: (0, n_test), VALIDATION_PAIRS: (n_test, n_held_out), TRAINING_PAIRS: (n_held_out, len(pairs))}
    return {name: PairExamples(pairs, range(*part), seed=seed, has_ratings=True) for name, part in bounds.items()}
