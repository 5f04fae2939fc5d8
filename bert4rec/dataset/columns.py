"""Columns of numbers and of lists of numbers in memory-mapped Arrow files."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec.dataset.format import STATE
from bert4rec.runtime.arrays import Array, Int32s, Int64s
from bert4rec.runtime.errors import DataError

REMAKE_SAME = "make it again with `bert4rec prepare` and the same settings"


class SmallPickle:
    """A reader whose pickle contains no rows: what its cached properties hold, another process reads itself."""

    def __getstate__(self) -> dict[str, Any]:
        kept = vars(self).items()
        return {name: value for name, value in kept if not isinstance(getattr(type(self), name, None), cached_property)}


class Columns(SmallPickle):
    """The columns of numbers, and of lists of numbers, in the Arrow files of `folder`; opened when first used.

    The files are memory-mapped: all processes share their pages, and Linux reclaims them when memory is short. Arrow
    maps them directly: `datasets` would do the same, but takes a second to import in every process.

    Raises `DataError` for files that are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._batches[0].schema.names)

    def numbers(self, name: str) -> Array:
        """Return a plain column as one array [N], a copy."""
        return np.concatenate(self._numbers(name))

    def number_parts(self, name: str) -> Iterator[Array]:
        """Yield the numbers of a plain column, by record batch."""
        return iter(self._numbers(name))

    def numbers_at(self, name: str, rows: Int64s) -> Array:
        """Return the numbers [B] of a plain column at `rows` [B]."""
        return _gather(self._numbers(name), *self._find(rows))

    def lengths(self, name: str) -> Int64s:
        """Return the lengths [N] of all lists of a column."""
        return np.concatenate([*self.length_parts(name)])

    def length_parts(self, name: str) -> Iterator[Int64s]:
        """Yield the lengths of all lists of a column, by record batch."""
        return (np.diff(offsets).astype(np.int64) for offsets in self._lists(name)[0])

    def values(self, name: str) -> Iterator[Array]:
        """Yield the elements of all lists of a column, by record batch."""
        return iter(self._lists(name)[1])

    def counts(self, name: str, wanted: Sequence[int], stop_parts: Iterable[Int64s]) -> Iterator[Int64s]:
        """Yield how many elements of each list of a column, up to its stop, are `wanted`, by record batch."""
        for offsets, values, stops in zip(*self._lists(name), stop_parts, strict=True):
            n_before = np.append(0, np.isin(values, wanted).cumsum())
            yield n_before[offsets[:-1] + stops] - n_before[offsets[:-1]]

    def lengths_at(self, name: str, rows: Int64s) -> Int64s:
        """Return the lengths [B] of the lists at `rows` [B]."""
        (offsets, _), (chunks, places) = self._lists(name), self._find(rows)
        return (_gather(offsets, chunks, places + 1) - _gather(offsets, chunks, places)).astype(np.int64)

    def slices(self, name: str, rows: Int64s, starts: Int64s, stops: Int64s) -> Array:
        """Return the elements `starts` to `stops` [B] of the lists at `rows` [B], one after another [total]."""
        (offsets, values), (chunks, places) = self._lists(name), self._find(rows)
        first = _gather(offsets, chunks, places).astype(np.int64)
        bounds = zip(chunks.tolist(), (first + starts).tolist(), (first + stops).tolist(), strict=True)
        return np.concatenate([values[0][:0], *(values[chunk][start:stop] for chunk, start, stop in bounds)])

    def elements(self, name: str, rows: Int64s, places: Int64s) -> Array:
        """Return the elements at `places` [B] of the lists at `rows` [B]."""
        (offsets, values), (chunks, in_chunk) = self._lists(name), self._find(rows)
        return _gather(values, chunks, _gather(offsets, chunks, in_chunk) + places)

    def _find(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the number of the record batch of each of `rows` [B], and the row's index in it."""
        chunks = np.searchsorted(self._first_rows, rows, side="right") - 1
        return chunks, rows - self._first_rows[chunks]

    def _numbers(self, name: str) -> list[Array]:
        """Return the values of a plain column, by record batch."""
        if name not in self._opened:
            self._opened[name] = [self._values(batch[name]) for batch in self._batches]
        arrays: list[Array] = self._opened[name]
        return arrays

    def _lists(self, name: str) -> tuple[list[Int32s], list[Array]]:
        """Return the offsets and the values of a column of lists, by record batch."""
        if name not in self._opened:
            lists = [self._list(name, batch[name]) for batch in self._batches]
            self._opened[name] = [offsets for offsets, _ in lists], [values for _, values in lists]
        offsets, values = self._opened[name]
        return offsets, values

    def _list(self, name: str, column: Any) -> tuple[Int32s, Array]:
        if not pa.types.is_list(column.type) or column.null_count:
            raise DataError(
                f"{self._folder}: column {name} has the type {column.type}, or a list is missing; {REMAKE_SAME}"
            )
        offsets: Int32s = np.from_dlpack(column.offsets)  # type: ignore[assignment]
        values = self._values(column.values)
        if len(column) and (offsets[0] < 0 or offsets[-1] > len(values) or (np.diff(offsets) < 0).any()):
            raise DataError(f"{self._folder}: column {name} is damaged; {REMAKE_SAME}")
        return offsets, values

    def _values(self, column: Any) -> Array:
        if column.null_count:
            raise DataError(f"{self._folder}: a value is missing; {REMAKE_SAME}")
        return np.from_dlpack(column)  # to_numpy would import pandas

    @cached_property
    def _opened(self) -> dict[str, Any]:
        return {}

    @cached_property
    def _first_rows(self) -> Int64s:
        return np.cumsum([0, *map(len, self._batches)], dtype=np.int64)

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        state = self._folder / STATE
        try:
            files = [self._folder / file["filename"] for file in json.loads(state.read_text())["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{state}: cannot be read ({error}); {REMAKE_SAME}") from None
        return [batch for path in files for batch in _mapped(path)]


def _gather(chunks: Sequence[Array], numbers: Int64s, places: Int64s) -> Array:
    """Return the values [B] at `places` [B] of the `chunks` with the `numbers` [B]."""
    values, order = np.empty(len(numbers), chunks[0].dtype), np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    firsts = np.flatnonzero(np.diff(ascending, prepend=-1))
    lasts = [*firsts[1:].tolist(), len(order)]
    for chunk, first, last in zip(ascending[firsts].tolist(), firsts.tolist(), lasts, strict=False):
        part = order[first:last]
        values[part] = chunks[chunk][places[part]]
    return values


def _mapped(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            empty = pa.RecordBatch.from_arrays(
                [pa.nulls(0, field.type) for field in stream.schema], schema=stream.schema
            )
            yield from [*stream] or [empty]
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMAKE_SAME}") from None
