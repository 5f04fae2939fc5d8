"""Count which item follows which in training histories: sorted pairs with decayed counts, a sparse graph."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.hidden import firsts
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset
from bert4rec.models.prior import last_items
from bert4rec.runtime.arrays import Array, Bools, Float32s, Float64s, Int64s, Integers
from bert4rec.runtime.collectives import Partition, exchange_objects, gather_objects

POSITIONS_AT_ONCE = 262_144  # approximate number of positions of a part
# Share of all pairs from which a matrix is used: it takes a few times the memory, and much less time.
DENSE_FROM = 1 / 16
DECAY_STEP = 2.0**-20


@dataclass(frozen=True)
class Part:
    """Consecutive positions [P] of training histories, user by user, oldest first.

    `users` and `items` are ids from 0; `lengths` are those of the users' whole histories; `left` is the number of later
    positions of the same user; `times` are in seconds, None if the dataset has none. `is_target`: whether the kind of
    event is among those that are predicted, or all are. `ends`: the input of each position ends before this one.
    """

    users: Int64s
    items: Int64s
    lengths: Int64s
    left: Int64s
    times: Int64s | None
    is_target: Bools
    ends: Int64s


class TrainingHistories:
    """The training positions of `dataset`, in parts of some histories each; `between` is called before each part.

    If each host has its own parts of the dataset (`is_shared`), each process reads a share of those of its host, and
    every process makes the same calls: `sum` and `collect` then add up what the processes have counted.
    """

    def __init__(self, dataset: Dataset, between: Callable[[], None] = lambda: None) -> None:
        self._histories, self._between, self._placement = dataset.histories, between, dataset.placement
        self.is_shared = self._placement is not None
        self.n_items, self.has_times = dataset.n_items, self._histories.has_times
        self.target_kinds = self._histories.target_kinds

    @cached_property
    def n_parts(self) -> int:
        """Return the number of parts of one pass, the largest of all processes."""
        return self._largest(len(self._bounds) - 1)

    @property
    def n_positions(self) -> int:
        """Return the number of positions of all histories."""
        return int(self.sum(self._histories.n_train[self._rows].sum(keepdims=True))[0])

    def parts(self) -> Iterator[Part]:
        """Yield the parts in order; every call is a pass over the files."""
        bounds = self._bounds.tolist()
        for first, last in itertools.pairwise(bounds):
            self._between()
            yield self._read(np.arange(first, last))
        for _ in range(self.n_parts - (len(bounds) - 1)):
            self._between()  # as often on each process

    def sum(self, counts: Array) -> Array:
        """Return the sum of the `counts` [...] of all processes, whole numbers, if they count shares."""
        if self.is_shared:
            dist.all_reduce(torch.from_numpy(counts))
        return counts

    def collect(self, count: Callable[[range | None], "Pairs"], sources: range | None) -> "Pairs":
        """Return the pairs from the `sources`, None for all items, which `count` returns of the histories it reads.

        Each process counts those of its share for each of them.
        """
        if not self.is_shared:
            return count(sources)
        wanted = gather_objects(sources)
        counted = {some: count(some) for some in dict.fromkeys(wanted)}
        return summed(exchange_objects([counted[some] for some in wanted]))

    def rounds(self, parts: Iterable[range]) -> Iterator[range]:
        """Yield the `parts` of this process's items and, where others have more, empty ones."""
        if not self.is_shared:
            yield from parts
            return
        own = [*parts]
        yield from [*own, *[range(0)] * (self._largest(len(own)) - len(own))]

    def _largest(self, n: int) -> int:
        return max(gather_objects(n)) if self.is_shared else n

    @property
    def _rows(self) -> slice:
        """Return the rows of the histories that this process reads."""
        placement, n = self._placement, len(self._histories)
        share = Partition(placement.place, placement.n_local).of(n) if placement else range(n)
        return slice(share.start, share.stop)

    def _read(self, rows: Int64s) -> Part:
        n_train = self._histories.n_train_at(rows)
        read = self._histories.read(rows, np.zeros_like(rows), n_train)
        items = read.items.astype(np.int64)
        is_target = np.ones(len(items), bool)
        if self.target_kinds:
            assert read.events is not None, "target kinds are kinds of events"
            is_target = np.isin(read.events, self.target_kinds)
        users, lengths = (np.repeat(v, n_train) for v in (self._histories.users_at(rows).astype(np.int64), n_train))
        left = np.repeat(n_train.cumsum(), n_train) - 1 - np.arange(len(items))
        times = self._histories.times(rows, np.zeros_like(rows), n_train) if self.has_times else None
        n_visible = self._histories.n_visible(rows, np.zeros_like(rows), n_train)
        ends = np.arange(len(items)) if n_visible is None else n_visible + firsts(n_train)
        return Part(users, items, lengths, left, times, is_target, ends)

    @cached_property
    def _bounds(self) -> Int64s:
        """Return the first row of each part, and the number of rows."""
        rows, n_train = self._rows, self._histories.n_train[self._rows]
        n_before = n_train.cumsum() - n_train
        starts = np.flatnonzero(np.diff(n_before // POSITIONS_AT_ONCE, prepend=-1))
        return rows.start + np.append(starts, len(n_train))


class Pairs(NamedTuple):
    """Distinct pairs [E] of items, ascending, as `source` * n_items + `target`, and their weights."""

    keys: Int64s
    weights: Float64s


@dataclass(frozen=True)
class Transitions:
    """The transition graph: `pairs` of items, and the sum of weights of each item as a source, `totals` [n_items].

    With `reach` 1, only the last item of an input counts (`count_pairs`). Takes 16 bytes per distinct pair,
    twice that while counting, and a few hundred MB for a part. Every process counts all histories, so all graphs are
    the same.
    """

    n_items: int
    pairs: Pairs
    totals: Float64s

    @classmethod
    def count(cls, histories: TrainingHistories, *, reach: int, decay: float) -> "Transitions":
        """Return the transitions of `histories`, counted in one pass."""
        n_items, pairs = histories.n_items, count_pairs(histories, reach=reach, decay=decay)
        totals = np.bincount(pairs.keys // n_items, pairs.weights, minlength=n_items)
        return cls(n_items, pairs, totals.astype(np.float64))

    def weights(self, sources: Int64s, targets: Int64s) -> Float64s:
        """Return the weights of pairs of items, arrays that broadcast; 0 for a pair without transitions."""
        keys, weights = self.pairs
        if not len(keys):
            return np.zeros(np.broadcast_shapes(sources.shape, targets.shape))
        pair_keys = sources * self.n_items + targets
        at = np.minimum(np.searchsorted(keys, pair_keys), len(keys) - 1)
        return np.where(keys[at] == pair_keys, weights[at], 0.0)

    def matrix(self) -> Float32s | None:
        """Return the weights of all pairs [n_items, n_items], sources first; None below the share `DENSE_FROM`."""
        if len(self.pairs.keys) < DENSE_FROM * self.n_items**2:
            return None
        matrix = np.zeros(self.n_items**2, np.float32)
        matrix[self.pairs.keys] = self.pairs.weights
        return matrix.reshape(self.n_items, self.n_items)

    def added(self, last: Int64s, factors: Float64s, first: int, n: int) -> Float64s:
        """Return the sums [B, n] of the weights from the `last` items [B, P] to `first` … `first` + n - 1.

        The weights are multiplied by `factors` [B, P] and added in the order of the last items.
        """
        keys, weights = self.pairs
        rows, places = np.nonzero(last != NO_ITEM)
        smallest = last[rows, places] * self.n_items + first
        starts, ends = np.searchsorted(keys, smallest), np.searchsorted(keys, smallest + n)
        lengths = ends - starts
        at = np.arange(lengths.sum()) + np.repeat(starts - (lengths.cumsum() - lengths), lengths)
        columns = keys[at] + np.repeat(rows * n - smallest, lengths)
        added = weights[at] * np.repeat(factors[rows, places], lengths)
        return np.bincount(columns, added, len(last) * n).astype(np.float64).reshape(len(last), n)


def count_pairs(
    histories: TrainingHistories, *, reach: int, decay: float, sources: range | None = None, is_symmetric: bool = False
) -> Pairs:
    """Return the pairs from the `sources`, by default all items, in one pass over `histories`.

    For each d from 1 to `reach`, a position with a target adds `decay` ** (d - 1) to the weight of the pair (d-th item
    from the end of its input, its item). With `is_symmetric`, it also adds that to the pair in the other direction, if
    the earlier position has a target. Weights are multiples of `DECAY_STEP`, so that parts are added without rounding.
    """

    def pairs_in(part: Part, sources: range | None) -> Pairs:
        keys = [
            _at_distance(part, distance, histories.n_items, sources, is_reverse=is_reverse) * reach + distance - 1
            for distance in range(1, reach + 1)
            for is_reverse in ((False, True) if is_symmetric else (False,))
        ]
        return distinct_pairs(np.concatenate(keys), reach=reach, decay=decay)

    return histories.collect(lambda some: summed(pairs_in(part, some) for part in histories.parts()), sources)


def summed(parts: Iterable[Pairs]) -> Pairs:
    """Return the pairs of all `parts`, with the sums of their weights."""
    counted = [Pairs(np.empty(0, np.int64), np.empty(0))]
    for part in parts:
        counted.append(part)
        while len(counted) > 1 and len(counted[-2].keys) <= 2 * len(counted[-1].keys):
            counted.append(_merged(*(counted.pop() for _ in range(2))))
    while len(counted) > 1:
        counted.append(_merged(*(counted.pop() for _ in range(2))))
    return counted[0]


def _at_distance(part: Part, distance: int, n_items: int, sources: range | None, *, is_reverse: bool) -> Int64s:
    """Return the keys of pairs of the item `distance` positions before the end of a target's input, and the target.

    `is_reverse`: pairs of any item, and of that item if it is a target, in this order. Only those from `sources`.
    """
    targets = np.arange(len(part.items)) if is_reverse else np.flatnonzero(part.is_target)
    inputs = part.ends[targets] - distance
    targets, inputs = targets[inputs >= 0], inputs[inputs >= 0]
    is_counted = part.users[inputs] == part.users[targets]  # a history is whole in its part
    if is_reverse:
        is_counted &= part.is_target[inputs]
        targets, inputs = inputs, targets
    firsts = part.items[inputs]
    if sources is not None:
        is_counted &= (firsts >= sources.start) & (firsts < sources.stop)
    return firsts[is_counted] * n_items + part.items[targets[is_counted]]


def distinct_pairs(keys: Int64s, *, reach: int, decay: float) -> Pairs:
    """Return the distinct pairs and their decayed counts; `keys` are pair keys × `reach` + distance - 1."""
    keys = np.sort(keys)
    places = np.flatnonzero(np.diff(keys, prepend=-1))
    counts, keys = np.diff(places, append=len(keys)), keys[places]
    weights = counts * (np.round(decay ** np.arange(reach) / DECAY_STEP) * DECAY_STEP)[keys % reach]
    keys //= reach
    places = np.flatnonzero(np.diff(keys, prepend=-1))
    return Pairs(keys[places], np.add.reduceat(weights, places) if len(places) else weights)


def _merged(one: Pairs, other: Pairs) -> Pairs:
    """Return the pairs of both; the weights of pairs that are in both are added. May change the weights in place."""
    small, large = sorted((one, other), key=lambda pairs: len(pairs.keys))
    at = np.searchsorted(large.keys, small.keys)
    is_known = np.zeros(len(at), bool)
    inside = at < len(large.keys)
    is_known[inside] = large.keys[at[inside]] == small.keys[inside]
    large.weights[at[is_known]] += small.weights[is_known]
    at, new = at[~is_known], ~is_known
    return Pairs(np.insert(large.keys, at, small.keys[new]), np.insert(large.weights, at, small.weights[new]))


class TransitionScorer:
    """Scores an item by the sum of the probabilities that it follows each of the user's last `n_last_items`.

    P(j | i) = (weight of i → j + `smoothing` × share of j) / (weights of i + `smoothing`). The share is that of the
    training positions, `popularity` [n_items]: after an item with few transitions, the probabilities are close to
    popularity. The k-th item from the end has the factor `decay` ** (k - 1).

    With one last item this is a smoothed Markov chain. With several it is an untrained graph of transitions, after Han
    et al. 2026, "An Embarrassingly Simple Graph Heuristic Reveals Shortcut-Solvable Benchmarks for Sequential
    Recommendation" (arXiv 2605.07125); their heuristic uses the last one or two items, several hops, and item features.
    Every process adds the same numbers in the same order.
    """

    is_rounded = False
    dtype = torch.float64  # float32 would round different sums to ties

    def __init__(
        self, transitions: Transitions, popularity: Integers, partition: Partition, *,
        n_last_items: int, decay: float, smoothing: float,
    ) -> None:  # fmt: skip
        matrix = transitions.matrix()
        self._graph = transitions if matrix is None else _Dense(torch.from_numpy(matrix))
        self.partition = partition
        self._shares = popularity / max(1, popularity.sum())
        self._per_item = 1 / (transitions.totals + smoothing)
        self._place_weights, self._smoothing = decay ** np.arange(n_last_items), smoothing
        self.n_items, self.width = len(popularity), n_last_items

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last items [B, width], newest first, and the scores [B, n] of the items `ids` [B, n]."""
        last = last_items(rows.items, rows.lengths, self.width)
        targets = ids.cpu().numpy()
        factors, share_factors = self._factors(last)
        scores = np.zeros(targets.shape)
        for place in range(self.width):
            users = np.flatnonzero(last[:, place] != NO_ITEM)
            weights = self._graph.weights(last[users, place, None], targets[users])
            scores[users] += factors[users, place, None] * weights
        scores += share_factors[:, None] * self._shares[targets]
        return torch.from_numpy(last.astype(np.float64)).to(ids.device), torch.from_numpy(scores).to(ids.device)

    def items(self, ids: Tensor) -> Tensor:
        """Return the consecutive `ids` unchanged."""
        return ids

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return the scores [B, C] of a tile of the catalogue, `items` [C], after the last items `users` [B, width]."""
        last = users.cpu().numpy().astype(np.int64)
        factors, share_factors = self._factors(last)
        scores = self._graph.added(last, factors, first, len(items))
        scores += share_factors[:, None] * self._shares[first : first + len(items)]
        return torch.from_numpy(scores).to(users.device)

    def _factors(self, last: Int64s) -> tuple[Float64s, Float64s]:
        """Return the factors of the weights of each last item [B, n], and the factors of the popularity shares [B]."""
        factors = np.where(last != NO_ITEM, self._place_weights * self._per_item[last], 0.0)
        return factors, self._smoothing * factors.sum(1)


class _Dense(NamedTuple):
    """A transition graph as a `matrix` [n_items, n_items] of all pairs."""

    matrix: Tensor

    def weights(self, sources: Int64s, targets: Int64s) -> Float64s:
        """Return the same as `Transitions.weights`."""
        return self.matrix.numpy()[sources, targets].astype(np.float64)

    def added(self, last: Int64s, factors: Float64s, first: int, n: int) -> Float64s:
        """Return the same as `Transitions.added`; NO_ITEM is an arbitrary item with factor 0."""
        tile, scores = self.matrix[:, first : first + n], torch.zeros(len(last), n, dtype=torch.float64)
        sources, source_factors = torch.from_numpy(last.T % len(tile)), torch.from_numpy(factors.T[:, :, None])
        for source, factor in zip(sources, source_factors, strict=True):
            scores += tile.index_select(0, source).double().mul_(factor)  # addcmul would round differently
        return scores.numpy()
