"""The prior under a model in an evaluation: its scores beside those of the model, and the choice of its weights."""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.dataset.histories import Rows
from bert4rec.evaluation.batches import assigned, chunks, gathered
from bert4rec.evaluation.intervals import COMPARED_AT
from bert4rec.evaluation.ranker import Ranker
from bert4rec.evaluation.scorers import KnownItems, Scorer
from bert4rec.evaluation.seen_items import LeavesOut, are_left_out
from bert4rec.evaluation.top_k import TopK
from bert4rec.models.prior import PRIOR_SOURCES, Prior, last_items
from bert4rec.runtime.arrays import Float64s
from bert4rec.runtime.collectives import Partition, on_rank_zero

ID_DIGIT = 1 << 12  # of ids in two columns of float32, which holds integers up to 2^24
FITTED_USERS = 8192  # validation users that the weights are chosen with; 2,048 lose 2 % NDCG@10 on Sports
CANDIDATES = 64  # best items of the model and of each source that are compared with the target
GRID = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)  # weights, in standard deviations of the model's scores
LEAST_GAIN = 1.0  # standard errors of the paired difference from which a prior is taken
LEAST_DEVIATION = 1e-9  # instead of zero, in denominators
DENSE_SCORES = 1 << 22  # in memory


class PriorScorer:
    """Add the `prior`, with its current weights, to the scores of a model by `scorer`.

    `known` are the known items of a dataset with another catalogue: the others are no part of a history. The vector of
    a user ends with the last items, that of an item with a number that only items have to which the prior adds the
    same: twins have the same vector.
    """

    is_rounded, dtype = True, torch.float32

    def __init__(self, scorer: Scorer, prior: Prior, known: KnownItems | None = None) -> None:
        self._scorer, self._prior, self._known = scorer, prior, known
        self.n_items, self.partition = scorer.n_items, scorer.partition
        self.width = scorer.width + 2 * prior.n_last
        self._marks = _marks(prior, scorer.n_items)

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors [B, width] of the users of `rows`, and their scores [B, n] of the items `ids` [B, n]."""
        users, scores = self._scorer.encode(rows, ids)
        n = self._prior.n_last
        last = last_of(rows, n, self._known, users.device)
        everything, own = self.partition.concatenate(torch.cat([last, ids.to(last.device)], 1))
        added = self.partition.sum(self._prior.of_pairs(everything[:, :n], everything[:, n:]))[own]
        return torch.cat([users, (last // ID_DIGIT).float(), (last % ID_DIGIT).float()], 1), scores + added

    def items(self, ids: Tensor) -> Tensor:
        """Return the vectors [C, D + 1] of the items `ids` [C]."""
        vectors = self._scorer.items(ids)
        return torch.cat([vectors, self._marks[ids][:, None].to(vectors)], 1)

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return the scores [B, C] of users [B, width] for the items [C, …], from the item `first` on."""
        n = self._prior.n_last
        known, high, low = users.split([users.shape[1] - 2 * n, n, n], 1)
        scores = self._scorer.scores(known.contiguous(), items[:, :-1].contiguous(), first, tile)
        self._prior.add(scores, (high * ID_DIGIT + low).long(), first)
        return scores


class ZeroScorer:
    """Score all items 0, so that a `PriorScorer` around it ranks by the prior alone."""

    width, dtype, is_rounded = 0, torch.float32, False

    def __init__(self, n_items: int, partition: Partition, device: torch.device) -> None:
        self.n_items, self.partition, self._device = n_items, partition, device

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors [B, 0] of the users of `rows`, and the scores [B, n] of the items `ids` [B, n]."""
        return torch.zeros(len(ids), 0, device=self._device), torch.zeros(ids.shape, device=self._device)

    def items(self, ids: Tensor) -> Tensor:
        """Return the vectors [C, 0] of the items `ids` [C]."""
        return torch.zeros(len(ids), 0, device=self._device)

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return the scores [B, C] of users [B, 0] for items [C, 0]."""
        return torch.zeros(len(users), len(items), device=self._device)


def last_of(rows: Rows, n: int, known: KnownItems | None, device: torch.device) -> Tensor:
    """Return the last `n` items of the rows [B, n], the newest first, of the `known` ones if there are others."""
    if known is not None:
        rows = rows.part(known.ids[rows.items] != NO_ITEM)
    return torch.from_numpy(last_items(rows.items, rows.lengths, n)).to(device)


def _marks(prior: Prior, n_items: int) -> Tensor:
    """Return for each item [V] its id if the prior has a weight to it, else a number below zero that tells its bias."""
    marks = prior.marks()
    everywhere = torch.zeros(n_items, device=marks.device)
    everywhere[prior.items.start : prior.items.stop] = marks
    return prior.partition.sum(everywhere)


class Features(NamedTuple):
    """The scores of candidates by the model [N, C] and the sources [N, C, F]; the first candidate is the target.

    The score of the model is -inf for what is no candidate. Both are float64.
    """

    model: Tensor
    sources: Tensor

    def ranks(self, weights: Tensor) -> Float64s:
        """Return the rank [N] of each target among its candidates, with `weights` [F] of the sources."""
        scores = self.model + self.sources @ weights
        return (1 + (scores[:, 1:] >= scores[:, :1]).sum(1)).double().numpy()


class PriorFit:
    """Choose the weights of a `prior` for a model by the users of a `split`; every process makes the same calls.

    With `is_auto`, the prior is left out if it does not pay.
    """

    def __init__(
        self, prior: Prior, split: EvaluationSplit, *, batch_size: int, leaves_out_seen: LeavesOut, is_auto: bool
    ) -> None:
        self.prior, self._split, self._partition = prior, split, prior.partition
        self._batch_size, self._leaves_out_seen, self._is_auto = batch_size, leaves_out_seen, is_auto
        indices = np.unique(np.linspace(0, len(split) - 1, min(len(split), FITTED_USERS)).astype(np.int64))
        if leaves_out_seen is not False and len(split):
            rows = split.read(indices)
            assert rows.targets is not None, "an evaluation split has targets"
            indices = indices[~(rows.are_repeated() & are_left_out(leaves_out_seen, rows.targets))]
        self._indices = indices
        self._columns = [(name, at) for name in prior.sources for at in range(len(PRIOR_SOURCES[name].decays))]

    def fit(self, scorer: Scorer, ranker: Ranker) -> None:
        """Set the weights of the prior for the model of `scorer` and its `ranker`; without users there are none."""
        if not len(self._indices):
            return
        features = self._features(scorer, ranker)
        chosen = on_rank_zero(lambda: choose_weights(features, is_auto=self._is_auto).tolist())
        weights: dict[str, list[float]] = {}
        for (name, _), weight in zip(self._columns, chosen, strict=True):
            weights.setdefault(name, []).append(weight)
        self.prior.weights = {name: values for name, values in weights.items() if any(values)}

    @torch.no_grad()
    def _features(self, scorer: Scorer, ranker: Ranker) -> Features:
        rows = self._rows  # read by all processes, also by one that ranks no items
        assert rows.targets is not None, "an evaluation split has targets"
        targets = torch.from_numpy(rows.targets.astype(np.int64))[:, None]
        best = ranker.best(self._split, self._indices, min(CANDIDATES, scorer.n_items))
        ids = torch.cat([targets, _ids_of(best), *self._lists], 1)
        is_new = _are_first(ids) & (ids != NO_ITEM)
        ids = torch.where(is_new, ids, targets)
        model = self._model_scores(scorer, ids).cpu().double().masked_fill(~is_new, -torch.inf)
        return Features(model, self._source_scores(ids).cpu().double())

    def _model_scores(self, scorer: Scorer, ids: Tensor) -> Tensor:
        """Return the scores [N, C] of the candidates `ids` [N, C] by the model."""
        n, size = len(ids), min(len(ids), self._batch_size)
        batches, results = list(chunks(n, size)), []
        for number, is_own in assigned(len(batches), self._partition):
            where = batches[number]
            _, scores = scorer.encode(self._split.read(self._indices[where]), ids[where])
            results.append(F.pad(scores.float(), (0, 0, 0, size - len(scores))) * is_own)
        return gathered(torch.stack(results), n, self._partition)

    @cached_property
    def _rows(self) -> Rows:
        """Return the users."""
        return self._split.read(self._indices)

    @cached_property
    def _last(self) -> Tensor:
        """Return the last items [N, n] of the users."""
        return last_of(self._rows, self.prior.n_last, None, self.prior.device)

    @cached_property
    def _lists(self) -> list[Tensor]:
        """Return the best candidates [N, CANDIDATES] of each column of the sources, without seen items by the rule."""
        rows, first, lists = self._rows, self.prior.items.start, []
        excluded = rows.part(are_left_out(self._leaves_out_seen, rows.items))
        excluded = excluded.part((excluded.items >= first) & (excluded.items < self.prior.items.stop))
        users, items = torch.from_numpy(excluded.numbers), torch.from_numpy(excluded.items.astype(np.int64) - first)
        for column in self._columns:
            best = TopK.nothing(len(self._indices), CANDIDATES, dtype=torch.float32, device=self.prior.device)
            for where, scores in self._scores(column):
                start, stop = torch.searchsorted(users, torch.tensor([where.start, where.stop])).tolist()
                scores[users[start:stop] - where.start, items[start:stop]] = -torch.inf
                best.update(where, scores, first)
            lists.append(_ids_of(best.merge_all(self._partition)))
        return lists

    def _source_scores(self, ids: Tensor) -> Tensor:
        """Return the scores [N, C, F] of the candidates `ids` [N, C] by each column of the sources."""
        found = torch.zeros(*ids.shape, len(self._columns), device=self.prior.device)
        ids = ids.to(self.prior.device)
        first, stop = self.prior.items.start, self.prior.items.stop
        is_own, places = (ids >= first) & (ids < stop), ids - first
        for number, column in enumerate(self._columns):
            for where, scores in self._scores(column):
                found[where, :, number] = scores.gather(1, torch.where(is_own, places, 0)[where]) * is_own[where]
        return self._partition.sum(found)

    def _scores(self, column: tuple[str, int]) -> Iterator[tuple[slice, Tensor]]:
        """Yield the scores [b, own items] of some users at a time by one column of the sources, if there are any."""
        (name, at), n_items = column, len(self.prior.items)
        unit = [float(number == at) for number in range(len(PRIOR_SOURCES[name].decays))]
        for where in chunks(len(self._indices), max(1, DENSE_SCORES // n_items)) if n_items else ():
            scores = torch.zeros(where.stop - where.start, n_items, device=self.prior.device)
            self.prior.add(scores, self._last[where], self.prior.items.start, {name: unit})
            yield where, scores


def choose_weights(features: Features, *, is_auto: bool) -> Tensor:
    """Return the weights [F] of the columns of `features`; 0 for one that is not used.

    One weight at a time is replaced by that of `GRID` with the best NDCG@10, until none is better. The weights of a
    softmax regression were smaller on each log that was tried, with a lower NDCG@10 on validation and test.
    With `is_auto`, all are 0 if together they gain less than `LEAST_GAIN` standard errors of NDCG@10.
    """
    is_candidate = features.model > -torch.inf
    units = features.model[is_candidate].std() / features.sources[is_candidate].std(0).clamp(min=LEAST_DEVIATION)
    weights, best, is_better = torch.zeros_like(units), _ndcg(features, torch.zeros_like(units)).mean(), True
    while is_better:
        is_better = False
        for column, unit in enumerate(units):
            for size in GRID:
                changed = weights.index_fill(0, torch.tensor([column]), float(size * unit))
                if (ndcg := _ndcg(features, changed).mean()) > best:
                    weights, best, is_better = changed, ndcg, True
    nothing = torch.zeros_like(units)
    return nothing if is_auto and _gain(features, weights, nothing) < LEAST_GAIN else weights


def _gain(features: Features, weights: Tensor, others: Tensor) -> float:
    """Return by how many standard errors of the paired difference NDCG@10 is higher with `weights` than `others`."""
    differences = _ndcg(features, weights) - _ndcg(features, others)
    error = differences.std() / np.sqrt(len(differences))
    return float(differences.mean() / error) if error else 0.0


def _ndcg(features: Features, weights: Tensor) -> Float64s:
    """Return the NDCG@10 [N] of the targets among the candidates."""
    ranks = features.ranks(weights)
    return np.where(ranks <= COMPARED_AT, 1 / np.log2(ranks + 1), 0.0)


def _are_first(ids: Tensor) -> Tensor:
    """Return which of the `ids` [N, C] are not in an earlier column."""
    order = ids.sort(dim=1, stable=True)
    is_first = F.pad(order.values.diff(dim=1) != 0, (1, 0), value=True)
    return torch.zeros_like(is_first).scatter_(1, order.indices, is_first)


def _ids_of(best: TopK) -> Tensor:
    """Return the items [N, k] of lists on the CPU, NO_ITEM for missing ones."""
    return best.indices.masked_fill(best.scores == -torch.inf, NO_ITEM).cpu()
