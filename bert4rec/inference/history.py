"""What recommendations are made for: items, and for a model that knows times when they were taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bert4rec.inference.item_ids import UNKNOWN, Ints, ItemIds
from bert4rec.runtime.errors import DataError


class TimedHistory(NamedTuple):
    """Items in their own ids, the oldest first, and `times`: when they were taken, in seconds, never descending.

    `at`: the instant to recommend for, in seconds; None: that of the last item, as if the user were still there.
    """

    items: Sequence[Any]
    times: Sequence[float]
    at: float | None = None


History: TypeAlias = Sequence[Any] | TimedHistory
"""Items in their own ids, the oldest first; for a model that knows times a `TimedHistory`."""


def items_of(history: History) -> Sequence[Any]:
    """Its items, in their own ids."""
    return history.items if isinstance(history, TimedHistory) else history


@dataclass(frozen=True)
class Known:
    """The items [n] of a history that a model knows, by their indices; for one that knows times `seconds` [n], `at`."""

    items: Ints
    seconds: Ints | None = None
    at: int = 0

    @classmethod
    def of(cls, history: History, ids: ItemIds, *, with_times: bool) -> "tuple[Known, Ints]":
        """The known items, and the indices of all, with `UNKNOWN` ones. Raises `DataError` for times that are none."""
        indices = ids.indices(items_of(history))
        is_known = indices != UNKNOWN
        if not with_times:
            return cls(indices[is_known]), indices
        if not isinstance(history, TimedHistory) and not len(history):
            history = TimedHistory([], [])
        if not isinstance(history, TimedHistory):
            raise DataError(
                "this model knows times, and a history has none; give it those of its items: in Python as "
                "TimedHistory(items, times), in a file as times, or the column time"
            )
        seconds = _seconds(history)
        last = int(seconds[-1]) if len(seconds) else 0
        at = last if history.at is None else int(history.at)
        if at < last:
            raise DataError(f"recommendations for the instant {at}: the last item of a history is from {last}, later")
        return cls(indices[is_known], seconds[is_known], at), indices

    def __len__(self) -> int:
        return len(self.items)

    def last(self, n: int) -> "Known":
        """With its `n` last items alone."""
        return Known(self.items[-n:], None if self.seconds is None else self.seconds[-n:], self.at)


def _seconds(history: TimedHistory) -> Ints:
    try:
        seconds = np.array(history.times, np.float64)
    except (TypeError, ValueError):
        seconds = np.array([np.nan])
    if not np.isfinite(seconds).all():
        raise DataError("the times of a history must be numbers, seconds since 1970")
    if seconds.shape != (len(history.items),):
        raise DataError(f"a history has {len(history.items)} items and {seconds.size} times; each item needs one")
    if (np.diff(seconds) < 0).any():
        raise DataError("the times of a history descend; items must come the oldest first")
    return seconds.astype(np.int64)
