"""Columns of numbers and of lists of numbers in memory-mapped Arrow files."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec.dataset.format import STATE, read_version
from bert4rec.runtime.arrays import Array, Bools, Int32s, Int64s
from bert4rec.runtime.errors import DataError

PREPARE_AGAIN = "make it again with `bert4rec prepare` and the same settings"


class SmallPickle:
    """A reader whose pickle contains no rows: what its cached properties hold, another process reads itself."""

    def __getstate__(self) -> dict[str, Any]:
        kept = vars(self).items()
        return {name: value for name, value in kept if not isinstance(getattr(type(self), name, None), cached_property)}


class Columns(SmallPickle):
    """The columns of numbers, and of lists of numbers, in the Arrow files of `folder`, each opened when first used.

    A file holds the rows of a range of users, who ascend, in record batches. The files are memory-mapped: all processes
    share their pages, and Linux reclaims them when memory is short. Arrow maps them directly: `datasets` would do the
    same, but takes a second to import in every process.

    Raises `DataError` for files that are missing or damaged, and, unless `fingerprint` is "", if the dataset around the
    folder has another one by now: rows of two datasets are never mixed. With `parts`, only the rows of the files with
    these names exist.
    """

    def __init__(self, folder: Path, fingerprint: str = "", parts: Collection[str] | None = None) -> None:
        self._folder, self._fingerprint, self._parts = folder, fingerprint, parts

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def files(self) -> list[str]:
        """Return the name of the file of each record batch."""
        return [path.name for path, *_ in self._places]

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._batch(0).schema.names)

    def numbers(self, name: str) -> Array:
        """Return a plain column as one array [N], a copy."""
        return np.concatenate([*self.number_parts(name)])

    def number_parts(self, name: str) -> Iterator[Array]:
        """Yield the numbers of a plain column, by record batch."""
        return (self._numbers(name, chunk) for chunk in range(len(self._places)))

    def part(self, name: str, number: int) -> tuple[int, Array]:
        """Return the first row of a record batch, and the numbers of a plain column in it."""
        return int(self._first_rows[number]), self._numbers(name, number)

    def numbers_at(self, name: str, rows: Int64s) -> Array:
        """Return the numbers [B] of a plain column at `rows` [B]."""
        return _gather(partial(self._numbers, name), *self._find(rows))

    def user_rows(self, users: Int64s) -> tuple[Int64s, Bools]:
        """Return for each of `users` [B] the row, and whether there is one; else the row is another user's."""
        chunks, rows = np.maximum(np.searchsorted(self._first_users, users, side="right") - 1, 0), np.zeros_like(users)
        for chunk, indices in by_number(chunks):
            rows[indices] = self._first_rows[chunk] + np.searchsorted(self._numbers("user", chunk), users[indices])
        rows = np.minimum(rows, len(self) - 1)
        return rows, self.numbers_at("user", rows) == users

    def lengths(self, name: str) -> Int64s:
        """Return the lengths [N] of all lists of a column."""
        return np.concatenate([*self.length_parts(name)])

    def length_parts(self, name: str) -> Iterator[Int64s]:
        """Yield the lengths of all lists of a column, by record batch."""
        return (np.diff(offsets).astype(np.int64) for offsets, _ in self._lists(name))

    def values(self, name: str) -> Iterator[Array]:
        """Yield the elements of all lists of a column, by record batch."""
        return (values for _, values in self._lists(name))

    def counts(self, name: str, wanted: Sequence[int], stop_parts: Iterable[Int64s]) -> Iterator[Int64s]:
        """Yield how many elements of each list of a column, up to its stop, are `wanted`, by record batch."""
        for (offsets, values), stops in zip(self._lists(name), stop_parts, strict=True):
            n_before = np.append(0, np.isin(values, wanted).cumsum())
            yield n_before[offsets[:-1] + stops] - n_before[offsets[:-1]]

    def lengths_at(self, name: str, rows: Int64s) -> Int64s:
        """Return the lengths [B] of the lists at `rows` [B]."""
        offsets, (chunks, places) = partial(self._offsets, name), self._find(rows)
        return (_gather(offsets, chunks, places + 1) - _gather(offsets, chunks, places)).astype(np.int64)

    def slices(self, name: str, rows: Int64s, starts: Int64s, stops: Int64s) -> Array:
        """Return the elements `starts` to `stops` [B] of the lists at `rows` [B], one after another [total]."""
        chunks, places = self._find(rows)
        first = _gather(partial(self._offsets, name), chunks, places).astype(np.int64)
        values = {chunk: self._elements(name, chunk) for chunk in np.unique(chunks).tolist() or [0]}
        bounds = zip(chunks.tolist(), (first + starts).tolist(), (first + stops).tolist(), strict=True)
        nothing = next(iter(values.values()))[:0]
        return np.concatenate([nothing, *(values[chunk][start:stop] for chunk, start, stop in bounds)])

    def elements(self, name: str, rows: Int64s, places: Int64s) -> Array:
        """Return the elements at `places` [B] of the lists at `rows` [B]."""
        chunks, in_chunk = self._find(rows)
        first = _gather(partial(self._offsets, name), chunks, in_chunk)
        return _gather(partial(self._elements, name), chunks, first + places)

    def _find(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the number of the record batch of each of `rows` [B], and the row's index in it."""
        chunks = np.searchsorted(self._first_rows, rows, side="right") - 1
        return chunks, rows - self._first_rows[chunks]

    def _numbers(self, name: str, chunk: int) -> Array:
        """Return the values of a plain column in a record batch."""
        numbers: Array = self._open(name, chunk, self._values)
        return numbers

    def _lists(self, name: str) -> Iterator[tuple[Int32s, Array]]:
        return (self._list(name, chunk) for chunk in range(len(self._places)))

    def _offsets(self, name: str, chunk: int) -> Int32s:
        return self._list(name, chunk)[0]

    def _elements(self, name: str, chunk: int) -> Array:
        return self._list(name, chunk)[1]

    def _list(self, name: str, chunk: int) -> tuple[Int32s, Array]:
        """Return the offsets and the values of a column of lists in a record batch."""
        lists: tuple[Int32s, Array] = self._open(name, chunk, partial(self._read_list, name))
        return lists

    def _open(self, name: str, chunk: int, read: Callable[[Any], Any]) -> Any:
        """Return what `read` returns of a column in a record batch, which it reads once."""
        if (name, chunk) not in self._opened:
            self._opened[name, chunk] = read(self._batch(chunk)[name])
        return self._opened[name, chunk]

    def _read_list(self, name: str, column: Any) -> tuple[Int32s, Array]:
        if not pa.types.is_list(column.type) or column.null_count:
            raise DataError(
                f"{self._folder}: column {name} has the type {column.type}, or a list is missing; {PREPARE_AGAIN}"
            )
        offsets: Int32s = np.from_dlpack(column.offsets)  # type: ignore[assignment]
        values = self._values(column.values)
        if len(column) and (offsets[0] < 0 or offsets[-1] > len(values) or (np.diff(offsets) < 0).any()):
            raise DataError(f"{self._folder}: column {name} is damaged; {PREPARE_AGAIN}")
        return offsets, values

    def _values(self, column: Any) -> Array:
        if column.null_count:
            raise DataError(f"{self._folder}: a value is missing; {PREPARE_AGAIN}")
        return np.from_dlpack(column)  # to_numpy would import pandas

    @cached_property
    def _opened(self) -> dict[tuple[str, int], Any]:
        return {}

    @cached_property
    def _mapped(self) -> dict[Path, list[pa.RecordBatch]]:
        return {}

    @cached_property
    def _first_rows(self) -> Int64s:
        return np.cumsum([0, *(n_rows for *_, n_rows in self._places)], dtype=np.int64)

    @cached_property
    def _first_users(self) -> Int64s:
        return np.array([user for *_, user, _ in self._places], np.int64)

    def _batch(self, chunk: int) -> pa.RecordBatch:
        """Return a record batch, from its file."""
        path, number, _, n_rows = self._places[chunk]
        if path not in self._mapped:
            self._mapped[path] = read_version(self._folder.parent, self._fingerprint, partial(_map, path))
        if len(batches := self._mapped[path]) <= number or len(batches[number]) != n_rows:
            raise DataError(f"{path}: has other rows than {STATE} says; {PREPARE_AGAIN}")
        return batches[number]

    @cached_property
    def _places(self) -> list[tuple[Path, int, int, int]]:
        """Return of each record batch: its file and number there, its first user and its number of rows."""
        places = read_version(self._folder.parent, self._fingerprint, partial(_list_batches, self._folder))
        return [place for place in places if self._parts is None or place[0].name in self._parts]


def _list_batches(folder: Path) -> list[tuple[Path, int, int, int]]:
    state = folder / STATE
    try:
        return [
            (folder / file["filename"], number, int(user), int(n_rows))
            for file in json.loads(state.read_text())["_data_files"]
            for number, (user, n_rows) in enumerate(file["batches"])
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{state}: cannot be read ({error}); {PREPARE_AGAIN}") from None


def _map(path: Path) -> list[pa.RecordBatch]:
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            return [*stream]
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}); {PREPARE_AGAIN}") from None


def _gather(read: Callable[[int], Array], chunks: Int64s, places: Int64s) -> Array:
    """Return the values [B] at `places` [B] of the `chunks` [B]; `read` returns a chunk by its number."""
    values = np.empty(len(chunks), read(int(chunks[0]) if len(chunks) else 0).dtype)
    for chunk, indices in by_number(chunks):
        values[indices] = read(chunk)[places[indices]]
    return values


def by_number(numbers: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Yield each number that is among `numbers` [B], with the indices where it is."""
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    firsts = np.flatnonzero(np.diff(ascending, prepend=-1))
    lasts = [*firsts[1:].tolist(), len(order)]
    for number, first, last in zip(ascending[firsts].tolist(), firsts.tolist(), lasts, strict=False):
        yield number, order[first:last]
