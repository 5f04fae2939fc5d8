"""Count which item follows which in training histories: sorted pairs with decayed counts, a sparse graph."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bert4rec.dataset.columns import Indices
from bert4rec.models.untrained.histories import TrainingHistories

Floats32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

DENSE = 1 / 16  # of all pairs of items: from so many on a matrix takes some times the memory, and much less time


class Pairs(NamedTuple):
    """Distinct pairs [E] of items, ascending, as `source` * n_items + `target`, and their weights."""

    keys: Indices
    weights: Floats32


@dataclass(frozen=True)
class Transitions:
    """The graph: `pairs` of items, and the sum of the weights that each item has as a source, `totals` [n_items].

    A position counts `decay` ** (d - 1) for the pair with each item d places before it in its user's history, up to d =
    `reach`: with 1, what follows directly. Takes 12 bytes a distinct pair, twice that while it counts, and some hundred
    MB for a part. Node by node the same whatever the number of processes: each counts all.
    """

    n_items: int
    pairs: Pairs
    totals: Floats

    @classmethod
    def count(cls, histories: TrainingHistories, *, reach: int, decay: float) -> "Transitions":
        """Count them in one pass."""
        n_items = histories.n_items
        counted: list[Pairs] = [_distinct(np.empty(0, np.int64), reach=reach, decay=decay)]
        users, items = np.empty(0, np.int64), np.empty(0, np.int64)
        for part in histories.parts():
            n_before = len(users)  # of the part before: the sources of what this one begins with
            users, items = np.concatenate([users, part.users]), np.concatenate([items, part.items])
            keys = [
                _at_distance(users, items, distance, n_before, n_items) * reach + distance - 1
                for distance in range(1, reach + 1)
            ]
            counted.append(_distinct(np.concatenate(keys), reach=reach, decay=decay))
            while len(counted) > 1 and len(counted[-2].keys) <= 2 * len(counted[-1].keys):
                counted.append(_merged(*(counted.pop() for _ in range(2))))
            users, items = users[-reach:], items[-reach:]
        while len(counted) > 1:
            counted.append(_merged(*(counted.pop() for _ in range(2))))
        totals = np.bincount(counted[0].keys // n_items, counted[0].weights, minlength=n_items)
        return cls(n_items, counted[0], totals.astype(np.float64))

    def weights(self, sources: Indices, targets: Indices) -> Floats:
        """Return the weights of pairs of items, arrays of one shape; 0 for a pair without transitions."""
        keys, weights = self.pairs
        if not len(keys):
            return np.zeros(sources.shape)
        wanted = sources * self.n_items + targets
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[at] == wanted, weights[at], 0.0)

    def matrix(self) -> Floats32 | None:
        """Return the weights of all pairs [n_items, n_items], sources first; None if nearly all would be 0."""
        if len(self.pairs.keys) < DENSE * self.n_items**2:
            return None
        matrix = np.zeros(self.n_items**2, np.float32)
        matrix[self.pairs.keys] = self.pairs.weights
        return matrix.reshape(self.n_items, self.n_items)

    def rows(self, sources: Indices, first: int, last: int) -> tuple[Indices, Indices, Floats32]:
        """Return all pairs of `sources` [S] with targets from `first` to `last` - 1, source by source.

        How many there are of each source [S], and of each pair its target, counted from `first`, and its weight.
        """
        keys, weights = self.pairs
        smallest = sources * self.n_items + first
        starts, ends = np.searchsorted(keys, smallest), np.searchsorted(keys, smallest + (last - first))
        lengths = ends - starts
        at = np.arange(lengths.sum()) + np.repeat(starts - (lengths.cumsum() - lengths), lengths)
        return lengths, keys[at] - np.repeat(smallest, lengths), weights[at]


def _at_distance(users: Indices, items: Indices, distance: int, n_before: int, n_items: int) -> Indices:
    """Return pairs of positions `distance` apart whose later one is not among the first `n_before`."""
    first = max(0, n_before - distance)
    sources, targets = slice(first, max(first, len(users) - distance)), slice(first + distance, None)
    is_of_one = users[sources] == users[targets]
    return items[sources][is_of_one] * n_items + items[targets][is_of_one]


def _distinct(keys: Indices, *, reach: int, decay: float) -> Pairs:
    """Return pairs with how often they occur; `keys`: of pairs, times `reach`, plus the distance less 1."""
    keys = np.sort(keys)
    places = np.flatnonzero(np.diff(keys, prepend=-1))
    counts, keys = np.diff(places, append=len(keys)), keys[places]
    weights = counts * decay ** (keys % reach)
    keys //= reach
    places = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(weights, places) if len(places) else weights
    return Pairs(keys[places], sums.astype(np.float32))


def _merged(one: Pairs, other: Pairs) -> Pairs:
    """Return the pairs of both, the weights of what is in both added up."""
    small, large = sorted((one, other), key=lambda pairs: len(pairs.keys))
    at = np.searchsorted(large.keys, small.keys)
    is_known = np.zeros(len(at), bool)
    inside = at < len(large.keys)
    is_known[inside] = large.keys[at[inside]] == small.keys[inside]
    large.weights[at[is_known]] += small.weights[is_known]
    at, new = at[~is_known], ~is_known
    return Pairs(np.insert(large.keys, at, small.keys[new]), np.insert(large.weights, at, small.weights[new]))
