"""Histories to recommend for: items, and their timestamps for a model that uses them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bert4rec.inference.item_ids import UNKNOWN, Ints, ItemIds
from bert4rec.runtime.errors import DataError


class TimedHistory(NamedTuple):
    """Hold items in their own ids, the oldest first, and their `times` in seconds, ascending.

    `at`: the instant to recommend for, in seconds; None: that of the last item, as if the user were still there.
    """

    items: Sequence[Any]
    times: Sequence[float]
    at: float | None = None


History: TypeAlias = Sequence[Any] | TimedHistory
"""Items in their own ids, the oldest first; for a model that knows times a `TimedHistory`."""


Histories: TypeAlias = list[tuple[Any, History]]
"""The name of each user, and the history."""

AT_ONCE = 4096  # histories in memory


def items_of(history: History) -> Sequence[Any]:
    """Return the items in their own ids."""
    return history.items if isinstance(history, TimedHistory) else history


@dataclass(frozen=True)
class Known:
    """Hold the known items [n] of a history by index; for a model with timestamps also `seconds` [n] and `at`."""

    items: Ints
    seconds: Ints | None = None
    at: int = 0

    @classmethod
    def of(cls, history: History, ids: ItemIds, *, with_times: bool) -> "tuple[Known, Ints]":
        """Return the known items, and the indices of all, with `UNKNOWN` ones. Raises `DataError` for bad times."""
        indices = ids.indices(items_of(history))
        is_known = indices != UNKNOWN
        if not with_times:
            return cls(indices[is_known]), indices
        if not isinstance(history, TimedHistory) and not len(history):
            history = TimedHistory([], [])
        if not isinstance(history, TimedHistory):
            raise DataError(
                "this model uses timestamps and a history has none; pass TimedHistory(items, times) in Python, times "
                "in JSON lines, or a column time"
            )
        seconds = _seconds(history)
        last = int(seconds[-1]) if len(seconds) else 0
        at = last if history.at is None else int(history.at)
        if at < last:
            raise DataError(f"at={at}: is before the last item of a history, {last}; it must be at least that")
        return cls(indices[is_known], seconds[is_known], at), indices

    def __len__(self) -> int:
        return len(self.items)

    def last(self, n: int) -> "Known":
        """Return the history with its last `n` items alone."""
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
