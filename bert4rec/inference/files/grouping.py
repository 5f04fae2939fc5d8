"""Rows of users and items, in any order, as histories: in memory 16 bytes a row, 24 with times, and each id once."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bert4rec.inference.history import History, TimedHistory

Codes = npt.NDArray[np.int32]


class Vocabulary:
    """Values as numbers from 0, in the order in which they first come."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._codes: dict[Any, int] = {}

    def encode(self, column: pa.Array) -> Codes:
        """The numbers of a column's values."""
        encoded = column.dictionary_encode(null_encoding="encode")
        for value in encoded.dictionary.to_pylist():
            if value not in self._codes:
                self._codes[value] = len(self.values)
                self.values.append(value)
        codes = np.array([self._codes[value] for value in encoded.dictionary.to_pylist()], np.int32)
        return codes[encoded.indices.to_numpy(zero_copy_only=False)]


def by_user(
    parts: Iterable[pa.RecordBatch], *, with_times: bool = False, newest_first: bool = False
) -> Iterator[tuple[Any, History]]:
    """Return each user with the items of its rows `user` and `item`; users in the order in which they come.

    Where the rows have a `time`, in seconds, the items are in its order, those of one time in that of the
    rows; `with_times` they bring it along. Else the order is that of the rows, or with `newest_first` the reverse.
    """
    users, items = Vocabulary(), Vocabulary()
    codes, times = [np.empty((2, 0), np.int32)], [np.empty(0)]
    for part in parts:
        codes.append(np.stack([users.encode(part["user"]), items.encode(part["item"])]))
        if "time" in part.schema.names:
            times.append(part["time"].to_numpy(zero_copy_only=False))
    of_user, of_item = np.concatenate(codes, axis=1)
    seconds = np.concatenate(times)
    del codes, times
    if len(seconds):
        order = np.lexsort((seconds, of_user))
    elif newest_first:
        order = np.argsort(of_user[::-1], kind="stable")
        order = len(of_user) - 1 - order
    else:
        order = np.argsort(of_user, kind="stable")
    ends = np.bincount(of_user, minlength=len(users.values)).cumsum()
    first = 0
    for user, end in zip(users.values, ends.tolist(), strict=True):
        own = order[first:end]
        taken = [items.values[code] for code in of_item[own].tolist()]
        yield user, TimedHistory(taken, seconds[own].tolist()) if with_times else taken
        first = end
