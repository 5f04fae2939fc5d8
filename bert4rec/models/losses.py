"""Losses: one plain function each, over hidden states or scores of candidates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from bert4rec.runtime.collectives import Partition

SCORES_AT_ONCE = 2**24  # of the softmax over the catalogue: 64 MiB in float32
COLUMNS_AT_A_TIME = 4096  # of them on CPU: what is done to so many is done in cache


@dataclass(frozen=True)
class LossSettings:
    """Hold the `loss` of a model, by the keys of [training]; the others are for gBCE and for ratings."""

    loss: str = "softmax"
    gbce_calibration: float = 0.75
    rating_range: Sequence[float] = ()


SOFTMAX = LossSettings()


def softmax_loss(
    hidden: Tensor, vectors: Tensor, targets: Tensor, partition: Partition, *, first: int = 0, averaged: bool = False
) -> Tensor:
    """Return the sum of the cross-entropies of `hidden` [M, d] against a whole catalogue; exact.

    `vectors` [V, d] are those of the items `first` … of this process's part of the catalogue. `targets` [M] are items;
    negative ones are ignored. The sum, not the mean: the mean is over the positions of all processes, which only
    the trainer can count. With `averaged` the gradient of the vectors is divided by the number of processes, as is done
    elsewhere with a table that each of them has.

    This is the vocabulary-parallel cross-entropy of Megatron-LM (Shoeybi et al. 2019): the hidden states go to where
    the item vectors are, a few hundred kilobytes instead of the table. Each process scores all processes' positions
    against its own share, and two numbers a position make the shares one softmax. Loss and gradient are worked out
    together, some positions at a time, so that never more than `SCORES_AT_ONCE` scores exist.
    """
    divisor = partition.n_processes if averaged else 1
    return _CatalogueSoftmax.apply(hidden, vectors, targets, partition, first, divisor)  # type: ignore[no-untyped-call]


class Sampled(NamedTuple):
    """Hold the inputs of a loss against negatives.

    Scores `positive` [M] of the targets and `negative` [M, K], -inf where a negative is the target itself; the log of
    how often each negative was to be expected among the K draws, `log_expected` [K]; the catalogue's `n_items`; gBCE's
    `calibration`.
    """

    positive: Tensor
    negative: Tensor
    log_expected: Tensor
    n_items: int
    calibration: float


def sampled_softmax_loss(scores: Sampled) -> Tensor:
    """Return the cross-entropies [M] where a few negatives stand for the catalogue.

    Each negative counts for as many items as it stands for (the logQ correction: Bengio and Senécal 2008); the target
    is not drawn and so not corrected (Khrylchenko et al. 2025). The partition sum is then unbiased.
    """
    candidates = torch.cat([scores.positive[:, None], scores.negative - scores.log_expected], dim=1)
    return candidates.logsumexp(1) - scores.positive


def gbce_loss(scores: Sampled) -> Tensor:
    """Return gBCE (gSASRec: Petrov and Macdonald 2023), [M].

    Binary cross-entropy against K negatives makes scores too confident, the more so the fewer there are of the
    catalogue's `n_items`; the power β of the positive's probability undoes the share `calibration` of that, from 0
    (plain binary cross-entropy) to 1. Scores of zero mean the odds of any item: else every item would first be pushed
    down from a half, by gradients that Adagrad never forgets.
    """
    n_negatives, n_others = scores.negative.shape[1], scores.n_items - 1
    rate = n_negatives / n_others
    beta = rate * (scores.calibration * (1 - 1 / rate) + 1 / rate)
    positive, negative = scores.positive - math.log(n_others), scores.negative - math.log(n_others)
    return -(beta * F.logsigmoid(positive) + F.logsigmoid(-negative).sum(1)) / (n_negatives + 1)


def bpr_loss(scores: Sampled) -> Tensor:
    """Return BPR (Rendle et al. 2009) [M]: the mean logistic loss of target against negative scores."""
    return -F.logsigmoid(scores.positive[:, None] - scores.negative).mean(1)


SAMPLED_LOSSES: dict[str, Callable[[Sampled], Tensor]] = {
    "sampled_softmax": sampled_softmax_loss, "gbce": gbce_loss, "bpr": bpr_loss,
}  # fmt: skip
"""training.loss → the losses [M] of the positions; each needs negatives, as the exact softmax does not."""


class _CatalogueSoftmax(Function):
    """The last tile, mostly the only one, adds its gradient of the vectors in backward, where the scale is known.

    To scale it there would be one more pass over memory as large as the shard. So there can be one backward only.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, vectors: Tensor, targets: Tensor, partition: Partition, first: int, divisor: int
    ) -> Tensor:
        all_hidden, columns, own, largest = _of_all(hidden, targets, partition, n_vectors=len(vectors))
        n_rows = max(1, SCORES_AT_ONCE // largest)  # the same on every process
        sums, vectors = _Sums(vectors), _as_multiplied(vectors)
        losses, of_hidden = [], []
        # For the scores of each tile in turn: new memory would have to be cleared first.
        room = all_hidden.new_empty(min(n_rows, len(all_hidden)) * len(vectors), dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, max(1, len(all_hidden)), n_rows):
                rows = slice(start, start + n_rows)
                sums.add_last()
                sums.last = _Tile(all_hidden[rows], vectors, columns[rows] - first, room)
                loss, gradient = sums.last.loss_and_gradient(columns[rows] >= 0, partition)
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
        return of_hidden * scale, of_vectors, None, None, None, None


def _of_all(
    hidden: Tensor, targets: Tensor, partition: Partition, *, n_vectors: int
) -> tuple[Tensor, Tensor, slice, int]:
    """Return all processes' `hidden` [M, d] and `targets` [M], this one's slice, and the largest `n_vectors`.

    Two messages: the numbers, then each target beside its hidden state, its bits taken for more of such numbers.
    """
    if partition.n_processes == 1:
        return hidden, targets, slice(0, len(hidden)), n_vectors
    counts, sizes = partition.stack(torch.tensor([len(hidden), n_vectors], device=hidden.device)).T.tolist()
    width = hidden.shape[1]
    packed, own = partition.concatenate(torch.cat([hidden, targets[:, None].view(hidden.dtype)], dim=1), counts)
    columns = packed[:, width:].contiguous().view(targets.dtype)[:, 0]
    return packed[:, :width].contiguous(), columns, own, max(sizes)


class _Sums:
    """The gradient of `vectors`, from tile after tile; `last`: a tile whose share is not in it yet."""

    def __init__(self, vectors: Tensor) -> None:
        self._like = vectors
        self._sum: Tensor | None = None
        self.last: _Tile | None = None

    def add_last(self, scale: Tensor | float = 1.0) -> None:
        if self.last is None:
            return
        is_first = self._sum is None
        if self._sum is None:  # without zeros, which would be one more pass over memory as large as the shard
            self._sum = torch.empty_like(self._like, dtype=torch.float32)
        self.last.add_to(self._sum, scale, is_first=is_first)

    def scaled(self, scale: Tensor) -> Tensor:
        """Return the whole gradient."""
        if self._sum is not None:
            self._sum.mul_(scale)
        self.add_last(scale)
        assert self._sum is not None
        return self._sum


class _Tile:
    """Some positions, `hidden` [m, D], against all `vectors` [V, D]: scores, their softmax, the gradient by them.

    Columns are taken a block at a time, so that what is done to a block is done while it is in cache. `columns`
    [m] are the targets', outside 0 … V - 1 where another process has them. Products are made in the type of
    `vectors`, sums in float32. The scores take `room` [at least m · V] float32.
    """

    def __init__(self, hidden: Tensor, vectors: Tensor, columns: Tensor, room: Tensor) -> None:
        self._hidden, self._vectors, self._columns, self._room = hidden, vectors, columns, room
        width = COLUMNS_AT_A_TIME if hidden.device.type == "cpu" else max(1, len(vectors))
        self._blocks = [slice(first, first + width) for first in range(0, len(vectors), width)]
        self._weights: list[Tensor] = []

    def loss_and_gradient(self, is_real: Tensor, partition: Partition) -> tuple[Tensor, Tensor]:
        """Return losses [m] of the positions that are real, and the gradient of their sum by `hidden` [m, D]."""
        found = [self._score(block) for block in self._blocks]
        # An empty shard, of one process more than there are rows to share, has no columns.
        nothing = self._hidden.new_zeros(1, len(self._hidden), dtype=torch.float32)
        own = torch.stack([log_sums for log_sums, _ in found]) if found else nothing - torch.inf
        target_scores = torch.stack([scores for _, scores in found]) if found else nothing
        shares = partition.stack(torch.stack([own.logsumexp(0), target_scores.sum(0)]))
        log_sums, target_scores = shares[:, 0].logsumexp(0), shares[:, 1].sum(0)
        factors = (own - log_sums).exp() * is_real
        of_hidden = self._hidden.new_zeros(self._hidden.shape, dtype=torch.float32)
        for block, weights, factor in zip(self._blocks, self._weights, factors, strict=False):
            weights.mul_(factor[:, None])
            place, is_here = self._place(block)
            weights.scatter_add_(1, place, -is_here.float()[:, None])
            _add_product(of_hidden, weights, self._vectors[block], self._vectors.dtype)
        return (log_sums - target_scores) * is_real, of_hidden

    def _score(self, block: slice) -> tuple[Tensor, Tensor]:
        """Return log-sum-exp [m] over a block of columns, and the scores [m] of targets among them."""
        vectors = self._vectors[block]
        n_rows = len(self._hidden)
        scores = self._room[n_rows * block.start : n_rows * (block.start + len(vectors))].view(n_rows, len(vectors))
        _add_product(scores, self._hidden, vectors.T, vectors.dtype, is_first=True)
        place, is_here = self._place(block)
        of_targets = scores.gather(1, place)[:, 0] * is_here
        peaks = scores.amax(1)
        self._weights.append(torch.softmax(scores, 1, out=scores))
        return peaks - scores.amax(1).log(), of_targets

    def _place(self, block: slice) -> tuple[Tensor, Tensor]:
        """Return the targets' columns within the `block` [m, 1], arbitrary if outside; and whether they are inside."""
        inside, width = self._columns - block.start, len(self._vectors[block])
        return inside.clamp(0, width - 1)[:, None], (inside >= 0) & (inside < width)

    def add_to(self, of_vectors: Tensor, scale: Tensor | float, *, is_first: bool) -> None:
        """Add `scale` × the gradient by the vectors to `of_vectors` [V, D], or with `is_first` write it there."""
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
    """Return `tensor` in the dtype in which autocast multiplies matrices, if it is on."""
    device = values.device.type
    return values.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else values
