"""EASE for large catalogues: each item is predicted by the items that occur with it most often, in closed form."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.models.ease import WEIGHT_STEP, best_regularization
from bert4rec.models.prior_rows import Rows, best, parts_of
from bert4rec.models.transitions import Pairs, Part, TrainingHistories, distinct_pairs, summed
from bert4rec.runtime.arrays import Float32s, Float64s, Int32s, Int64s
from bert4rec.runtime.collectives import Partition

NEIGHBOURHOOD = 128  # items by which one is predicted
KEPT = 256  # items an item whose histories with it are counted; those of other pairs are expected ones
LAST_POSITIONS = 256  # of a history that are counted: it has as many pairs as the square of its length
DISTINCT_AT_ONCE = 10_000_000  # distinct pairs
EXPANDED_AT_ONCE = 5_000_000  # before equal ones are joined
TOLERANCE = 1e-6  # relative, of sums in float64


def sparse_ease_rows(histories: TrainingHistories, validation: EvaluationSplit, partition: Partition, top: int) -> Rows:
    """Return the `top` weights from each of this process's items; every process makes the same call.

    The weights to an item j from its neighbourhood S, the items that occur with it most often, are
    (XᵀX[S, S] + λ I)⁻¹ XᵀX[S, j], with X and λ as in `EaseScorer`: those of EASE if S is the whole catalogue. Takes
    `KEPT` × 8 bytes an item on every process, and for each of its own items about `NEIGHBOURHOOD` × 80 bytes.
    """
    n_items, own = histories.n_items, partition.of(histories.n_items)
    popularity, n_pairs, n_histories = _sizes(histories)
    one, is_first = 0.0, partition.rank == 0
    if is_first or histories.is_shared:
        one = best_regularization(histories, popularity, validation, solves=is_first)
    regularization = float(partition.sum(torch.tensor(one)))
    near = _count(histories, n_pairs, own, KEPT, only_targets=False)
    ids, counts = (partition.concatenate(torch.from_numpy(part))[0].numpy() for part in near)
    gram = _Gram.of(ids, counts, popularity, n_histories)
    if histories.target_kinds:
        near = _count(histories, n_pairs, own, KEPT, only_targets=True)
    sources = np.empty((len(own), NEIGHBOURHOOD), np.int32)
    solutions = np.zeros((len(own), NEIGHBOURHOOD), np.float32)  # a list of small arrays would leave gaps in memory
    for row, (item, others, common) in enumerate(zip(own, *near, strict=True)):
        chosen, solution = _solve(gram, others, common, popularity[item], regularization)
        sources[row, : len(chosen)] = others[chosen]
        solutions[row, : len(chosen)] = np.round(solution / WEIGHT_STEP) * WEIGHT_STEP
    rows, places = np.nonzero(solutions)
    keys = sources[rows, places].astype(np.int64) * n_items + own.start + rows
    keys, weights = _sorted(keys, solutions[rows, places])
    ends = [part.stop * n_items for part in partition.parts(n_items)]
    sent = np.diff(np.searchsorted(keys, ends), prepend=0).tolist()
    received, weights = _sorted(*(partition.exchange(torch.from_numpy(v), sent).numpy() for v in (keys, weights)))
    rows, targets = np.divmod(received, n_items)
    return Rows(*best(rows - own.start, targets, np.abs(weights), weights, len(own), top))


def _sorted(keys: Int64s, values: Float32s) -> tuple[Int64s, Float32s]:
    order = np.argsort(keys)
    return keys[order], values[order]


class _Gram(NamedTuple):
    """XᵀX, as the `counts` [V, n] of the greatest of each row at `ids` [V, n], ascending, and those of one item [V].

    For pairs that are in no row, it has as many histories as independent items have together, at most the `least` [V]
    in a row (0 if nothing is left out of it). With zeros there, popular items would have weights that mean nothing.
    """

    ids: Int32s
    counts: Float32s
    popularity: Float64s
    least: Float64s
    shares: Float64s  # of all histories, times the root of their number
    columns: Int64s  # [V + 1]

    @classmethod
    def of(cls, ids: Int32s, counts: Float32s, popularity: Float64s, n_histories: int) -> "_Gram":
        """Return the matrix for `n_histories`."""
        least = np.where(ids[:, -1] == NO_ITEM, 0.0, counts.min(1))
        shares = popularity / np.sqrt(max(1, n_histories))
        return cls(ids, counts, popularity, least, shares, np.full(len(ids) + 1, NEIGHBOURHOOD))

    def dense(self, items: Int32s) -> Float64s:
        """Return the matrix of at most `NEIGHBOURHOOD` `items` [k] as [k, k]."""
        self.columns[items] = np.arange(len(items))
        found = np.zeros((len(items), NEIGHBOURHOOD + 1))  # the last column: for items that are not among them
        least, shares = self.least[items], self.shares[items]
        found[:, : len(items)] = np.minimum(np.minimum(least[:, None], least), shares[:, None] * shares)
        np.put_along_axis(found, self.columns[self.ids[items]], self.counts[items], axis=1)
        self.columns[items] = NEIGHBOURHOOD
        matrix = np.maximum(found[:, : len(items)], found[:, : len(items)].T)
        np.fill_diagonal(matrix, self.popularity[items])
        return matrix


def _solve(
    gram: _Gram, others: Int32s, common: Float32s, most: float, regularization: float
) -> tuple[Int64s, Float64s]:
    """Return the places of the neighbourhood of an item among the `others` [n], ascending, and the weights from them.

    `common` [n] are the histories that they have in common with the item, which is in `most`. There is a matrix XᵀX
    only if the squares of the diagonal of the factor are λ or more, and the weights do not explain more than there is.
    Else expected entries are wrong, and the weights mean nothing: half the neighbourhood has fewer of them.
    """
    by_count, n = np.argsort(-common, kind="stable"), min(NEIGHBOURHOOD, int(np.count_nonzero(common)))
    while n:
        chosen = np.sort(by_count[:n])
        regularized = torch.from_numpy(gram.dense(others[chosen]))
        regularized.diagonal().add_(regularization)
        factor, failed = torch.linalg.cholesky_ex(regularized)
        counts = torch.from_numpy(common[chosen]).double()
        weights = torch.cholesky_solve(counts[:, None], factor)[:, 0]
        has_matrix = not failed and float(factor.diagonal().min()) ** 2 >= regularization * (1 - TOLERANCE)
        if has_matrix and float(counts @ weights) <= most * (1 + TOLERANCE):
            return chosen, weights.numpy()
        n //= 2
    return np.empty(0, np.int64), np.empty(0)


def _distinct(part: Part, n_items: int) -> tuple[Int64s, Int64s]:
    """Return the distinct items of the last positions of each history of a part, as number × `n_items` + item.

    The second ones are those with a target.
    """
    is_counted = part.left < LAST_POSITIONS
    keys = np.cumsum(np.diff(part.users, prepend=part.users[:1]) != 0) * n_items + part.items
    return np.unique(keys[is_counted]), np.unique(keys[is_counted & part.is_target])


def _sizes(histories: TrainingHistories) -> tuple[Float64s, Float64s, int]:
    """Return the numbers of histories with each item [V], of pairs that it is in [V], and of all histories."""
    popularity, n_pairs, n_histories = np.zeros(histories.n_items), np.zeros(histories.n_items), 0
    for part in histories.parts():
        users, items = np.divmod(_distinct(part, histories.n_items)[0], histories.n_items)
        lengths = np.bincount(users)
        popularity += np.bincount(items, minlength=histories.n_items)
        n_pairs += np.bincount(items, lengths[users], minlength=histories.n_items)
        n_histories += len(lengths)
    popularity, n_pairs, one = map(histories.sum, (popularity, n_pairs, np.array([n_histories])))
    return popularity, n_pairs, int(one[0])


def _count(
    histories: TrainingHistories, n_pairs: Float64s, items: range, top: int, *, only_targets: bool
) -> tuple[Int32s, Float32s]:
    """Return the `top` other items of the histories of each of the `items` [n, top], and how many histories have both.

    With `only_targets`, the item of the row is a target there. Each part of the items is a pass over the histories.
    """
    n_items, found = histories.n_items, []

    def pairs(part: Part, firsts: range) -> Iterator[Int64s]:
        keys, targets = _distinct(part, n_items)
        users, others = np.divmod(keys, n_items)
        lengths = np.bincount(users)
        rows = targets if only_targets else keys
        rows = rows[(rows % n_items >= firsts.start) & (rows % n_items < firsts.stop)]
        pieces = np.flatnonzero(np.diff(lengths[rows // n_items].cumsum() // EXPANDED_AT_ONCE)) + 1
        for some in np.split(rows, pieces):
            repeats = lengths[some // n_items]
            starts = (lengths.cumsum() - lengths)[some // n_items]
            at = np.arange(repeats.sum()) + np.repeat(starts - (repeats.cumsum() - repeats), repeats)
            yield np.repeat(some % n_items * n_items, repeats) + others[at]

    def counted_from(firsts: range | None) -> Pairs:
        assert firsts is not None, "some of the items"
        return summed(
            distinct_pairs(keys, reach=1, decay=1.0) for part in histories.parts() for keys in pairs(part, firsts)
        )

    for part_of_items in histories.rounds(parts_of(items, np.minimum(n_pairs, n_items), DISTINCT_AT_ONCE)):
        counted = histories.collect(counted_from, part_of_items)
        places, others = np.divmod(counted.keys, n_items)
        is_other = places != others
        places, others, counts = (v[is_other] for v in (places - part_of_items.start, others, counted.weights))
        found.append(best(places, others, counts, counts, len(part_of_items), top))
    if not found:
        return np.empty((0, top), np.int32), np.empty((0, top), np.float32)
    ids, counts = zip(*found, strict=True)
    return np.concatenate(ids), np.concatenate(counts)
