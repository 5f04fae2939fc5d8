"""Count the sparse weights between items that a prior adds up: those of some items at a time, out of core."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.models.baselines import DECAY, SMOOTHING
from bert4rec.models.ease import ease_weights
from bert4rec.models.prior import NEIGHBOURS, PRIOR_SOURCES
from bert4rec.models.transitions import Pairs, TrainingHistories, count_pairs
from bert4rec.runtime.arrays import Float32s, Float64s, Int32s, Int64s, Integers

COUNTED_AT_ONCE = 20_000_000  # counted in memory, before equal ones are joined
SMALLEST_COSINE = 0.01  # a cosine is log(this + cosine) in the scores
DENSE_ROWS = 1024


class Rows(NamedTuple):
    """The weights from some items: `ids` [n, K] of the targets, ascending, NO_ITEM for none, and `values` [n, K].

    `masses` [n] are those of `Source`; None for a source without.
    """

    ids: Int32s
    values: Float32s
    masses: Float32s | None = None


def counted_rows(
    name: str, histories: TrainingHistories, targets: Integers, sources: range, top: int
) -> Iterator[tuple[int, Rows]]:
    """Yield the first item and the `top` weights an item of the `sources`, of transitions or neighbours, in parts.

    `targets` [n_items] is how often each item is predicted. Each part is a pass over the `histories`.
    """
    is_symmetric, reach = name == NEIGHBOURS, PRIOR_SOURCES[name].n_last
    n_pairs = reach * (1 + is_symmetric) * (targets + 1)
    decay = 1.0 if is_symmetric else DECAY
    for part in histories.rounds(parts_of(sources, n_pairs, COUNTED_AT_ONCE)):
        pairs = count_pairs(histories, reach=reach, decay=decay, sources=part, is_symmetric=is_symmetric)
        if len(part):
            yield part.start, (_neighbours if is_symmetric else _transitions)(pairs, targets, part, top)


def parts_of(items: range, n_pairs: Integers | Float64s, at_once: int) -> Iterator[range]:
    """Yield consecutive parts of all `items`, each with about `at_once` of the `n_pairs` [V] or fewer.

    >>> list(parts_of(range(1, 6), np.array([9, 3, 2, 2, 0, 0]), 4))
    [range(1, 3), range(3, 6)]
    """
    sums = n_pairs[items.start : items.stop].cumsum()
    n_parts = max(1, -(-int(sums[-1:].sum()) // at_once))
    ends = items.start + np.searchsorted(sums, sums[-1:] * np.arange(1, n_parts) / n_parts) + 1
    for first, stop in itertools.pairwise(np.unique([items.start, *ends.clip(max=items.stop), items.stop]).tolist()):
        yield range(first, stop)


def ease_rows(
    histories: TrainingHistories, validation: EvaluationSplit, top: int, *, solves: bool = True
) -> Iterator[tuple[int, Rows]]:
    """Yield the first item and the `top` weights of EASE an item, in parts of the whole catalogue.

    Without `solves`, there are none: the process only counts its share for the one that has them.
    """
    weights = ease_weights(histories, validation, solves=solves)
    for first in range(0, len(weights) if solves else 0, DENSE_ROWS):
        part = weights[first : first + DENSE_ROWS]
        ids = part.abs().topk(min(top, len(weights)), dim=1).indices.sort(1).values
        values, fill = part.gather(1, ids), (0, top - ids.shape[1])  # columns that a small catalogue does not have
        ids = torch.where(values != 0, ids, NO_ITEM).int()
        yield first, Rows(F.pad(ids, fill, value=NO_ITEM).numpy(), F.pad(values, fill).numpy())


def log_shares(targets: Integers) -> Float32s:
    """Return the logarithm of the share [V] of each item in the `targets` [V]; one without is as one with one."""
    return np.log(np.maximum(targets, 1) / max(1, targets.sum())).astype(np.float32)


def _transitions(pairs: Pairs, targets: Integers, sources: range, top: int) -> Rows:
    n_items = len(targets)
    places, items = pairs.keys // n_items - sources.start, pairs.keys % n_items
    totals = np.bincount(places, pairs.weights, minlength=len(sources))
    shares = np.maximum(targets, 1) / max(1, targets.sum())
    lifts = pairs.weights / ((totals[places] + SMOOTHING) * shares[items])
    masses = (SMOOTHING / (totals + SMOOTHING)).astype(np.float32)
    return Rows(*best(places, items, pairs.weights, lifts, len(sources), top), masses)


def _neighbours(pairs: Pairs, targets: Integers, sources: range, top: int) -> Rows:
    n_items = len(targets)
    places, items = pairs.keys // n_items - sources.start, pairs.keys % n_items
    lengths = np.sqrt(np.maximum(targets, 1.0))
    cosines = pairs.weights / (lengths[sources.start : sources.stop][places] * lengths[items])
    return Rows(*best(places, items, cosines, cosines / SMALLEST_COSINE, len(sources), top))


def best(
    places: Int64s, items: Int64s, keys: Float64s | Float32s, values: Float64s | Float32s, n: int, top: int
) -> tuple[Int32s, Float32s]:
    """Return the items [n, top], ascending, with the greatest positive `keys` of each place, and their `values`.

    The pairs of `places` and `items` are ascending.
    """
    is_long = np.bincount(places, minlength=n)[places] > top
    long = np.flatnonzero(is_long)  # the pairs of the others are all taken
    long = long[np.lexsort((-keys[long], places[long]))]
    is_taken = ~is_long
    is_taken[long[_columns(places[long]) < top]] = True
    chosen = np.flatnonzero(is_taken)  # ascending by place and item, as the pairs are
    rows = places[chosen]
    columns = _columns(rows)
    ids, weights = np.full((n, top), NO_ITEM, np.int32), np.zeros((n, top), np.float32)
    ids[rows, columns], weights[rows, columns] = items[chosen], values[chosen]
    return ids, weights


def _columns(rows: Int64s) -> Int64s:
    """Return the index of each entry among those of its row; `rows` are ascending."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)
