"""Baselines without training: their factory, popularity, and the counts of recent interactions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from bert4rec.config.kinds import EASE, KINDS, POPULARITY, RECENT_POPULARITY
from bert4rec.dataset.format import VALIDATION
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset
from bert4rec.models.content import ContentScorer, n_parts
from bert4rec.models.ease import EaseScorer, shared_ease_weights
from bert4rec.models.transitions import Pairs, Part, TrainingHistories, Transitions, TransitionScorer
from bert4rec.runtime.arrays import Array, Bools, Int64s, Integers
from bert4rec.runtime.collectives import Partition

DIGIT_SHIFTS = (32, 16, 0)  # shifts of the three digits of a time, 16 bits each
DIGIT = 1 << 16
EARLIEST = -(1 << 47)  # the smallest time, in seconds: millions of years ago

RECENT_SHARE = 0.1  # of the interactions, which count as recent
N_LAST_ITEMS = {"markov": 1, "transition_graph": 10}  # beyond ten, `DECAY` leaves little weight
DECAY = 0.7  # factor of the weight of a transition for each further position of distance
SMOOTHING = 100.0
"""Additional transitions of each item, distributed by popularity: on validation, 60 to 100 are best for sparse data
(Amazon Sports) and as good as any other value for dense data (MovieLens 1M)."""


class PopularityScorer:
    """Scores each item by its number of training positions, `popularity` [n_items], the same for all users."""

    width, is_rounded = 0, False

    def __init__(self, popularity: Integers, partition: Partition) -> None:
        self._popularity, self.partition, self.n_items = popularity, partition, len(popularity)
        self.dtype = torch.float32 if popularity.max() < 2**24 else torch.float64  # so that counts are exact

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return empty user vectors [B, 0], as popularity does not depend on the user, and the scores of `ids`."""
        return torch.empty(len(ids), 0, dtype=self.dtype, device=ids.device), self.items(ids)

    def items(self, ids: Tensor) -> Tensor:
        """Return the counts of the items `ids`."""
        counts = self._popularity[ids.cpu().numpy()]
        return torch.from_numpy(counts).to(ids.device, self.dtype)

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return the same scores for all users."""
        return items.repeat(len(users), 1)


def in_order(*counts: Integers) -> Int64s:
    """Return scores of the items [n_items], from 0, ordered by the first of `counts`, ties by the next.

    >>> in_order(np.array([3, 0, 0, 3]), np.array([5, 1, 2, 5])).tolist()
    [2, 0, 1, 2]
    """
    order = np.lexsort(counts[::-1])
    differs = np.any([count[order][1:] != count[order][:-1] for count in counts], axis=0)
    places = np.empty(len(order), np.int64)
    places[order] = np.concatenate([[0], differs.cumsum()])
    return places


def recent_counts(histories: TrainingHistories, share: float) -> Int64s:
    """Return how often each item [n_items] is a target in the newest `share` of the training interactions.

    With times, the newest are all interactions since the latest instant that yields at least this share. Without times,
    they are the last ones of every user, rounded up, since only the order within a history is known.
    """

    def times() -> Iterator[Int64s]:
        return (part.times for part in histories.parts() if part.times is not None)

    instant = 0
    if histories.has_times:
        instant = newest_from(times, int(np.ceil(share * histories.n_positions)), total=histories.sum)
    return target_counts(
        histories,
        lambda part: part.left < np.ceil(share * part.lengths) if part.times is None else part.times >= instant,
    )


def target_counts(histories: TrainingHistories, counts: Callable[[Part], Bools | bool] = lambda _: True) -> Int64s:
    """Return how often each item [n_items] is a target at the training positions that count, by default all."""
    found = np.zeros(histories.n_items, np.int64)
    for part in histories.parts():
        found += np.bincount(part.items[part.is_target & counts(part)], minlength=histories.n_items)
    return histories.sum(found)


def newest_from(
    times: Callable[[], Iterable[Int64s]], n_newest: int, total: Callable[[Int64s], Int64s] = lambda counts: counts
) -> int:
    """Return the latest second such that at least `n_newest` times are not before it; `times` yields all, in parts.

    `total` adds up the counts of processes that have some of the times each.

    >>> newest_from(lambda: [np.array([10, 20]), np.array([30, 20])], 2)
    20
    """
    prefix, later = 0, 0  # the leading digits of the result, and the number of times with a greater prefix
    for shift in DIGIT_SHIFTS:
        counts = np.zeros(DIGIT, np.int64)
        for part in times():
            digits = (part - EARLIEST) >> shift
            counts += np.bincount(digits[digits // DIGIT == prefix] % DIGIT, minlength=DIGIT)
        counts = total(counts)
        from_digit = later + counts[::-1].cumsum()[::-1]
        digit = int(np.flatnonzero(from_digit >= n_newest).max())
        prefix, later = prefix * DIGIT + digit, int(from_digit[digit] - counts[digit])
    return prefix + EARLIEST


UntrainedScorer: TypeAlias = PopularityScorer | TransitionScorer | ContentScorer | EaseScorer


@dataclass(frozen=True, kw_only=True)
class BaselineFactory:
    """Makes the scorers of the kinds without training from a `dataset`."""

    dataset: Dataset
    partition: Partition

    def n_parts(self, kind: str) -> int:
        """Return the number of calls of `between` while the scorer of `kind` is made."""
        if KINDS[kind].needs_features:
            return n_parts(self.dataset.n_items)
        histories = TrainingHistories(self.dataset)
        if kind == EASE:
            return histories.n_parts
        n_passes = {POPULARITY: 0, RECENT_POPULARITY: 1 + len(DIGIT_SHIFTS) * histories.has_times}.get(kind, 1)
        return (n_passes + bool(histories.target_kinds)) * histories.n_parts

    def scorer(self, kind: str, between: Callable[[], None]) -> UntrainedScorer:
        """Return the scorer of `kind` after counting; `between` is called before each part of the data."""
        if KINDS[kind].needs_features:
            assert self.dataset.features is not None, "refused before"
            return ContentScorer(self.dataset.features, self.dataset.n_items, self.partition, between)
        return scorer_of(kind, self.count(kind, between), self.partition)

    def count(self, kind: str, between: Callable[[], None] = lambda: None) -> dict[str, Array]:
        """Return what `scorer_of` needs for `kind`, which reads no item features, after counting."""
        popularity, histories = self.dataset.popularity, TrainingHistories(self.dataset, between)
        if kind == EASE:
            return {"weights": shared_ease_weights(histories, self.dataset.splits[VALIDATION], self.partition).numpy()}
        targets = target_counts(histories) if histories.target_kinds else popularity
        if kind == POPULARITY:
            return {"popularity": in_order(targets, popularity) if histories.target_kinds else popularity}
        if kind == RECENT_POPULARITY:  # ties are broken by overall popularity
            return {"popularity": in_order(recent_counts(histories, RECENT_SHARE), targets)}
        transitions = Transitions.count(histories, reach=N_LAST_ITEMS[kind], decay=DECAY)
        keys, weights = transitions.pairs
        return {"popularity": targets, "keys": keys, "weights": weights, "totals": transitions.totals}


def scorer_of(kind: str, counts: Mapping[str, Array], partition: Partition) -> UntrainedScorer:
    """Return the scorer of `kind` with these `counts`. Raises `KeyError` if they are of another kind."""
    if kind == EASE:
        return EaseScorer(torch.from_numpy(counts["weights"]), partition)
    if kind in (POPULARITY, RECENT_POPULARITY):
        return PopularityScorer(counts["popularity"], partition)
    pairs = Pairs(counts["keys"], counts["weights"])
    transitions = Transitions(len(counts["totals"]), pairs, counts["totals"])
    return TransitionScorer(
        transitions, counts["popularity"], partition,
        n_last_items=N_LAST_ITEMS[kind], decay=DECAY, smoothing=SMOOTHING,
    )  # fmt: skip
