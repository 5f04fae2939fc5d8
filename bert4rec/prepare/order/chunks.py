"""Frames of any size as frames of one size: what is made of them then depends on the rows alone."""

from collections.abc import Iterable, Iterator

import polars as pl


class Chunks:
    """Takes frames with the same columns, one after another, and gives back frames of `size` rows."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pending: list[pl.DataFrame] = []
        self._n_pending = 0

    def add(self, frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield every frame of `size` rows that is full with the rows of `frame`."""
        self._pending.append(frame)
        self._n_pending += len(frame)
        if self._n_pending < self._size:
            return
        rows = pl.concat(self._pending)
        whole = self._n_pending // self._size * self._size
        self._pending, self._n_pending = [rows[whole:]], self._n_pending - whole
        for first in range(0, whole, self._size):
            yield rows[first : first + self._size]

    def rest(self) -> Iterator[pl.DataFrame]:
        """Yield the last frame, which is smaller; nothing if no row is left."""
        rows = pl.concat(self._pending) if self._n_pending else None
        self._pending, self._n_pending = [], 0
        if rows is not None:
            yield rows


def chunked(frames: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of `frames` in frames of `size` rows, the last one smaller.

    >>> [frame["a"].to_list() for frame in chunked([pl.DataFrame({"a": [1, 2, 3]}), pl.DataFrame({"a": [4]})], 2)]
    [[1, 2], [3, 4]]
    """
    chunks = Chunks(size)
    for frame in frames:
        yield from chunks.add(frame)
    yield from chunks.rest()
