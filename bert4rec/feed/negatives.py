"""Negatives for the sampled losses: one draw per step for each group of processes."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bert4rec.runtime.arrays import Float64s, Int64s, Integers

BLOCK = 128  # items per precomputed sum of weights
SLAB = BLOCK * 8192  # items whose weights are in memory at once while the sums are computed
NEGATIVES_STREAM = 0x4E454741  # separates these draws from the epochs' orders, which are seeded with (seed, epoch)


class Negatives(NamedTuple):
    """The `ids` [K] int64 of a draw and `log_expected` [K] float32, the log of their expected counts in it."""

    ids: Tensor
    log_expected: Tensor


class NegativeSampler:
    """Draws `n` items per step, with probabilities proportional to popularity ** `power`.

    `popularity` [n_items] are counts of training positions; 0 counts as 1, so that every item can be a negative. Power
    0 draws uniformly without replacement, which has the lowest variance and needs no popularity; `n` is then at most
    `n_items`. Other powers draw with replacement. A draw depends only on (`seed`, step, `group`): the processes of a
    group draw the same negatives, and a run can resume at any step.

    Memory holds only the sums of blocks of items; `popularity` may be memory-mapped.
    """

    def __init__(
        self, *, n_items: int, n: int, power: float, seed: int, popularity: Integers | None = None,
        group: int = 0,
    ) -> None:  # fmt: skip
        self._n_items, self._n, self._power, self._popularity = n_items, n, power, popularity
        self._seed, self._stream = seed, NEGATIVES_STREAM + group
        if power:
            slabs = (np.arange(first, min(first + SLAB, n_items)) for first in range(0, n_items, SLAB))
            blocks = [np.add.reduceat(self._weights(slab), np.arange(0, len(slab), BLOCK)) for slab in slabs]
            self._ends = np.cumsum(np.concatenate(blocks))

    def draw(self, step: int) -> Negatives:
        """Return the negatives of `step`."""
        generator = np.random.default_rng([self._seed, step, self._stream])
        if not self._power:
            items = generator.choice(self._n_items, self._n, replace=False, shuffle=False)
            expected = np.full(self._n, self._n / self._n_items)
        else:
            items = self._find(generator.random(self._n) * self._ends[-1])
            expected = self._n * self._weights(items) / self._ends[-1]
        return Negatives(torch.from_numpy(items), torch.from_numpy(np.log(expected).astype(np.float32)))

    def _weights(self, items: Int64s) -> Float64s:
        assert self._popularity is not None, "a power other than 0 needs the popularity"
        return np.maximum(self._popularity[items], 1).astype(np.float64) ** self._power

    def _find(self, points: Float64s) -> Int64s:
        """Return the items [K] whose intervals of the cumulative weights contain the `points` [K]."""
        block = np.searchsorted(self._ends[:-1], points, side="right")
        before = np.concatenate([[0.0], self._ends])[block]
        members = block[:, None] * BLOCK + np.arange(BLOCK)
        weights = self._weights(np.minimum(members, self._n_items - 1))
        inside = (weights.cumsum(1) <= (points - before)[:, None]).sum(1)
        # A block's sum and its cumulative sum round differently: a point may lie just behind the last item.
        return np.minimum(block * BLOCK + np.minimum(inside, BLOCK - 1), self._n_items - 1)
