"""EASE: weights with which the items of a training history predict each other best, in closed form."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.dataset.histories import Rows
from bert4rec.models.prior import last_items
from bert4rec.models.transitions import TrainingHistories
from bert4rec.runtime.arrays import Float32s, Float64s, Int64s
from bert4rec.runtime.collectives import Partition

LAST_ITEMS = 512  # of a history that are scored
REGULARIZATIONS = (20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
USUAL = 3  # index of the regularization without validation users, from which the search starts
SEARCHED_ITEMS, SEARCHED_USERS = 2000, 2048  # the regularization is chosen by the most popular items, and these users
WEIGHT_STEP = 2.0**-20  # weights are multiples of it, so that float32 adds them without rounding, in any order
ROWS_PER_MESSAGE = 1024


class EaseScorer:
    """Scores an item by the sum of the weights to it from the distinct items of the user's history.

    With X users × items, 1 for each item of a training history, and P = (XᵀX + λ I)⁻¹, the weight from i to j is
    -P[i, j] / P[j, j], and 0 from an item to itself (Steck 2019, "Embarrassingly Shallow Autoencoders for Sparse Data",
    arXiv 1905.03375). If only some kinds of events are predicted, the weights predict these from all events. λ is
    the one of `REGULARIZATIONS` with the best NDCG@10 of validation users. Every process holds all `weights`
    [n_items, n_items] float32.
    """

    is_rounded = False
    dtype = torch.float32

    def __init__(self, weights: Tensor, partition: Partition) -> None:
        self._weights, self.partition, self.n_items, self.width = weights, partition, len(weights), LAST_ITEMS

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last distinct items [B, width], and the scores [B, n] of the items `ids` [B, n]."""
        last = torch.from_numpy(_distinct(last_items(rows.items, rows.lengths, self.width)))
        weights = self._weights[last[:, :, None], ids.cpu()[:, None, :]]
        scores = weights.masked_fill_((last == NO_ITEM)[:, :, None], 0).sum(1)
        return last.float().to(ids.device), scores.to(ids.device)

    def items(self, ids: Tensor) -> Tensor:
        """Return the consecutive `ids` unchanged."""
        return ids

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return the scores [B, C] of a tile of the catalogue, `items` [C], after the last items `users` [B, width]."""
        last = users.cpu().long()
        is_item = last != NO_ITEM
        starts = F.pad(is_item.sum(1).cumsum(0), (1, -1))
        scores = F.embedding_bag(last[is_item], self._weights[:, first : first + len(items)], starts, mode="sum")
        return scores.to(users.device)


def shared_ease_weights(histories: TrainingHistories, validation: EvaluationSplit, partition: Partition) -> Tensor:
    """Return what `ease_weights` returns on the first process, on every one: each makes the same calls.

    Takes n_items² × 4 bytes, and three times that on the first process.
    """
    is_first = partition.rank == 0
    if is_first or histories.is_shared:
        weights = ease_weights(histories, validation, solves=is_first)
    else:
        for _ in histories.parts():  # every process makes the same calls between parts
            pass
        weights = torch.zeros(histories.n_items, histories.n_items)
    for first in range(0, len(weights), ROWS_PER_MESSAGE):
        partition.sum(weights[first : first + ROWS_PER_MESSAGE])
    return weights


def ease_weights(histories: TrainingHistories, validation: EvaluationSplit, *, solves: bool = True) -> Tensor:
    """Return the weights [V, V] of EASE for the `histories`, with the λ that is best for the `validation` users.

    Without `solves`, all are 0: the process only counts its share for the one that solves.
    """
    pairs, searched = _count(histories, np.arange(histories.n_items)), _searched(validation)
    if not solves:
        return torch.zeros(histories.n_items, histories.n_items)
    popular = _most_popular(pairs.all.diagonal().numpy())
    return _solve(pairs, _regularization(pairs.of(torch.from_numpy(popular)), popular, histories.n_items, searched))


def best_regularization(
    histories: TrainingHistories, popularity: Float64s, validation: EvaluationSplit, *, solves: bool = True
) -> float:
    """Return the λ of `ease_weights`; `popularity` [V] is the number of histories with each item.

    Without `solves`, it is 0, as there.
    """
    popular = _most_popular(popularity)
    pairs, searched = _count(histories, popular), _searched(validation)
    return _regularization(pairs, popular, histories.n_items, searched) if solves else 0.0


def _searched(validation: EvaluationSplit) -> Rows | None:
    """Return the `validation` users by whom the regularization is chosen; None if there are none."""
    return validation.read(np.arange(min(len(validation), SEARCHED_USERS))) if len(validation) else None


class _Pairs(NamedTuple):
    """The numbers of histories with both items of a pair [V, V]; with the second one as a target, None if all are."""

    all: Tensor
    to_targets: Tensor | None

    def of(self, items: Tensor) -> "_Pairs":
        """Return the pairs of some of the `items` [n]."""
        to_targets = None if self.to_targets is None else self.to_targets[items][:, items]
        return _Pairs(self.all[items][:, items], to_targets)


def _most_popular(popularity: Float32s | Float64s) -> Int64s:
    """Return the items by which the regularization is chosen."""
    return np.argsort(-popularity, kind="stable")[:SEARCHED_ITEMS]


def _count(histories: TrainingHistories, counted: Int64s) -> _Pairs:
    """Return the pairs of the `counted` items [n], in this order, in the training histories."""
    shape, numbers = (len(counted), len(counted)), np.full(histories.n_items, NO_ITEM, np.int64)
    numbers[counted] = np.arange(len(counted))
    pairs, to_targets = (np.zeros(shape, np.float32) for _ in range(2))  # pages of zeros take no memory
    for part in histories.parts():
        ends = np.flatnonzero(np.diff(part.users)) + 1
        for items, is_target in zip(np.split(numbers[part.items], ends), np.split(part.is_target, ends), strict=True):
            is_counted = items != NO_ITEM
            distinct = np.unique(items[is_counted])
            pairs[np.ix_(distinct, distinct)] += 1
            if histories.target_kinds:
                to_targets[np.ix_(distinct, np.unique(items[is_counted & is_target]))] += 1
    all_pairs = torch.from_numpy(histories.sum(pairs))
    return _Pairs(all_pairs, torch.from_numpy(histories.sum(to_targets)) if histories.target_kinds else None)


def _solve(pairs: _Pairs, regularization: float) -> Tensor:
    """Return the weights [V, V] for the histories that the `pairs` count."""
    regularized = pairs.all + torch.diag(torch.full((len(pairs.all),), regularization))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(regularized))
    diagonal = inverse.diagonal().clone()
    if pairs.to_targets is None:
        weights = inverse.div_(-diagonal)
    else:
        weights = inverse @ pairs.to_targets
        weights -= inverse * (weights.diagonal() / diagonal)
    weights.fill_diagonal_(0).div_(WEIGHT_STEP).round_().mul_(WEIGHT_STEP)
    return weights.contiguous()  # LAPACK has columns first; processes add up memory as it is


def _regularization(pairs: _Pairs, popular: Int64s, n_items: int, rows: Rows | None) -> float:
    """Return the best of `REGULARIZATIONS` for the users of `rows`, searched up and down from the usual one.

    `pairs` are those of the `popular` items [n], in this order.
    """
    if rows is None:
        return REGULARIZATIONS[USUAL]
    known = torch.full((n_items + 1,), NO_ITEM)  # the last one: for missing items
    known[torch.from_numpy(popular)] = torch.arange(len(popular))
    assert rows.targets is not None, "an evaluation split has targets"
    last = known[torch.from_numpy(last_items(rows.items, rows.lengths, LAST_ITEMS))]
    targets = known[torch.from_numpy(rows.targets).long()]
    seen = torch.zeros(len(last), len(popular) + 1).scatter_(1, last % (len(popular) + 1), 1)[:, :-1]
    is_tested = targets != NO_ITEM
    is_tested &= seen.gather(1, targets.clamp(min=0)[:, None])[:, 0] == 0
    seen, targets = seen[is_tested], targets[is_tested]

    def ndcg(number: int) -> float:
        scores = seen @ _solve(pairs, REGULARIZATIONS[number])
        ranks = 1 + (scores.masked_fill(seen > 0, -torch.inf) > scores.gather(1, targets[:, None])).sum(1)
        return float(torch.where(ranks <= 10, 1 / (ranks + 1.0).log2(), 0.0).sum())

    best, found = USUAL, {USUAL: ndcg(USUAL)} if len(targets) else {}
    for step in (1, -1) if found else ():
        while 0 <= (number := best + step) < len(REGULARIZATIONS) and number not in found:
            found[number] = ndcg(number)
            best = max(best, number, key=lambda one: found[one])
            if best != number:
                break
    return REGULARIZATIONS[best]


def _distinct(items: Int64s) -> Int64s:
    """Return the `items` [B, n] of each row once, ascending; NO_ITEM replaces the others."""
    items = np.sort(items, axis=1)
    items[:, 1:][items[:, 1:] == items[:, :-1]] = NO_ITEM
    return items
