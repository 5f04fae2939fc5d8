"""The kinds without training: popularity, and what their scorers read of the training."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.config.kinds import POPULARITY
from bert4rec.dataset.histories import Indices, Rows
from bert4rec.dataset.reader import Dataset
from bert4rec.models.transitions import Part, TrainingHistories, Transitions, TransitionScorer
from bert4rec.runtime.collectives import Partition

DIGITS = (32, 16, 0)  # an instant has three, of 16 bits each
DIGIT = 1 << 16
EARLIEST = -(1 << 47)  # seconds: millions of years ago


class PopularityScorer:
    """Gives every item its number of training positions, `popularity` [n_items], whoever the user is."""

    width = 0

    def __init__(self, popularity: npt.NDArray[np.integer], partition: Partition) -> None:
        self._popularity, self.partition, self.n_items = popularity, partition, len(popularity)
        self.dtype = torch.float32 if popularity.max() < 2**24 else torch.float64  # so that counts are exact

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return an empty state: popularity does not depend on the user."""
        return torch.empty(len(ids), 0, dtype=self.dtype, device=ids.device), self.items(ids)

    def items(self, ids: Tensor) -> Tensor:
        """Return the counts of the items."""
        counts = self._popularity[ids.cpu().numpy()]
        return torch.from_numpy(counts).to(ids.device, self.dtype)

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the same for all users."""
        return items.repeat(len(users), 1)


def in_order(*counts: npt.NDArray[np.integer]) -> Indices:
    """Return ranks of items [n_items] by the first of `counts`, ties by the next.

    >>> in_order(np.array([3, 0, 0, 3]), np.array([5, 1, 2, 5])).tolist()
    [2, 0, 1, 2]
    """
    order = np.lexsort(counts[::-1])
    differs = np.any([count[order][1:] != count[order][:-1] for count in counts], axis=0)
    places = np.empty(len(order), np.int64)
    places[order] = np.concatenate([[0], differs.cumsum()])
    return places


def recent_counts(histories: TrainingHistories, share: float) -> Indices:
    """Return how often each item [n_items] was taken in the newest `share` of the training interactions.

    Where times are known, these are all from one instant on, the latest one that gives so many; else the last ones of
    every user, rounded up, since only a user's own order is known.
    """
    is_recent = _from_instant(histories, share) if histories.has_times else _at_the_end(share)
    counts = np.zeros(histories.n_items, np.int64)
    for part in histories.parts():
        counts += np.bincount(part.items[is_recent(part)], minlength=histories.n_items)
    return counts


def n_passes(histories: TrainingHistories) -> int:
    """Return how often `recent_counts` reads all histories."""
    return 1 + (len(DIGITS) if histories.has_times else 0)


def newest_from(times: Callable[[], Iterable[Indices]], n_newest: int) -> int:
    """Return the latest second from which on there are at least `n_newest`; `times` reads all of them, some at a time.

    >>> newest_from(lambda: [np.array([10, 20]), np.array([30, 20])], 2)
    20
    """
    found, later = 0, 0  # the first digits, and how many times are later than all that begin so
    for shift in DIGITS:
        counts = np.zeros(DIGIT, np.int64)
        for part in times():
            digits = (part - EARLIEST) >> shift
            counts += np.bincount(digits[digits // DIGIT == found] % DIGIT, minlength=DIGIT)
        from_digit = later + counts[::-1].cumsum()[::-1]
        digit = int(np.flatnonzero(from_digit >= n_newest).max())
        found, later = found * DIGIT + digit, int(from_digit[digit] - counts[digit])
    return found + EARLIEST


def _from_instant(histories: TrainingHistories, share: float) -> Callable[[Part], npt.NDArray[np.bool_]]:
    def times() -> Iterator[Indices]:
        return (part.times for part in histories.parts() if part.times is not None)

    instant = newest_from(times, int(np.ceil(share * histories.n_positions)))

    def is_recent(part: Part) -> npt.NDArray[np.bool_]:
        assert part.times is not None, "the histories have times"
        return part.times >= instant

    return is_recent


def _at_the_end(share: float) -> Callable[[Part], npt.NDArray[np.bool_]]:
    return lambda part: part.left < np.ceil(share * part.lengths)


UntrainedScorer: TypeAlias = PopularityScorer | TransitionScorer


@dataclass(frozen=True, kw_only=True)
class BaselineFactory:
    """Hold the dataset, and what the kinds count of it.

    Recent popularity is that of the newest `recent_share`. A transition counts `decay` times as much for each further
    place of distance; the decay leaves little weight beyond `n_last_items`. To the transitions of an item `smoothing`
    by popularity are added: 60 to 100 are best on validation of sparse data (Amazon Sports) and as good as any on dense
    data (MovieLens 1M).
    """

    dataset: Dataset
    partition: Partition
    recent_share: float = 0.1
    n_last_items: int = 10
    decay: float = 0.7
    smoothing: float = 100.0

    def histories(self, between: Callable[[], None] = lambda: None) -> TrainingHistories:
        """Return what is counted, of which each part is read after a call of `between`."""
        return TrainingHistories(self.dataset, between)

    def n_parts(self, kind: str) -> int:
        """Return how often `between` is called while the scorer of `kind` is made."""
        histories = self.histories()
        passes = {POPULARITY: 0, "recent_popularity": n_passes(histories)}.get(kind, 1)
        return passes * histories.n_parts

    def scorer(self, kind: str, between: Callable[[], None]) -> UntrainedScorer:
        """Return the scorer of `kind`, when all is counted; `between` may raise."""
        return SCORERS[kind](self, between)


def _recent_popularity(counting: BaselineFactory, between: Callable[[], None]) -> PopularityScorer:
    """Return recent popularity; ties are broken by overall popularity."""
    recent = recent_counts(counting.histories(between), counting.recent_share)
    return PopularityScorer(in_order(recent, counting.dataset.popularity), counting.partition)


def _transition_graph(counting: BaselineFactory, between: Callable[[], None]) -> TransitionScorer:
    n_last_items, decay = counting.n_last_items, counting.decay
    transitions = Transitions.count(counting.histories(between), reach=n_last_items, decay=decay)
    return TransitionScorer(
        transitions, counting.dataset.popularity, counting.partition, n_last_items=n_last_items, decay=decay,
        smoothing=counting.smoothing,
    )  # fmt: skip


SCORERS: dict[str, Callable[[BaselineFactory, Callable[[], None]], UntrainedScorer]] = {
    POPULARITY: lambda counting, between: PopularityScorer(counting.dataset.popularity, counting.partition),
    "recent_popularity": _recent_popularity,
    "markov": lambda counting, between: _transition_graph(replace(counting, n_last_items=1), between),
    "transition_graph": _transition_graph,
}
