"""Rows of users and items, in any order, as histories: in memory that holds 16 bytes a row, and each id once."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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


def by_user(parts: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, list[Any]]]:
    """Each user with the items of its rows `user` and `item` in their order; users in the order in which they come."""
    users, items = Vocabulary(), Vocabulary()
    codes = [np.empty((2, 0), np.int32)]
    codes += (np.stack([users.encode(part["user"]), items.encode(part["item"])]) for part in parts)
    of_user, of_item = np.concatenate(codes, axis=1)
    del codes
    order = np.argsort(of_user, kind="stable")
    ends = np.bincount(of_user, minlength=len(users.values)).cumsum()
    first = 0
    for user, end in zip(users.values, ends.tolist(), strict=True):
        yield user, [items.values[code] for code in of_item[order[first:end]].tolist()]
        first = end
