"""Losses: one function each, over hidden states or over the scores of candidates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from bert4rec.models.transformer import append_ones
from bert4rec.runtime.collectives import Partition

SCORES_AT_ONCE = 2**24  # scores in memory in the softmax over the catalogue: 64 MiB in float32
SCORES_IN_CACHE = 2**22  # the same on CPU, where all passes over a tile then stay in its cache
# Positions of a tile on CPU, if `SCORES_AT_ONCE` allows: each tile passes over the gradient of all vectors.
LEAST_TILE_ROWS = 512
COLUMNS_AT_A_TIME = 4096  # items per block on CPU: the scores of a block stay in cache
LEAST_SHARE = 1e-32  # of an exponential in a softmax; smaller ones count as so much, far below float32's precision
SMALL_SCORES = 50.0  # exponentials of smaller scores neither overflow nor vanish: no need to find the largest of a row


@dataclass(frozen=True)
class LossSettings:
    """The `loss` of a model and the settings of gBCE and of ratings, named as the keys of [training]."""

    loss: str = "softmax"
    gbce_calibration: float = 0.75
    rating_range: Sequence[float] = ()


SOFTMAX = LossSettings()


class PartSizes(NamedTuple):
    """The number M of positions of each process of a partition, and the largest number V of its vectors."""

    n_positions: list[int]
    largest: int


def softmax_loss(
    hidden: Tensor, vectors: Tensor, targets: Tensor, partition: Partition, *, first: int = 0, averaged: bool = False,
    weights: Tensor | None = None, sizes: PartSizes | None = None,
) -> Tensor:  # fmt: skip
    """Return the sum of the exact cross-entropies of `hidden` [M, d] against the whole catalogue.

    `vectors` [V, D] are the items `first`, `first` + 1, … in this process's part of the catalogue; `append_ones` says
    what multiplies their columns beyond d. `targets` [M] are items; negative ones are ignored. `weights` [M] float32,
    if given, multiply the losses of the positions. The result is a sum: only the trainer knows the number of positions
    of all processes for a mean. With `averaged`, the gradient of the vectors is divided by the number of processes, as
    the gradients of replicated tables are. Several processes need `sizes`.

    This is the vocabulary-parallel cross-entropy of Megatron-LM (Shoeybi et al. 2019). The hidden states, a few hundred
    kilobytes, are sent to the processes with the item vectors, instead of the table. Each process scores the positions
    of all processes against its part of the catalogue; two numbers per position combine the parts into one softmax.
    Loss and gradient are computed together for some positions at a time, so that at most `SCORES_AT_ONCE` scores exist.
    """
    sizes = sizes or PartSizes([len(hidden)], len(vectors))
    share = _Share(partition, first, partition.n_processes if averaged else 1, sizes)
    return _CatalogueSoftmax.apply(hidden, vectors, targets, weights, share)  # type: ignore[no-untyped-call]


class Sampled(NamedTuple):
    """The inputs of a sampled loss.

    The scores are `positive` [M] of the targets and `negative` [M, K], -inf where a negative is the target itself or a
    cold item.
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


class _Share(NamedTuple):
    """This process's share of the catalogue: its first item, and what divides the gradient of its vectors."""

    partition: Partition
    first: int
    divisor: int
    sizes: PartSizes


class _CatalogueSoftmax(Function):
    """The softmax over the catalogue; backward can run only once.

    The gradient of the vectors is summed over the tiles in forward. A single tile computes it in backward, where the
    scale is known: scaling it afterwards would take another pass over memory as large as the shard.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, vectors: Tensor, targets: Tensor, weights: Tensor | None, share: _Share
    ) -> Tensor:
        partition, first, divisor, sizes = share
        all_hidden, all_targets, all_weights, own = _gather_all(hidden, targets, weights, partition, sizes.n_positions)
        is_real = (all_targets >= 0).float()
        factors = is_real if all_weights is None else is_real * all_weights
        vectors, n_rows = _as_multiplied(vectors), rows_of_tile(sizes.largest, hidden.device.type)
        all_hidden, width = append_ones(all_hidden, vectors.shape[1]), hidden.shape[1]
        is_long = hidden.device.type == "cpu" and len(all_hidden) > vectors.shape[1]  # else the norms take longer
        is_small = is_long and _largest_possible(all_hidden, vectors) < SMALL_SCORES
        # Reused for the scores of each tile: the system would have to clear new memory first.
        room = all_hidden.new_empty(min(n_rows, len(all_hidden)) * len(vectors), dtype=torch.float32)
        losses, hidden_gradients = [], []
        ctx.tile, ctx.vector_gradient, ctx.divisor = None, None, divisor
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, max(1, len(all_hidden)), n_rows):
                rows = slice(start, start + n_rows)
                tile = _Tile(all_hidden[rows], vectors, all_targets[rows] - first, factors[rows], room)
                loss, gradient = tile.loss_and_gradient(partition, width, is_small=is_small)
                losses.append(loss)
                hidden_gradients.append(gradient)
                if len(all_hidden) <= n_rows:
                    ctx.tile = tile
                else:
                    ctx.vector_gradient = tile.add_to(ctx.vector_gradient)
        ctx.save_for_backward(partition.sum(torch.cat(hidden_gradients))[own])
        return torch.cat(losses)[own].sum()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        (hidden_gradient,) = ctx.saved_tensors
        factor = scale / ctx.divisor
        vector_gradient = ctx.tile.vector_gradient(factor) if ctx.tile else ctx.vector_gradient.mul_(factor).T
        del ctx.tile, ctx.vector_gradient
        return hidden_gradient * scale, vector_gradient, None, None, None


def rows_of_tile(n_vectors: int, device_type: str) -> int:
    """Return the number of positions that are scored at once against at most `n_vectors` on each process."""
    n_rows = SCORES_AT_ONCE // max(1, n_vectors)
    if device_type == "cpu":
        n_rows = min(n_rows, max(LEAST_TILE_ROWS, SCORES_IN_CACHE // max(1, n_vectors)))
    return max(1, n_rows)


def _largest_possible(hidden: Tensor, vectors: Tensor) -> float:
    """Return a limit of the absolute scores, by the inequality of Cauchy and Schwarz; waits for the device."""
    norms = [F.pad(values.float().norm(dim=1), (1, 0)).amax() for values in (hidden, vectors)]
    return float(norms[0] * norms[1])


def _gather_all(
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


class _Tile:
    """Scores of some positions, `hidden` [m, D], against all `vectors` [V, D], their softmax and its gradient.

    Columns are processed in blocks that stay in cache. `columns` [m] are the columns of the targets, outside 0 … V - 1
    if another process holds the target. `factors` [m] multiply the losses, 0 without a target. Products are computed in
    the dtype of `vectors`, sums in float32. The scores are written to `room` [at least m · V] float32.

    The scores become their exponentials. The factor of each row of a block, its share, multiplies hidden states and
    products [m, D] instead of the block, which saves a pass over all scores.
    """

    def __init__(self, hidden: Tensor, vectors: Tensor, columns: Tensor, factors: Tensor, room: Tensor) -> None:
        self._hidden, self._vectors, self._columns, self._factors = hidden, vectors, columns, factors
        n_rows, width = len(hidden), COLUMNS_AT_A_TIME if hidden.device.type == "cpu" else max(1, len(vectors))
        self._blocks = [slice(first, min(first + width, len(vectors))) for first in range(0, len(vectors), width)]
        self._scores = [
            room[n_rows * block.start : n_rows * block.stop].view(n_rows, block.stop - block.start)
            for block in self._blocks
        ]
        self._shares = factors[None]  # later of each block [blocks, m]

    def loss_and_gradient(self, partition: Partition, width: int, *, is_small: bool) -> tuple[Tensor, Tensor]:
        """Return the losses [m] times the factors, and the gradient of their sum by the first `width` hidden values.

        `is_small` tells that no score is beyond ± `SMALL_SCORES`.
        """
        nothing = self._hidden.new_zeros(1, len(self._hidden), dtype=torch.float32)
        # An empty shard has no columns: there may be more processes than rows.
        found = [self._score(*each, is_small=is_small) for each in zip(self._blocks, self._scores, strict=True)]
        peaks, log_sums, target_scores = map(torch.stack, zip(*found, strict=True)) if found else (
            nothing, nothing - torch.inf, nothing
        )  # fmt: skip
        stacked = partition.stack(torch.stack([log_sums.logsumexp(0), target_scores.sum(0)]))
        log_sum, target_score = stacked[:, 0].logsumexp(0), stacked[:, 1].sum(0)
        shares = (peaks - log_sum).exp().clamp(min=LEAST_SHARE)
        self._shares = shares * self._factors
        hidden_gradient = self._hidden.new_zeros(len(self._hidden), width, dtype=torch.float32)
        for block, scores, share, factor in zip(self._blocks, self._scores, shares, self._shares, strict=False):
            place, is_inside = self._place(block)
            scores.scatter_add_(1, place, -(is_inside / share)[:, None])
            vectors = self._vectors[block, :width]
            hidden_gradient.addcmul_(scores.to(vectors.dtype) @ vectors, factor[:, None])
        return (log_sum - target_score) * self._factors, hidden_gradient

    def _score(self, block: slice, scores: Tensor, *, is_small: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the peaks and log-sum-exps [m] of a block, and the scores [m] of targets in it, 0 for others.

        The `scores` become their exponentials, relative to the peak: the largest of a row, or 0 if all are small.
        """
        vectors = self._vectors[block]
        _add_product(scores, self._hidden, vectors.T, vectors.dtype, is_first=True)
        place, is_inside = self._place(block)
        target_scores = scores.gather(1, place)[:, 0] * is_inside
        peaks = torch.zeros_like(target_scores) if is_small else scores.amax(1)
        if not is_small:
            scores.sub_(peaks[:, None])
        return peaks, peaks + scores.exp_().sum(1).log(), target_scores

    def _place(self, block: slice) -> tuple[Tensor, Tensor]:
        """Return the targets' columns in the `block` [m, 1], arbitrary if outside, and whether they are inside [m]."""
        inside, width = self._columns - block.start, block.stop - block.start
        return inside.clamp(0, width - 1)[:, None], (inside >= 0) & (inside < width)

    def vector_gradient(self, scale: Tensor) -> Tensor:
        """Return `scale` × the gradient [V, D] of the vectors."""
        result = self._vectors.new_empty(self._vectors.shape, dtype=torch.float32)
        for block, scores, share in zip(self._blocks, self._scores, self._shares, strict=False):
            hidden = self._hidden * (share * scale)[:, None]
            _add_product(result[block], scores.T, hidden, self._vectors.dtype, is_first=True)
        return result

    def add_to(self, total: Tensor | None) -> Tensor:
        """Return the gradient of the vectors, transposed [D, V], added to `total`, if given, in place.

        Products whose rows are long are a quarter faster on CPU.
        """
        result = self._vectors.new_empty(self._vectors.T.shape, dtype=torch.float32) if total is None else total
        for block, scores, share in zip(self._blocks, self._scores, self._shares, strict=False):
            hidden = self._hidden * share[:, None]
            _add_product(result[:, block], hidden.T, scores, self._vectors.dtype, is_first=total is None)
        return result


def _add_product(total: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype, *, is_first: bool) -> None:
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
