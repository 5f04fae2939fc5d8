"""Losses: one plain function each, over hidden states or scores of candidates."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from bert4rec.runtime.collectives import Partition

SCORES_AT_ONCE = 2**24  # of the softmax over the catalogue: 64 MiB in float32


def softmax_loss(
    hidden: Tensor, vectors: Tensor, targets: Tensor, partition: Partition, *, first: int = 0, averaged: bool = False
) -> Tensor:
    """The sum of the cross-entropies of `hidden` [M, d] against a whole catalogue; exact.

    `vectors` [V, d] are those of the items `first` … of this process's part of the catalogue; rows of a table that
    stand before the catalogue, at negative places, are no candidates. `targets` [M] count from the catalogue's first
    item; negative ones are ignored. The sum, not the mean: the mean is over the positions of all processes, which only
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
    """What a loss against negatives is computed from.

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
    """The cross-entropies [M] where a few negatives stand for the catalogue.

    Each negative counts for as many items as it stands for (the logQ correction: Bengio and Senécal 2008); the target
    is not drawn and so not corrected (Khrylchenko et al. 2025). The partition sum is then unbiased.
    """
    candidates = torch.cat([scores.positive[:, None], scores.negative - scores.log_expected], dim=1)
    return candidates.logsumexp(1) - scores.positive


def gbce_loss(scores: Sampled) -> Tensor:
    """gBCE (gSASRec: Petrov and Macdonald 2023), [M].

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
    """BPR (Rendle et al. 2009), [M]: how far targets stand above negatives, each pair a logistic loss; their mean."""
    return -F.logsigmoid(scores.positive[:, None] - scores.negative).mean(1)


SAMPLED_LOSSES: dict[str, Callable[[Sampled], Tensor]] = {
    "sampled_softmax": sampled_softmax_loss, "gbce": gbce_loss, "bpr": bpr_loss,
}  # fmt: skip
"""training.loss → the losses [M] of the positions; each needs negatives, as the exact softmax does not."""


class _CatalogueSoftmax(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, vectors: Tensor, targets: Tensor, partition: Partition, first: int, divisor: int
    ) -> Tensor:
        all_hidden, own = partition.concatenate(hidden)
        columns = partition.concatenate(targets)[0]
        is_real, columns = columns >= 0, columns - first
        sizes = partition.stack(torch.tensor([len(vectors)], device=vectors.device))
        losses, of_hidden, of_vectors = [], [], None
        step = max(1, SCORES_AT_ONCE // int(sizes.max()))  # the same on every process
        for start in range(0, len(all_hidden), step):
            tile = slice(start, start + step)
            scores = (all_hidden[tile] @ vectors.T).float()
            scores[:, : max(0, -first)] = -torch.inf
            loss, gradient = _loss_and_gradient(scores, columns[tile], is_real[tile], partition)
            losses.append(loss)
            of_hidden.append((gradient @ vectors).float())  # sums in fp32, also under autocast
            product = (gradient.T @ all_hidden[tile]).float()
            # As large as a shard: a start from zeros would cost a pass over memory.
            of_vectors = product if of_vectors is None else of_vectors.add_(product)
        ctx.save_for_backward(partition.sum(torch.cat(of_hidden))[own], of_vectors)
        ctx.divisor = divisor
        return torch.cat(losses)[own].sum()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_vectors = ctx.saved_tensors
        return of_hidden * scale, of_vectors * (scale / ctx.divisor), None, None, None, None


def _loss_and_gradient(scores: Tensor, columns: Tensor, is_real: Tensor, partition: Partition) -> tuple[Tensor, Tensor]:
    """Losses [m] and the gradient of their sum by `scores` [m, V], whose memory it takes.

    `columns` [m] are the targets', outside 0 … V - 1 where another process has them.
    """
    n_columns = scores.shape[1]
    rows = (is_real & (columns >= 0) & (columns < n_columns)).nonzero().squeeze(1)
    target_scores = scores.new_zeros(len(scores)).index_put((rows,), scores[rows, columns[rows]])
    # In a shard of special rows alone all scores are -inf, which less -inf would be no number: here the weights are 0.
    lowest = torch.finfo(scores.dtype).min
    peaks = scores.amax(1).clamp(min=lowest) if n_columns else scores.new_full((len(scores),), lowest)
    weights = scores.sub_(peaks[:, None]).exp_()
    shares = partition.stack(torch.stack([peaks + weights.sum(1).log(), target_scores]))
    log_sums, target_scores = shares[:, 0].logsumexp(0), shares[:, 1].sum(0)
    gradient = weights.mul_(((peaks - log_sums).exp() * is_real)[:, None])
    gradient[rows, columns[rows]] -= 1
    return (log_sums - target_scores) * is_real, gradient
