"""From scores to ranks, from ranks to HR@k, NDCG@k and MRR, and metrics of lists of recommended items.

A list is what would be recommended: the best items of the full catalogue, without those that the user has seen where
the run leaves them out. At each cut-off k:

- `Coverage@k`: the share of the catalogue that stands in the list of at least one user;
- `Gini@k`: how unevenly the places are shared out among all items, 0 for equally, towards 1 where few items have all;
- `AveragePopularity@k`: the training positions of the items in a list, their mean, and of it the mean over users;
- `Novelty@k`: the same of -log2 of an item's share of all training positions; an item without any counts as if it had
  one.

Coverage and Gini belong to all lists together: they have no value of a user, and so no interval either.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.format import LEFT_OUT
from bert4rec.dataset.histories import Bools
from bert4rec.evaluation import COVERAGE, GINI, NOVELTY, POPULARITY
from bert4rec.evaluation.top_k import TopK
from bert4rec.runtime.collectives import Partition

Indices: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

MISSED = 0  # in the place of a rank: the target is never recommended, however long the list
LARGEST = 1e15  # the product of two vectors of such numbers is still finite
NOTHING = -1  # in the place of an item, where fewer are left
LONGEST = 1000  # cut-off: the lists of a pass of users are in memory


def count_outranking(scores: Tensor, first: int, target_scores: Tensor, targets: Tensor) -> Tensor:
    """Return how many [B] of the candidates `first`, `first` + 1, …, with `scores` [B, n], outrank each target.

    The same order as `outranks`, in one pass over the scores: among lower ids a tie is as good as a better score.
    `scores` [1, n] are those of all rows, and only sorted.
    """
    n = scores.shape[1]
    just_below = target_scores.nextafter(target_scores.new_tensor(-torch.inf))
    limits = torch.where(targets >= first + n, just_below, target_scores)
    if len(scores) == 1:
        ahead = n - torch.searchsorted(scores[0].sort().values, limits, right=True, out_int32=True)
    else:
        ahead = (scores > limits[:, None]).sum(1, dtype=torch.int32)
    # Where the target is among the candidates, ties with those before it are still to be counted.
    rows = ((targets >= first) & (targets < first + n)).nonzero().squeeze(1)
    tied = scores.expand(len(targets), n)[rows] == target_scores[rows, None]
    is_lower = torch.arange(n, device=scores.device) < (targets[rows] - first)[:, None]
    return ahead.index_add_(0, rows, (tied & is_lower).sum(1, dtype=torch.int32))


def is_finite(values: Tensor) -> bool:
    """Return whether all values are finite and not too large; scores of others would compare as worse than any."""
    return not values.numel() or bool(values.abs().amax() < LARGEST)


def ranking_metrics(ranks: npt.NDArray[np.integer], ks: Sequence[int]) -> dict[str, float]:
    """Return `users`, and the means `HR@k`, `NDCG@k` and `MRR` over users whose targets have `ranks` [U].

    MISSED gives 0 in each of them; who is LEFT_OUT does not count as a user. With one relevant item a user, HR@k is
    Recall@k and the ideal DCG is 1.

    >>> ranking_metrics(np.array([1, 3, MISSED, LEFT_OUT, MISSED]), [1, 5])
    {'users': 4, 'HR@1': 0.25, 'HR@5': 0.5, 'NDCG@1': 0.25, 'NDCG@5': 0.375, 'MRR': 0.3333333333333333}
    """
    counted = ranks[ranks != LEFT_OUT]
    means = {name: float(values[values > 0].sum() / len(counted)) for name, values in gains(counted, ks)}
    return {"users": len(counted), **means}


def gains(ranks: npt.NDArray[np.integer], ks: Sequence[int]) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """Yield each metric and its value for each user [U], by the rank [U] of the target, or MISSED.

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
    """Keep counts and means of the lists at the cut-offs `ks`, whose users come in passes.

    Cut-offs above `LONGEST` are left out.
    `popularity` [V]: training positions of the items. Each process of `partition` brings the lists of some users and
    counts its part of the catalogue; the first one knows what the lists of each user are like. The targets of the users
    `missed` [n_users] are in no list.
    """

    def __init__(
        self, n_users: int, ks: Sequence[int], popularity: npt.NDArray[np.integer], partition: Partition, *,
        missed: Bools | None = None,
    ) -> None:  # fmt: skip
        self._ks, self._popularity, self._partition = [k for k in ks if k <= LONGEST], popularity, partition
        self.k = min(max(self._ks), len(popularity))
        self._part, self._missed = partition.of(len(popularity)), missed
        self._counts = np.zeros((len(self._ks), len(self._part)), np.int32)
        self._total = max(1, int(popularity.sum()))
        n_known = n_users if partition.rank == 0 else 0
        self._of_users = {name: np.full((n_known, len(self._ks)), np.nan) for name in (POPULARITY, NOVELTY)}
        self._of_all: dict[str, float] = {}

    def add(self, rows: Indices, best: TopK, targets: Tensor, ahead: Tensor, missed: Bools) -> None:
        """Add the lists of this process's users of a pass, `rows` [U]: the `best` items but for the target, and it.

        So many [U] items are `ahead` of each of the `targets` [U], counted from 0. A target that is `missed` [U] is in
        no list. Every process calls this, with users of its own.
        """
        found = torch.where(best.scores > -torch.inf, best.indices, NOTHING).cpu().numpy()
        missed = missed if self._missed is None else missed | self._missed[rows]
        items = _with_targets(found, targets.cpu().numpy(), np.where(missed, self.k, ahead.cpu().numpy()))
        own = np.column_stack([rows, items]), self._means(items)
        lists, means = (self._partition.concatenate(torch.from_numpy(of_users))[0].numpy() for of_users in own)
        for column, k in enumerate(self._ks):
            shown = lists[:, 1 : 1 + min(k, self.k)]
            shown = shown[(shown >= self._part.start) & (shown < self._part.stop)] - self._part.start
            np.add.at(self._counts[column], shown, 1)
        if self._partition.rank == 0:
            for values, of_metric in zip(self._of_users.values(), means.transpose(1, 0, 2), strict=True):
                values[lists[:, 0]] = of_metric

    def _means(self, items: Indices) -> Floats:
        """Return mean popularity and novelty of the lists `items` [U, k], [U, metrics, cut-offs]."""
        is_there = items != NOTHING
        popularity = np.where(is_there, self._popularity[items], 0)
        novelty = np.where(is_there, -np.log2(np.maximum(popularity, 1) / self._total), 0.0)
        n_items, means = is_there.cumsum(1), np.empty((len(items), 2, len(self._ks)))
        for column, k in enumerate(self._ks):
            n, of_list = n_items[:, min(k, self.k) - 1], slice(min(k, self.k))
            for row, values in enumerate((popularity, novelty)):
                of_users = values[:, of_list].sum(1) / np.maximum(n, 1)
                means[:, row, column] = np.where(n > 0, of_users, np.nan)
        return means

    def finish(self) -> None:
        """Put together what the processes have counted; every one of them calls this, after the last pass."""
        histograms = {k: _histogram(self._partition, n) for k, n in zip(self._ks, self._counts, strict=True)}
        self._of_all = {f"{COVERAGE}@{k}": coverage(*histogram) for k, histogram in histograms.items()}
        self._of_all |= {f"{GINI}@{k}": gini(*histogram) for k, histogram in histograms.items()}

    def metrics(self) -> dict[str, float]:
        """Return metric → value, on the first process; a metric is absent where every list is empty."""
        means = {name: values[~np.isnan(values)] for name, values in self.of_users().items()}
        return self._of_all | {name: float(values.mean()) for name, values in means.items() if len(values)}

    def of_users(self) -> dict[str, Floats]:
        """Return metric → value of each user [N], on the first process; NaN for an empty list."""
        return {f"{name}@{k}": values[:, column] for name, values in self._of_users.items()
                for column, k in enumerate(self._ks)}  # fmt: skip


def coverage(counts: Indices, n_items: Indices) -> float:
    """Return the share of items that were recommended: `n_items` [C] items were recommended `counts` [C] times.

    >>> coverage(np.array([0, 2]), np.array([3, 1]))
    0.25
    """
    return float(n_items[counts > 0].sum() / n_items.sum())


def gini(counts: Indices, n_items: Indices) -> float:
    """Return the Gini coefficient of the `counts` [C], ascending, that `n_items` [C] items each have.

    >>> gini(np.array([5]), np.array([4]))  # all alike
    0.0
    >>> gini(np.array([0, 9]), np.array([3, 1]))  # one of four has all: 1 - 1 / 4
    0.75
    """
    if not (counts * n_items).sum():
        return 0.0
    before = n_items.cumsum() - n_items
    ranks = n_items * before + n_items * (n_items + 1) // 2  # the sum of the ranks, from 1, of those with that count
    n = int(n_items.sum())
    return float(2 * (counts * ranks).sum() / (n * (counts * n_items).sum()) - (n + 1) / n)


def _with_targets(found: Indices, targets: Indices, places: Indices) -> Indices:
    """Return the lists `found` [U, k] with each target at its place, from 0; a place behind the end leaves it out."""
    columns = np.arange(found.shape[1])[None]
    behind = np.take_along_axis(found, columns - (columns > places[:, None]), axis=1)
    return np.where(columns == places[:, None], targets[:, None], behind)


def _histogram(partition: Partition, counts: npt.NDArray[np.int32]) -> tuple[Indices, Indices]:
    """Return the counts of the whole catalogue, ascending, and the number of items with each."""
    n_own = np.bincount(counts)
    own = np.stack([n_own.nonzero()[0], n_own[n_own > 0]], axis=1)
    together = partition.concatenate(torch.from_numpy(own))[0].numpy()
    values, places = np.unique(together[:, 0], return_inverse=True)
    n_items = np.zeros(len(values), np.int64)
    np.add.at(n_items, places, together[:, 1])
    return values, n_items
