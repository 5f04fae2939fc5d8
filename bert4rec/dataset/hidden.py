"""Find the events shortly before a target, such as the view before a purchase, and the targets that repeat them.

Arrays [N] hold the positions of histories of `lengths` [B], one after another; times are in seconds, ascending in a
history. The window of a position is a run of positions that ends directly before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bert4rec.runtime.arrays import Array, Bools, Int64s, Integers

NOTHING, VISIT, LAST_TARGET = "nothing", "visit", "last_target"
PAUSE = 30 * 60  # seconds without an event, after which a user's next event begins a new visit


class HiddenEvents(NamedTuple):
    """The setting preprocessing.hide_before_target, `before`, with the numbers of the kinds of `target_events`."""

    before: int | str
    target_events: Sequence[int]

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any], kinds: Sequence[str]) -> Self | None:
        """Return the setting of a dataset's `preprocessing`, with `kinds` of events by number; None if all is input.

        Without kinds of events, as of a model that does not read them, all is input.
        """
        before = preprocessing.get("hide_before_target", NOTHING)
        names = preprocessing.get("target_events", [])
        return None if before == NOTHING or not kinds else cls(before, [kinds.index(name) for name in names])

    def n_visible(self, times: Int64s, events: Array, lengths: Int64s) -> Int64s:
        """Return for each position [N] how many of the first positions of its history are input when it is predicted.

        >>> times, views_and_a_purchase = np.array([0, 5000, 5060]), np.array([1, 1, 2])
        >>> HiddenEvents("visit", [2]).n_visible(times, views_and_a_purchase, np.array([3])).tolist()
        [0, 1, 1]
        """
        return window_starts(self.before, times, np.isin(events, self.target_events), lengths) - firsts(lengths)

    def n_visible_now(self, times: Int64s, events: Array, now: float) -> int:
        """Return how many of the first positions [N] of one history are input when it is asked at `now`."""
        asked = max(int(now), int(times[-1]) + 1 if len(times) else 0)
        events = np.append(events, self.target_events[:1])
        return int(self.n_visible(np.append(times, asked), events, np.array([len(events)]))[-1])


def window_starts(before: int | str, times: Int64s, is_target: Bools, lengths: Int64s) -> Int64s:
    """Return the first position of the window of each position [N].

    `before` is `VISIT`, `LAST_TARGET`, or the length of the window in minutes. A visit has no pause of more than
    `PAUSE` seconds. The window since the last target begins after the last target of an earlier time: the purchases of
    one basket do not end each other's windows.

    >>> times, is_target = np.array([0, 60, 60, 7200, 7260]), np.array([False, True, True, False, True])
    >>> [window_starts(before, times, is_target, np.array([5])).tolist() for before in (VISIT, LAST_TARGET, 1)]
    [[0, 0, 0, 3, 3], [0, 0, 0, 3, 3], [0, 0, 0, 3, 3]]
    """
    at, first = np.arange(len(times)), firsts(lengths)
    if isinstance(before, int):
        since_first = times - times[first]
        step = since_first.max(initial=0) + 60 * before + 1  # the keys of a history are below those of the next
        keys = since_first + step * np.repeat(np.arange(len(lengths)), lengths)
        return np.maximum(np.searchsorted(keys, keys - 60 * before), first)
    pauses = np.diff(times, prepend=times[:1]) > (PAUSE if before == VISIT else 0)
    begins = np.maximum.accumulate(np.where(pauses | (at == first), at, 0))
    if before == VISIT:
        return begins
    last = np.append(-1, np.maximum.accumulate(np.where(is_target, at, -1)))  # of the positions before each
    return np.maximum(last[begins] + 1, first)


def firsts(lengths: Int64s) -> Int64s:
    """Return the first position of the history of each position [N]."""
    return np.repeat(np.cumsum(lengths) - lengths, lengths)


class Copies(NamedTuple):
    """Whether the item of each of M targets is in its input: `in_visit`, or `since_last`, the last target before."""

    in_visit: Bools
    since_last: Bools

    @property
    def either(self) -> Bools:
        """Return whether it is in one of the two [M]."""
        return self.in_visit | self.since_last

    @property
    def counts(self) -> dict[str, int]:
        """Return how many of the targets have their item in the input, by which of the two, and the number of all."""
        arrays = {"targets": self.either, "in_visit": self.in_visit, "since_last": self.since_last}
        return {name: int(array.sum()) for name, array in arrays.items()} | {"of": len(self.in_visit)}


def copies(
    items: Integers, times: Int64s, is_target: Bools, lengths: Int64s, wanted: Int64s, n_visible: Int64s | None = None
) -> Copies:
    """Return what the targets at the positions `wanted` [M] repeat.

    The first `n_visible` [N] of a history are the input of each position; None: all before it.

    >>> items, times, is_target = np.array([7, 8, 8, 9]), np.array([0, 60, 120, 180]), np.array([0, 0, 1, 1]) > 0
    >>> copies(items, times, is_target, np.array([4]), np.array([2, 3])).either.tolist()
    [True, False]
    """
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((items, rows))  # stable: the positions of an item in a history ascend
    is_new = (np.diff(items[order], prepend=-1) != 0) | (np.diff(rows[order], prepend=-1) != 0)
    groups = np.empty(len(items), np.int64)
    groups[order] = is_new.cumsum()
    n = len(items) + 1
    keys = groups[order] * n + order
    ends = wanted if n_visible is None else (firsts(lengths) + n_visible)[wanted]
    below_end = np.searchsorted(keys, groups[wanted] * n + ends)

    def is_in_window(before: str) -> Bools:
        starts = window_starts(before, times, is_target, lengths)[wanted]
        return np.searchsorted(keys, groups[wanted] * n + np.minimum(starts, ends)) < below_end

    return Copies(is_in_window(VISIT), is_in_window(LAST_TARGET))


def what_to_hide(counts: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """Return the value of preprocessing.hide_before_target that hides the most of what targets repeat.

    `counts` are those of `Copies` with the present `settings`.

    >>> what_to_hide({"in_visit": 90, "targets": 100}, {}), what_to_hide({"in_visit": 3, "targets": 9}, {})
    ('visit', 'last_target')
    """
    if not counts or settings.get("hide_before_target") == LAST_TARGET:
        return VISIT
    is_by_visit = settings.get("hide_before_target") != VISIT and counts["in_visit"] >= counts["targets"] / 2
    return VISIT if is_by_visit else LAST_TARGET
