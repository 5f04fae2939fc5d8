"""Losses: one function each, over hidden states or over the scores of candidates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from bert4rec.runtime.collectives import Partition

SCORES_AT_ONCE = 2**24  # scores in memory in the softmax over the catalogue: 64 MiB in float32
COLUMNS_AT_A_TIME = 4096  # items per block on CPU: the scores of a block stay in cache


@dataclass(frozen=True)
class LossSettings:
    """Hold the `loss` of a model and the settings of gBCE and of ratings, named as the keys of [training]."""

    loss: str = "softmax"
    gbce_calibration: float = 0.75
    rating_range: Sequence[float] = ()


SOFTMAX = LossSettings()


class Sizes(NamedTuple):
    """Hold the number M of positions of each process of a partition, and the largest number V of its vectors."""

    n_positions: list[int]
    largest: int


def softmax_loss(
    hidden: Tensor, vectors: Tensor, targets: Tensor, partition: Partition, *, first: int = 0, averaged: bool = False,
    weights: Tensor | None = None, sizes: Sizes | None = None,
) -> Tensor:  # fmt: skip
    """Return the sum of the exact cross-entropies of `hidden` [M, d] against the whole catalogue.

    `vectors` [V, d] are the items `first`, `first` + 1, … in this process's part of the catalogue. `targets` [M] are
    items; negative ones are ignored. `weights` [M] float32, if given, multiply the losses of the positions. The result
    is a sum: only the trainer knows the number of positions of all processes for a mean. With `averaged`, the gradient
    of the vectors is divided by the number of processes, as the gradients of replicated tables are. Without `sizes`,
    the processes exchange theirs, which takes a message and a wait for the device.

    This is the vocabulary-parallel cross-entropy of Megatron-LM (Shoeybi et al. 2019). The hidden states, a few hundred
    kilobytes, are sent to the processes with the item vectors, instead of the table. Each process scores the positions
    of all processes against its part of the catalogue; two numbers per position combine the parts into one softmax.
    Loss and gradient are computed together for some positions at a time, so that at most `SCORES_AT_ONCE` scores exist.
    """
    divisor = partition.n_processes if averaged else 1
    return _CatalogueSoftmax.apply(  # type: ignore[no-untyped-call]
        hidden, vectors, targets, weights, partition, first, divisor, sizes
    )


class Sampled(NamedTuple):
    """Hold the inputs of a sampled loss.

    The scores are `positive` [M] of the targets and `negative` [M, K], -inf where a negative is the target itself.
    `log_expected` [K] is the log of the expected count of each negative among the K draws, `n_items` the size of the
    catalogue, `calibration` the setting of gBCE.
    """

    positive: Tensor
    negative: Tensor
    log_expected: Tensor
    n_items: int
    calibration: float


def sampled_softmax_loss(scores: Sampled) -> Tensor:
    """Return the cross-entropies [M] of a softmax over the target and the sampled negatives.

    Each negative is weighted by the inverse of its expected count (the logQ correction: Bengio and Senécal 2008). The
    target is not sampled and so not corrected (Khrylchenko et al. 2025). The partition sum is then unbiased.
    """
    candidates = torch.cat([scores.positive[:, None], scores.negative - scores.log_expected], dim=1)
    return candidates.logsumexp(1) - scores.positive


def gbce_loss(scores: Sampled) -> Tensor:
    """Return the gBCE losses [M] (gSASRec: Petrov and Macdonald 2023).

    Binary cross-entropy against K negatives makes scores overconfident, the more the smaller K is relative to the
    catalogue's `n_items`. The power β of the positive's probability corrects the share `calibration` of that, from 0
    (plain binary cross-entropy) to 1. A score of zero is shifted to the odds of a random item: starting from a
    probability of 0.5, every item would first be pushed down by large gradients, which Adagrad never forgets.
    """
    n_negatives, n_others = scores.negative.shape[1], scores.n_items - 1
    rate = n_negatives / n_others
    beta = rate * (scores.calibration * (1 - 1 / rate) + 1 / rate)
    positive, negative = scores.positive - math.log(n_others), scores.negative - math.log(n_others)
    return -(beta * F.logsigmoid(positive) + F.logsigmoid(-negative).sum(1)) / (n_negatives + 1)


def bpr_loss(scores: Sampled) -> Tensor:
    """Return the BPR losses [M] (Rendle et al. 2009): the mean logistic loss of target against negative scores."""
    return -F.logsigmoid(scores.positive[:, None] - scores.negative).mean(1)


SAMPLED_LOSSES: dict[str, Callable[[Sampled], Tensor]] = {
    "sampled_softmax": sampled_softmax_loss, "gbce": gbce_loss, "bpr": bpr_loss,
}  # fmt: skip
"""training.loss → function that returns the losses [M]; all of them need negatives, unlike the exact softmax."""


class _CatalogueSoftmax(Function):
    """The softmax over the catalogue; backward can run only once.

    The last tile, usually the only one, adds its gradient of the vectors in backward, where the scale is known: scaling
    a finished gradient would take another pass over memory as large as the shard.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, vectors: Tensor, targets: Tensor, weights: Tensor | None, partition: Partition,
        first: int, divisor: int, sizes: Sizes | None,
    ) -> Tensor:  # fmt: skip
        if partition.n_processes == 1:
            sizes = Sizes([len(hidden)], len(vectors))
        elif sizes is None:
            sizes = _exchange_sizes(len(hidden), len(vectors), partition, hidden.device)
        all_hidden, columns, all_weights, own = _of_all(hidden, targets, weights, partition, sizes.n_positions)
        n_rows = max(1, SCORES_AT_ONCE // sizes.largest)  # the same on every process
        sums, vectors = _Sums(vectors), _as_multiplied(vectors)
        losses, of_hidden = [], []
        # Reused for the scores of each tile: the system would have to clear new memory first.
        room = all_hidden.new_empty(min(n_rows, len(all_hidden)) * len(vectors), dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, max(1, len(all_hidden)), n_rows):
                rows = slice(start, start + n_rows)
                sums.add_last()
                sums.last = _Tile(all_hidden[rows], vectors, columns[rows] - first, room)
                is_real = columns[rows] >= 0
                factors = is_real if all_weights is None else is_real * all_weights[rows]
                loss, gradient = sums.last.loss_and_gradient(factors, partition)
                losses.append(loss)
                of_hidden.append(gradient)
        ctx.sums, ctx.divisor = sums, divisor
        ctx.save_for_backward(partition.sum(torch.cat(of_hidden))[own])
        return torch.cat(losses)[own].sum()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        (of_hidden,) = ctx.saved_tensors
        of_vectors = ctx.sums.scaled(scale / ctx.divisor)
        del ctx.sums
        return of_hidden * scale, of_vectors, None, None, None, None, None, None


def _exchange_sizes(n_positions: int, n_vectors: int, partition: Partition, device: torch.device) -> Sizes:
    """Return the sizes of all processes; waits for the device."""
    counts, sizes = partition.stack(torch.tensor([n_positions, n_vectors], device=device)).T.tolist()
    return Sizes(counts, max(sizes))


def _of_all(
    hidden: Tensor, targets: Tensor, weights: Tensor | None, partition: Partition, counts: list[int]
) -> tuple[Tensor, Tensor, Tensor | None, slice]:
    """Return all processes' `hidden` [M, d], `targets` and `weights` [M], and the slice of this one.

    `counts` are their M. Takes one message: the hidden states, each with the bits of its target and of its weight
    viewed as floats.
    """
    if partition.n_processes == 1:
        return hidden, targets, weights, slice(0, len(hidden))
    width = hidden.shape[1]
    parts = [targets] if weights is None else [targets, weights]
    packed, own = partition.concatenate(
        torch.cat([hidden, *(part[:, None].view(hidden.dtype) for part in parts)], dim=1), counts
    )
    columns, *all_weights = (
        part.contiguous().view(kind.dtype)[:, 0]
        for part, kind in zip(
            packed[:, width:].split([part.itemsize // hidden.itemsize for part in parts], dim=1), parts, strict=True
        )
    )
    return packed[:, :width].contiguous(), columns, next(iter(all_weights), None), own


class _Sums:
    """The gradient of `vectors`, summed over tiles; the gradient of the tile `last` is not added yet."""

    def __init__(self, vectors: Tensor) -> None:
        self._like = vectors
        self._sum: Tensor | None = None
        self.last: _Tile | None = None

    def add_last(self, scale: Tensor | float = 1.0) -> None:
        if self.last is None:
            return
        is_first = self._sum is None
        if self._sum is None:  # not zeroed: that would take another pass over memory as large as the shard
            self._sum = torch.empty_like(self._like, dtype=torch.float32)
        self.last.add_to(self._sum, scale, is_first=is_first)

    def scaled(self, scale: Tensor) -> Tensor:
        """Return the whole gradient, multiplied by `scale`."""
        if self._sum is not None:
            self._sum.mul_(scale)
        self.add_last(scale)
        assert self._sum is not None
        return self._sum


class _Tile:
    """Scores of some positions, `hidden` [m, D], against all `vectors` [V, D], their softmax and its gradient.

    Columns are processed in blocks that stay in cache. `columns` [m] are the columns of the targets, outside 0 … V - 1
    if another process holds the target. Products are computed in the dtype of `vectors`, sums in float32. The scores
    are written to `room` [at least m · V] float32.
    """

    def __init__(self, hidden: Tensor, vectors: Tensor, columns: Tensor, room: Tensor) -> None:
        self._hidden, self._vectors, self._columns, self._room = hidden, vectors, columns, room
        width = COLUMNS_AT_A_TIME if hidden.device.type == "cpu" else max(1, len(vectors))
        self._blocks = [slice(first, first + width) for first in range(0, len(vectors), width)]
        self._weights: list[Tensor] = []

    def loss_and_gradient(self, factors: Tensor, partition: Partition) -> tuple[Tensor, Tensor]:
        """Return the losses [m] times `factors` [m], and the gradient of their sum by `hidden` [m, D].

        The factors are 0 without a target; they are weights, or Booleans if all weights are 1.
        """
        pairs = [self._score(block) for block in self._blocks]
        # An empty shard has no columns: there may be more processes than rows.
        nothing = self._hidden.new_zeros(1, len(self._hidden), dtype=torch.float32)
        local_log_sums = torch.stack([log_sums for log_sums, _ in pairs]) if pairs else nothing - torch.inf
        target_scores = torch.stack([scores for _, scores in pairs]) if pairs else nothing
        shares = partition.stack(torch.stack([local_log_sums.logsumexp(0), target_scores.sum(0)]))
        log_sums, target_scores = shares[:, 0].logsumexp(0), shares[:, 1].sum(0)
        shares_of_blocks = (local_log_sums - log_sums).exp() * factors
        of_hidden = self._hidden.new_zeros(self._hidden.shape, dtype=torch.float32)
        for block, weights, share in zip(self._blocks, self._weights, shares_of_blocks, strict=False):
            weights.mul_(share[:, None])
            place, is_inside = self._place(block)
            weights.scatter_add_(1, place, -(is_inside.float() * factors)[:, None])
            _add_product(of_hidden, weights, self._vectors[block], self._vectors.dtype)
        return (log_sums - target_scores) * factors, of_hidden

    def _score(self, block: slice) -> tuple[Tensor, Tensor]:
        """Return the log-sum-exp [m] over a block of columns, and the scores [m] of the targets in it, 0 for others."""
        vectors = self._vectors[block]
        n_rows = len(self._hidden)
        scores = self._room[n_rows * block.start : n_rows * (block.start + len(vectors))].view(n_rows, len(vectors))
        _add_product(scores, self._hidden, vectors.T, vectors.dtype, is_first=True)
        place, is_inside = self._place(block)
        target_scores = scores.gather(1, place)[:, 0] * is_inside
        peaks = scores.amax(1)
        self._weights.append(torch.softmax(scores, 1, out=scores))
        return peaks - scores.amax(1).log(), target_scores

    def _place(self, block: slice) -> tuple[Tensor, Tensor]:
        """Return the targets' columns in the `block` [m, 1], arbitrary if outside, and whether they are inside [m]."""
        inside, width = self._columns - block.start, len(self._vectors[block])
        return inside.clamp(0, width - 1)[:, None], (inside >= 0) & (inside < width)

    def add_to(self, of_vectors: Tensor, scale: Tensor | float, *, is_first: bool) -> None:
        """Add `scale` × the gradient of the vectors to `of_vectors` [V, D], or with `is_first` write it there."""
        scaled = self._hidden * scale
        for block, weights in zip(self._blocks, self._weights, strict=True):
            _add_product(of_vectors[block], weights.T, scaled, self._vectors.dtype, is_first=is_first)


def _add_product(total: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype, *, is_first: bool = False) -> None:
    """Add `left` @ `right`, multiplied in `dtype`, to `total`; with `is_first` write it there."""
    if dtype == total.dtype:
        total.addmm_(left, right, beta=0 if is_first else 1)
    elif is_first:
        total.copy_(left.to(dtype) @ right.to(dtype))
    else:
        total.add_(left.to(dtype) @ right.to(dtype))


def _as_multiplied(values: Tensor) -> Tensor:
    """Return `values` in the dtype in which autocast multiplies matrices; unchanged if autocast is off."""
    device = values.device.type
    return values.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else values
