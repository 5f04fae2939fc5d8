"""Compute the number of the user or item of a row, and the row of a number: neither is stored to be looked up."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from bert4rec.dataset.format import ITEMS
from bert4rec.runtime.arrays import Int64s, Integers
from bert4rec.runtime.seeded import Permutation

ITEM_STREAM = 0x4954454D  # separates the numbers of the items from all else that is drawn by the seed


class Segments:
    """The segments of a table of users or items: the rows that each preparation added, sorted by id.

    A segment has the same range of rows and of numbers. A user's number is its row. Within a segment, the numbers of
    items are a permutation that depends on the size of the segment and its seed, so that contiguous shards of the item
    table have equal load and ids reveal nothing.

    >>> segments = Segments([3, 2], seeds=[7, 7])
    >>> segments.numbers(np.arange(5)).tolist()
    [2, 0, 1, 4, 3]
    >>> segments.rows(np.array([3, 0])).tolist()
    [4, 1]
    """

    def __init__(self, sizes: Sequence[int], seeds: Sequence[int] = ()) -> None:
        self.starts = [0, *np.cumsum(sizes).tolist()]
        self._orders = [Permutation(n, (seed, ITEM_STREAM)) for n, seed in zip(sizes, seeds, strict=bool(seeds))]

    @classmethod
    def of(cls, metadata: Mapping[str, Any], name: str) -> "Segments":
        """Return those of the table `name`, USERS or ITEMS, of a dataset with this `metadata.json`."""
        listed = metadata["segments"][name]
        return cls([n for n, _ in listed], [seed for _, seed in listed]) if name == ITEMS else cls(listed)

    def __len__(self) -> int:
        return self.starts[-1]

    def numbers(self, rows: Integers) -> Int64s:
        """Return the numbers [B] of the users or items in `rows` [B], in any order."""
        return self._map(rows, Permutation.at)

    def rows(self, numbers: Integers) -> Int64s:
        """Return the rows [B] of the users or items with these `numbers` [B], in any order."""
        return self._map(numbers, Permutation.places)

    def _map(self, values: Integers, method: Callable[[Permutation, Int64s], Int64s]) -> Int64s:
        mapped = values.astype(np.int64)
        for order, (first, stop) in zip(self._orders, pairwise(self.starts), strict=False):
            is_here = (values >= first) & (values < stop)
            mapped[is_here] = first + method(order, mapped[is_here] - first)
        return mapped
