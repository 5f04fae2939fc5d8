"""The prior under a trained model: scores that are counted, from sparse weights between items.

The score of an item j after a history i_1 (the newest), i_2, … is for each source the sum of a_k R[i_k, j] over the
last items, with few weights R[i, ·] an item. The factors a_k fall with the age k, and the logarithm turns a source that
counts probabilities into logits:

- transitions: how much more often j follows i than its share of all positions says, as the transition graph counts it
  (`models/transitions.py`). With the logarithm of the share, its score is log P(j) of that graph but for a constant.
- neighbours: the cosine of the users of both items, counted among near positions of a history.
- ease: the weights of EASE (`models/ease.py`, `models/sparse_ease.py`), once for the last items alike and once falling
  with their age.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.config.kinds import EASE
from bert4rec.dataset.format import NO_ITEM
from bert4rec.runtime.arrays import Int64s, Integers
from bert4rec.runtime.collectives import Partition

TRANSITIONS, NEIGHBOURS = "transitions", "neighbours"
TOP = 64  # weights of an item in each source
GROUP = 4096  # items whose weights are found at once, if they are not scored in other parts
MOST_GROUPS = 256  # of the catalogue; more items make them larger
TINY = 1e-30  # instead of zero, in denominators

EVERYTHING = Partition()
Weights: TypeAlias = Mapping[str, list[float]]
"""Source → its weight in the scores for each of its decays; a source that is not used is missing."""


@dataclass(frozen=True)
class SourceKind:
    """The form of a source's scores, which add up the `n_last` items of a history, weighted by `decays`.

    `is_log`: whether the score is the logarithm of that sum; `is_normalized`: of a probability, with masses and biases.
    """

    n_last: int
    decays: tuple[float, ...]
    is_log: bool = False
    is_normalized: bool = False


PRIOR_SOURCES = {
    TRANSITIONS: SourceKind(10, (0.7,), is_log=True, is_normalized=True),
    NEIGHBOURS: SourceKind(20, (0.9,), is_log=True),
    EASE: SourceKind(50, (1.0, 0.9)),
}


class Source:
    """The weights of the source `name` to some `items` of the catalogue, on a `device`.

    `blocks` are the ids [n, K] of targets, ascending with NO_ITEM for nothing, and the values [n, K] of all items in
    order. `masses` [V]: the share of an item's transitions that is only popularity; None for sources whose factors are
    not normalized. `bias` [len(items)] is added to the scores of items; None for none. Scores are added in parts of
    `unit` items, or in any other parts, which takes longer.
    """

    def __init__(
        self, name: str, blocks: Iterable[tuple[Tensor, Tensor]], items: range, device: torch.device, *,
        masses: Tensor | None = None, bias: Tensor | None = None, unit: int = 0,
    ) -> None:  # fmt: skip
        self.kind, self.device, self._items = PRIOR_SOURCES[name], device, items
        self.masses, self.bias = (None if part is None else part.to(device) for part in (masses, bias))
        counts, kept_ids, kept_values = [], [], []
        for ids, numbers in blocks:
            is_own = (ids >= items.start) & (ids < items.stop)
            counts.append(is_own.sum(1))
            kept_ids.append(ids[is_own])
            kept_values.append(numbers[is_own])
        # The weights of item i begin at `_starts[i]`; the last weight, behind those of all items, is for no item.
        starts, targets = F.pad(torch.cat(counts).cumsum(0), (1, 0)).to(device), torch.cat(kept_ids).to(device)
        self._starts, self._targets = starts, F.pad(targets, (0, 1), value=NO_ITEM)
        self._values = F.pad(torch.cat(kept_values), (0, 1)).to(device)
        lengths = starts.diff()
        self._n_steps = int(lengths.max() if len(lengths) else 0).bit_length()
        self._group, n_groups = groups_of(len(items), unit or GROUP)
        rows = torch.repeat_interleave(torch.arange(len(lengths), device=starts.device), lengths)
        cells = rows * n_groups + (targets.long() - items.start) // self._group
        in_groups = torch.bincount(cells, minlength=len(lengths) * n_groups).view(len(lengths), n_groups)
        self._bounds = F.pad(in_groups.cumsum(1), (1, 0)).to(torch.uint8)

    @cached_property
    def reached(self) -> Tensor:
        """Return which of the items [len(items)] have a weight from any item."""
        is_reached = torch.zeros(len(self._items), dtype=torch.bool, device=self.device)
        is_reached[self._targets[:-1].long() - self._items.start] = True
        return is_reached

    def padded(self) -> tuple[Tensor, Tensor]:
        """Return the targets [V, K] of all items and their values; the fill is the target `stop` with the value 0."""
        lengths = self._starts.diff()
        places = torch.arange(int(lengths.max() if len(lengths) else 0), device=self.device)
        at = torch.where(places < lengths[:, None], self._starts[:-1, None] + places, len(self._targets) - 1)
        targets = self._targets[at]
        return torch.where(targets == NO_ITEM, self._items.stop, targets), self._values[at]

    def add(self, scores: Tensor, last: Tensor, first: int, weights: list[float]) -> None:
        """Add to the `scores` [B, C] of the items from `first` on, after the `last` items [B, n], the newest first."""
        last, n_items, offset = last[:, : self.kind.n_last], scores.shape[1], first - self._items.start
        if not n_items:
            return
        groups = offset // self._group, -(-(offset + n_items) // self._group)
        rows = last.flatten().clamp(min=0)
        before, after = (self._bounds[:, group].index_select(0, rows).long() for group in groups)
        lengths = (after - before) * (last != NO_ITEM).flatten()
        places = torch.repeat_interleave(lengths)
        at = torch.arange(len(places), device=places.device)
        at += (self._starts.index_select(0, rows) + before - lengths.cumsum(0) + lengths).index_select(0, places)
        # The first cell of the row, so that adding the id of an item is adding its column.
        cells = (torch.arange(len(last), device=at.device) * n_items - first).repeat_interleave(last.shape[1])
        cells = cells.index_select(0, places)
        ids = self._targets.index_select(0, at)
        cells += ids
        values = self._values.index_select(0, at)
        values *= factors_of(self.kind, last, weights, self.masses).flatten().index_select(0, places)
        if offset % self._group or (n_items % self._group and first + n_items < self._items.stop):
            is_inside = (ids >= first) & (ids < first + n_items)
            cells, values = cells[is_inside], values[is_inside]
        flat = scores.view(-1)
        if not self.kind.is_log:
            flat.index_add_(0, cells, values)
            return
        sums = torch.zeros_like(flat).index_add_(0, cells, values).index_select(0, cells)
        sums = sums.log1p_().mul_(weights[0]).add_(flat.index_select(0, cells))
        flat.index_copy_(0, cells, sums)  # twice the same for a cell with two weights
        if self.bias is not None:
            scores += weights[0] * self.bias[offset : offset + n_items]

    def targets_of(self, last: Tensor) -> Int64s:
        """Return the items with weights from the `last` items [n]; several times, if from several."""
        items = last[: self.kind.n_last]
        bounds = [self._starts[at].tolist() for at in (items[items != NO_ITEM], items[items != NO_ITEM] + 1)]
        parts = [self._targets[start:stop].numpy() for start, stop in zip(*bounds, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def of_pairs(self, last: Tensor, ids: Tensor, weights: list[float]) -> Tensor:
        """Return what `add` adds to the scores of the items `ids` [B, C], 0 for those of other processes."""
        last = last[:, : self.kind.n_last]
        rows, wanted = last.clamp(min=0)[:, :, None], ids[:, None, :]
        low, ends = (self._starts[at].expand(-1, -1, ids.shape[1]) for at in (rows, rows + 1))
        high = ends
        for _ in range(self._n_steps):
            middle = (low + high) // 2
            is_below = (self._targets[middle] < wanted) & (low < high)
            low, high = torch.where(is_below, middle + 1, low), torch.where(is_below, high, middle)
        is_found = (low < ends) & (self._targets[low] == wanted)
        factors = factors_of(self.kind, last, weights, self.masses)
        sums = (torch.where(is_found, self._values[low], 0) * factors[:, :, None]).sum(1)
        if not self.kind.is_log:
            return sums
        scores = weights[0] * sums.log1p_()
        if self.bias is not None:
            is_own = (ids >= self._items.start) & (ids < self._items.stop)
            biases = F.pad(self.bias, (0, 1))[torch.where(is_own, ids - self._items.start, len(self.bias))]
            scores += weights[0] * biases
        return scores


def factors_of(kind: SourceKind, last: Tensor, weights: list[float], masses: Tensor | None) -> Tensor:
    """Return the factors [B, n] of the weights of a source from the `last` items [B, n]; 0 for no item."""
    ages = torch.arange(last.shape[1], device=last.device, dtype=torch.float32)
    scales = [1.0] if kind.is_log else weights
    by_age = sum(weight * decay**ages for weight, decay in zip(scales, kind.decays, strict=True))
    factors = torch.where(last != NO_ITEM, by_age, 0.0)
    if masses is None:
        return factors
    return factors / (factors * masses[last.clamp(min=0)]).sum(1, keepdim=True).clamp(min=TINY)


class Prior:
    """The `sources` of a prior for some `items` of a catalogue, this process's in `partition`, and their `weights`.

    The weights may change; without any, nothing is added.
    """

    def __init__(
        self, sources: Mapping[str, Source], items: range, weights: Weights | None = None,
        partition: Partition = EVERYTHING,
    ) -> None:  # fmt: skip
        self.sources, self.items, self.weights, self.partition = sources, items, weights or {}, partition

    @property
    def n_last(self) -> int:
        """Return how many last items of a history the sources read."""
        return max((PRIOR_SOURCES[name].n_last for name in self.sources), default=1)

    def add(self, scores: Tensor, last: Tensor, first: int, weights: Weights | None = None) -> None:
        """Add to the `scores` [B, C] of the items from `first` on, after the `last` items [B, n_last], newest first."""
        for name, values in (self.weights if weights is None else weights).items():
            self.sources[name].add(scores, last, first, values)

    def of_pairs(self, last: Tensor, ids: Tensor) -> Tensor:
        """Return what `add` adds to the scores of the items `ids` [B, C], 0 for those of other processes."""
        scores = torch.zeros(ids.shape, device=last.device)
        for name, values in self.weights.items():
            scores += self.sources[name].of_pairs(last, ids, values)
        return scores

    @property
    def biases(self) -> Tensor:
        """Return what is added to the scores of all its items [n], whatever the history."""
        total = torch.zeros(len(self.items), device=self.device)
        for name, values in self.weights.items():
            if (bias := self.sources[name].bias) is not None:
                total += values[0] * bias
        return total

    def targets_of(self, last: Tensor) -> Int64s:
        """Return the items that the prior adds to after the `last` items [n] of a history, the newest first."""
        found = [source.targets_of(last) for source in self.sources.values()]
        return np.concatenate([np.empty(0, np.int64), *found])

    def only(self, name: str) -> "Prior":
        """Return a prior of one of the sources that have a weight, with this weight."""
        return Prior({name: self.sources[name]}, self.items, {name: self.weights[name]}, self.partition)

    def marks(self) -> Tensor:
        """Return for each of the items its id if it has a weight, else a number below zero, by its bias."""
        sources = self.sources.values()
        reached = torch.stack([source.reached for source in sources]).any(0)
        biases = sum((source.bias for source in sources if source.bias is not None), torch.zeros_like(reached).float())
        return torch.where(
            reached, torch.arange(self.items.start, self.items.stop, device=reached.device), biases - 1.0
        )

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return next((source.device for source in self.sources.values()), torch.device("cpu"))


def last_items(items: Integers, lengths: Int64s, n: int) -> Int64s:
    """Return the last `n` items of each history [B, n], the newest first; NO_ITEM fills short ones.

    >>> last_items(np.array([5, 6, 7]), np.array([2, 1]), 2).tolist()
    [[6, 5], [7, -1]]
    """
    before = np.arange(n)
    at = np.maximum(lengths.cumsum()[:, None] - 1 - before, 0)
    found = items[at].astype(np.int64) if len(items) else np.zeros(at.shape, np.int64)
    return np.where(before < lengths[:, None], found, NO_ITEM)


def groups_of(n_own: int, unit: int) -> tuple[int, int]:
    """Return the size, a multiple of `unit`, and the number of the groups of `n_own` items that are found at once."""
    size = unit * max(1, -(-n_own // (MOST_GROUPS * unit)))
    return size, max(1, -(-n_own // size))


def source_bytes(name: str, n_items: int, n_own: int) -> int:
    """Return the bytes of the source `name` for `n_own` of `n_items`: each item has `TOP` weights, evenly spread."""
    weights = (min(TOP, n_items) * n_own + 1) * (torch.int32.itemsize + torch.float32.itemsize)
    places = (n_items + 1) * torch.int64.itemsize + n_items * (groups_of(n_own, GROUP)[1] + 1)
    return weights + places + PRIOR_SOURCES[name].is_normalized * (n_items + n_own) * torch.float32.itemsize
