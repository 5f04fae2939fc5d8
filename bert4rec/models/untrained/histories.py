"""The training histories of a dataset, put together again of its windows, in parts of bounded size."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bert4rec.dataset.columns import Indices
from bert4rec.dataset.reader import Dataset
from bert4rec.dataset.schema import FIRST_ITEM_ID, TRAIN

POSITIONS_AT_ONCE = 262_144  # of a part, about


@dataclass(frozen=True)
class Part:
    """Consecutive positions [P] of training histories, one user's after another's, the oldest first.

    `users`; `items`, counted from 0; `lengths` of the whole histories of their users; `left`: how many positions of the
    same user come after; `times` in seconds, None where they are not known.
    """

    users: Indices
    items: Indices
    lengths: Indices
    left: Indices
    times: Indices | None


class TrainingHistories:
    """The positions that `dataset` trains on, each once, however its windows overlap.

    Windows of a user follow one another and end `sliding_step` items apart, so that of each but the first one only the
    last so many items are new. `between` is called before each part. Takes memory for three numbers a window and one a
    user, beside a part.
    """

    def __init__(self, dataset: Dataset, between: Callable[[], None] = lambda: None) -> None:
        self._windows, self._between = dataset.splits[TRAIN], between
        self.n_items, self.has_times = dataset.n_items, self._windows.has_times
        max_len = dataset.metadata["max_len"]
        self._step = dataset.metadata["preprocessing"]["sliding_step"] or max_len
        self._at_once = max(1, POSITIONS_AT_ONCE // max_len)

    @property
    def n_parts(self) -> int:
        """Return parts of one pass."""
        return -(-len(self._windows) // self._at_once)

    @property
    def n_positions(self) -> int:
        """Return positions of all histories."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def parts(self) -> Iterator[Part]:
        """Yield all positions, in order; every call is a pass over the files."""
        first_position = 0
        for windows in self._windows_in_parts():
            self._between()
            part = self._read(windows, first_position)
            first_position += len(part.items)
            yield part

    def _windows_in_parts(self) -> Iterator[Indices]:
        n = len(self._windows)
        return (np.arange(first, min(first + self._at_once, n)) for first in range(0, n, self._at_once))

    def _read(self, windows: Indices, first_position: int) -> Part:
        rows = self._windows.read(windows)
        ends = rows.lengths.cumsum()
        from_end = np.repeat(ends, rows.lengths) - np.arange(len(rows.items))
        is_new = from_end <= np.repeat(self._n_new[windows], rows.lengths)
        users = np.repeat(self._windows.users[windows], self._n_new[windows]).astype(np.int64)
        left = self._ends[users] - 1 - np.arange(first_position, first_position + len(users))
        lengths = self._ends[users] - np.where(users > 0, self._ends[users - 1], 0)
        times = self._windows.times(windows)[is_new] if self.has_times else None
        return Part(users, rows.items[is_new].astype(np.int64) - FIRST_ITEM_ID, lengths, left, times)

    @cached_property
    def _n_new(self) -> Indices:
        """Return how many items of each window [N] are in none before."""
        users = self._windows.users
        lengths = np.concatenate([self._windows.lengths(windows) for windows in self._windows_in_parts()])
        follows = np.zeros(len(users), bool)
        follows[1:] = users[1:] == users[:-1]
        return np.where(follows, np.minimum(self._step, lengths), lengths)

    @cached_property
    def _ends(self) -> Indices:
        """Return the end of each user's history among all positions."""
        return np.bincount(self._windows.users, self._n_new).astype(np.int64).cumsum()
