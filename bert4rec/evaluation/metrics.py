"""Ranks from scores; HR@k, NDCG@k and MRR from ranks; and metrics of lists of recommended items.

A list holds a user's recommendations: the best items of the full catalogue, without seen items if the run filters them.
At each cut-off k:

- `Coverage@k`: the share of the catalogue that is in the list of at least one user;
- `Gini@k`: the inequality of the items' counts in lists: 0 if all are equal, near 1 if few items fill the lists;
- `AveragePopularity@k`: the mean number of training positions of the items in a list, averaged over users;
- `Novelty@k`: the mean of -log2 of an item's share of all training positions, averaged over users; an item without
  training positions counts as if it had one.

Coverage and Gini describe all lists together: they have no values per user, and so no interval.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.dataset.format import LEFT_OUT, NO_ITEM
from bert4rec.evaluation import AVERAGE_POPULARITY, COVERAGE, GINI, NOVELTY
from bert4rec.evaluation.top_k import TopK
from bert4rec.runtime.arrays import Bools, Float64s, Int32s, Int64s, Integers
from bert4rec.runtime.collectives import Partition

T = TypeVar("T", np.int64, np.float64)

MISSED = 0  # instead of a rank: the target is not recommended in a list of any length
LARGEST_VALUE = 1e15  # the dot product of two vectors with values up to this is finite
LARGEST_CUTOFF = 1000  # largest cut-off, since the lists of a pass of users are in memory


def count_outranking(
    scores: Tensor, first: int, target_scores: Tensor, targets: Tensor, rows: Tensor | None = None
) -> Tensor:
    """Return how many [B] of the candidates `first`, `first` + 1, …, with `scores` [B, n], outrank each target.

    The order is that of `outranks`, in one pass over the scores: a candidate with a lower id wins a tie. `scores` [1,
    n] are the same for all rows, and are sorted once. `rows` [m] are those whose targets are among the candidates;
    without them, the host waits for the device.
    """
    n = scores.shape[1]
    just_below = target_scores.nextafter(torch.full_like(target_scores, -torch.inf))
    limits = torch.where(targets >= first + n, just_below, target_scores)
    if len(scores) == 1:
        ahead = n - torch.searchsorted(scores[0].sort().values, limits, right=True, out_int32=True)
    else:
        ahead = (scores > limits[:, None]).sum(1, dtype=torch.int32)
    # If the target is among the candidates, ties with lower ids are not counted yet.
    if rows is None:
        rows = ((targets >= first) & (targets < first + n)).nonzero().squeeze(1)
    tied = scores.expand(len(targets), n)[rows] == target_scores[rows, None]
    is_lower = torch.arange(n, device=scores.device) < (targets[rows] - first)[:, None]
    return ahead.index_add_(0, rows, (tied & is_lower).sum(1, dtype=torch.int32))


def is_finite(values: Tensor) -> Tensor:
    """Return whether all absolute values are below `LARGEST_VALUE`, as a scalar; a NaN would compare as the worst."""
    if not values.numel():
        return torch.ones((), dtype=torch.bool, device=values.device)
    return values.abs().amax() < LARGEST_VALUE


def ranking_metrics(ranks: Integers, ks: Sequence[int]) -> dict[str, float]:
    """Return `users`, and the means `HR@k`, `NDCG@k` and `MRR` over users whose targets have `ranks` [U].

    MISSED counts as 0 in each mean; a user with LEFT_OUT is not counted. Each user has one relevant item, so HR@k is
    Recall@k and the ideal DCG is 1.

    >>> ranking_metrics(np.array([1, 3, MISSED, LEFT_OUT, MISSED]), [1, 5])
    {'users': 4, 'HR@1': 0.25, 'HR@5': 0.5, 'NDCG@1': 0.25, 'NDCG@5': 0.375, 'MRR': 0.3333333333333333}
    """
    counted = ranks[ranks != LEFT_OUT]
    means = {name: float(values[values > 0].sum() / len(counted)) for name, values in gains(counted, ks)}
    return {"users": len(counted), **means}


def gains(ranks: Integers, ks: Sequence[int]) -> Iterator[tuple[str, Float64s]]:
    """Yield each metric and its value for each user [U], from the `ranks` [U] of the targets, or MISSED.

    >>> [(name, values.tolist()) for name, values in gains(np.array([1, 3, MISSED]), [2])]
    [('HR@2', [1.0, 0.0, 0.0]), ('NDCG@2', [1.0, 0.0, 0.0]), ('MRR', [1.0, 0.3333333333333333, 0.0])]
    """
    is_found = ranks != MISSED
    safe = np.where(is_found, ranks, 1).astype(np.float64)
    yield from ((f"HR@{k}", (is_found & (ranks <= k)).astype(np.float64)) for k in ks)
    discounted = np.where(is_found, 1.0 / np.log2(safe + 1.0), 0.0)
    yield from ((f"NDCG@{k}", np.where(ranks <= k, discounted, 0.0)) for k in ks)
    yield "MRR", np.where(is_found, 1.0 / safe, 0.0)


class Lists:
    """Metrics of the lists of all users at the cut-offs `ks`, added in passes; none above `LARGEST_CUTOFF`.

    `popularity` [V]: training positions of the items. Each process of `partition` adds the lists of some users and
    counts the items of its part of the catalogue; rank zero holds the values per user. The targets of the users
    `missed` [n_users] are in no list. Rank zero keeps the first `n_kept` items of each list, and their scores.
    """

    def __init__(
        self, n_users: int, ks: Sequence[int], popularity: Integers, partition: Partition, *,
        missed: Bools | None = None, n_kept: int = 0,
    ) -> None:  # fmt: skip
        self._ks, self._popularity, self._partition = [k for k in ks if k <= LARGEST_CUTOFF], popularity, partition
        self.k = min(max(self._ks), len(popularity))
        self._part, self._missed = partition.of(len(popularity)), missed
        self._counts = np.zeros((len(self._ks), len(self._part)), np.int32)
        self._total = max(1, int(popularity.sum()))
        n_known = n_users if partition.rank == 0 else 0
        self._user_values = {name: np.full((n_known, len(self._ks)), np.nan) for name in (AVERAGE_POPULARITY, NOVELTY)}
        self._catalogue_values: dict[str, float] = {}
        self.kept_items = np.full((n_known if n_kept else 0, n_kept), NO_ITEM, np.int64)
        self.kept_scores = np.full(self.kept_items.shape, -np.inf)
        self._n_kept = min(n_kept, self.k)

    def add(
        self, rows: Int64s, best: TopK, targets: Tensor, target_scores: Tensor, ahead: Tensor, missed: Bools
    ) -> None:
        """Add the lists of this process's users of a pass, `rows` [U]: the `best` items, with the target inserted.

        `best` does not contain the `targets` [U]; each is inserted at the index `ahead` [U]. A target that is `missed`
        [U] is in no list. Every process calls this for its own users.
        """
        best_items = torch.where(best.scores > -torch.inf, best.indices, NO_ITEM).cpu().numpy()
        missed = missed if self._missed is None else missed | self._missed[rows]
        places = np.where(missed, self.k, ahead.cpu().numpy())
        items = _with_targets(best_items, targets.cpu().numpy(), places)
        local = [np.column_stack([rows, items]), self._means(items)]
        if self._n_kept:
            kept, own = (values.double().cpu().numpy() for values in (best.scores[:, : self._n_kept], target_scores))
            local.append(_with_targets(kept, own, places))
        lists, means, *scores = (self._partition.concatenate(torch.from_numpy(values))[0].numpy() for values in local)
        for column, k in enumerate(self._ks):
            shown = lists[:, 1 : 1 + min(k, self.k)]
            shown = shown[(shown >= self._part.start) & (shown < self._part.stop)] - self._part.start
            np.add.at(self._counts[column], shown, 1)
        if self._partition.rank == 0:
            for values, metric_means in zip(self._user_values.values(), means.transpose(1, 0, 2), strict=True):
                values[lists[:, 0]] = metric_means
            if self._n_kept:
                self.kept_items[lists[:, 0], : self._n_kept] = lists[:, 1 : 1 + self._n_kept]
                self.kept_scores[lists[:, 0], : self._n_kept] = scores[0]

    def _means(self, items: Int64s) -> Float64s:
        """Return mean popularity and novelty [U, metrics, cut-offs] of the lists `items` [U, k]; NaN if empty."""
        is_item = items != NO_ITEM
        popularity = np.where(is_item, self._popularity[items], 0)
        novelty = np.where(is_item, -np.log2(np.maximum(popularity, 1) / self._total), 0.0)
        n_items, means = is_item.cumsum(1), np.empty((len(items), 2, len(self._ks)))
        for column, k in enumerate(self._ks):
            n, list_columns = n_items[:, min(k, self.k) - 1], slice(min(k, self.k))
            for row, values in enumerate((popularity, novelty)):
                user_means = values[:, list_columns].sum(1) / np.maximum(n, 1)
                means[:, row, column] = np.where(n > 0, user_means, np.nan)
        return means

    def finish(self) -> None:
        """Combine the counts of all processes; every process calls this after the last pass."""
        histograms = {k: _histogram(self._partition, n) for k, n in zip(self._ks, self._counts, strict=True)}
        self._catalogue_values = {f"{COVERAGE}@{k}": coverage(*histogram) for k, histogram in histograms.items()}
        self._catalogue_values |= {f"{GINI}@{k}": gini(*histogram) for k, histogram in histograms.items()}

    def metrics(self) -> dict[str, float]:
        """Return metric → value, on rank zero; a mean over users is absent if every list is empty."""
        means = {name: values[~np.isnan(values)] for name, values in self.user_values().items()}
        return self._catalogue_values | {name: float(values.mean()) for name, values in means.items() if len(values)}

    def user_values(self) -> dict[str, Float64s]:
        """Return metric → value of each user [N], on rank zero; NaN for an empty list."""
        return {f"{name}@{k}": values[:, column] for name, values in self._user_values.items()
                for column, k in enumerate(self._ks)}  # fmt: skip


def coverage(counts: Int64s, n_items: Int64s) -> float:
    """Return the share of items that were recommended: `n_items` [C] items were recommended `counts` [C] times.

    >>> coverage(np.array([0, 2]), np.array([3, 1]))
    0.25
    """
    return float(n_items[counts > 0].sum() / n_items.sum())


def gini(counts: Int64s, n_items: Int64s) -> float:
    """Return the Gini coefficient of the `counts` [C], ascending; `n_items` [C] items have each count.

    >>> gini(np.array([5]), np.array([4]))  # all equal
    0.0
    >>> gini(np.array([0, 9]), np.array([3, 1]))  # one of four has all: 1 - 1 / 4
    0.75
    """
    if not (counts * n_items).sum():
        return 0.0
    before = n_items.cumsum() - n_items
    ranks = n_items * before + n_items * (n_items + 1) // 2  # sums of the ranks, from 1, of the items with each count
    n = int(n_items.sum())
    return float(2 * (counts * ranks).sum() / (n * (counts * n_items).sum()) - (n + 1) / n)


def _with_targets(found: NDArray[T], targets: NDArray[T], places: Int64s) -> NDArray[T]:
    """Return the lists `found` [U, k] with the targets inserted at `places` [U], from 0; places from k on drop them."""
    columns = np.arange(found.shape[1])[None]
    behind = np.take_along_axis(found, columns - (columns > places[:, None]), axis=1)
    return np.where(columns == places[:, None], targets[:, None], behind)


def _histogram(partition: Partition, counts: Int32s) -> tuple[Int64s, Int64s]:
    """Return the counts of the whole catalogue, ascending, and the number of items with each."""
    n_local = np.bincount(counts)
    local = np.stack([n_local.nonzero()[0], n_local[n_local > 0]], axis=1)
    gathered = partition.concatenate(torch.from_numpy(local))[0].numpy()
    values, places = np.unique(gathered[:, 0], return_inverse=True)
    n_items = np.zeros(len(values), np.int64)
    np.add.at(n_items, places, gathered[:, 1])
    return values, n_items
