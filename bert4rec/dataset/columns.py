"""Columns of Arrow's stream files: rows are read where the file has them, whatever its size.

All that is remembered is where the buffers of each record batch begin: tens of bytes for thousands of rows. Small
files are mapped into memory. Of large ones each run of words is read by itself from the page cache, which all processes
share: Linux maps 64 KiB around a page that is touched and counts them as memory of the process, so that in random order
a large file would soon be there as a whole.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bert4rec.runtime.errors import DataError

REMAKE = "make it again with `bert4rec prepare` and the same settings"

MAPPED_BYTES = 64 * 2**20  # files that are larger together are not mapped

INT32, INT64 = pa.int32(), pa.int64()
KINDS = {INT32: 1, INT64: 2, pa.float32(): 1}  # of numbers → words of 32 bits that one has

Ints: TypeAlias = npt.NDArray[np.int32]
Indices: TypeAlias = npt.NDArray[np.int64]
Place: TypeAlias = tuple[int, int, int, int]
"""Where a column of a record batch begins, in words: its lists' offsets (0 if it has none), its numbers, how many, and
how many words each has."""
Batch: TypeAlias = tuple[int, int, dict[str, Place]]
"""A record batch: the number of its file, its rows, and the columns that can be read."""


class Columns:
    """The columns of int32, int64, float32 and of lists of such numbers in `paths`, files of one table in their order.

    Pickled, it takes along where things are but no bytes of the files, which every process opens for itself. Raises
    `DataError` for files that are not such a table, and for rows that they cannot have.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._are_small = sum(path.stat().st_size for path in paths) <= MAPPED_BYTES
        batches = list(_batches(paths))
        self._first_rows = np.cumsum([0, *(n_rows for _, n_rows, _ in batches)], dtype=np.int64)
        self._file = np.array([file for file, *_ in batches], np.int64)
        names: set[str] = set.intersection(*(set(places) for *_, places in batches)) if batches else set()
        self._places = {name: np.array([places[name] for *_, places in batches], np.int64) for name in sorted(names)}
        self._n_rows = np.diff(self._first_rows)
        self._known_elements: dict[str, tuple[Indices, Indices]] = {}

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_handles", "_mapped")}

    @property
    def names(self) -> list[str]:
        """The columns that there are; none where there are no rows."""
        return list(self._places)

    def numbers(self, name: str, rows: Indices, *, maps: bool = False) -> Ints:
        """The numbers [B] of a plain column of int32 in `rows` [B]; with `maps` from mapped files, however large."""
        batch, places = self._find(name, rows)
        words = places[:, 1] + rows - self._first_rows[batch]
        return self._at(self._file[batch], words) if maps else self._read(self._file[batch], words, np.ones_like(rows))

    def long_numbers(self, name: str, rows: Indices) -> Indices:
        """As `numbers`, of a plain column of int64."""
        batch, places = self._find(name, rows, INT64)
        words = places[:, 1] + 2 * (rows - self._first_rows[batch])
        return self._read(self._file[batch], words, np.full_like(rows, 2)).view("<i8")

    def lists(self, name: str, rows: Indices) -> tuple[Ints, Indices]:
        """The lists of a column of int32 in `rows` [B]: numbers one after another, and how many each has [B]."""
        file, first, lengths = self._bounds(name, rows)
        return self._read(file, first, lengths), lengths

    def long_lists(self, name: str, rows: Indices) -> tuple[Indices, Indices]:
        """As `lists`, of a column of int64."""
        file, first, lengths = self._bounds(name, rows, kind=INT64)
        return self._read(file, first, 2 * lengths).view("<i8"), lengths

    def lengths(self, name: str, rows: Indices) -> Indices:
        """How many numbers the lists of a column have in `rows` [B]."""
        return self._bounds(name, rows)[2]

    def n_elements(self, name: str) -> int:
        """Elements of the lists of a column in all rows."""
        return int(self._elements(name)[0][-1])

    def elements(self, name: str, numbers: Indices) -> Ints:
        """Those elements of the lists of a column, counted from 0 over all rows, that have the `numbers` [B].

        Those of float32 as the words that they are, as int32. Read from mapped files, however large: in random order
        all of their pages are touched in any case.
        """
        ends, starts = self._elements(name)
        batch = np.searchsorted(ends, numbers, side="right") - 1
        return self._at(self._file[batch], starts[batch] + numbers - ends[batch])

    def rows_of(self, name: str, numbers: Indices) -> Indices:
        """The rows in whose lists the elements with the `numbers` [B] stand, which ascend."""
        ends, _ = self._elements(name)
        rows = np.empty_like(numbers)
        bounds = np.searchsorted(numbers, ends)
        for batch in np.flatnonzero(np.diff(bounds)):
            here, n_rows = slice(bounds[batch], bounds[batch + 1]), self._n_rows[batch]
            first = self._places[name][batch, 0]
            offsets = self._mapped[self._file[batch]][first : first + n_rows + 1]
            inside = (numbers[here] - ends[batch] + offsets[0]).astype(np.int32)
            rows[here] = self._first_rows[batch] + np.searchsorted(offsets, inside, side="right") - 1
        return rows

    def _elements(self, name: str) -> tuple[Indices, Indices]:
        """Of a column of lists: how many elements come before each record batch, and in all; the first word of each."""
        if name not in self._known_elements:
            places = self._places_of(name, INT32)
            first, last = (
                self._read(self._file, at, np.ones_like(at)).astype(np.int64)
                for at in (places[:, 0], places[:, 0] + self._n_rows)
            )
            wrong = (first < 0) | (last < first) | (last > places[:, 2])
            if wrong.any():
                raise DataError(f"{self._folder}: column {name} is damaged; {REMAKE}")
            self._known_elements[name] = np.cumsum([0, *(last - first)], dtype=np.int64), places[:, 1] + first
        return self._known_elements[name]

    def _bounds(self, name: str, rows: Indices, kind: pa.DataType = INT32) -> tuple[Indices, Indices, Indices]:
        """The file of each list [B] of numbers of that `kind`, its first word there and how many numbers it has."""
        batch, places = self._find(name, rows, kind)
        at = places[:, 0] + rows - self._first_rows[batch]
        bounds = self._read(self._file[batch], at, np.full_like(rows, 2)).reshape(-1, 2).astype(np.int64)
        first, last = bounds[:, 0], bounds[:, 1]
        wrong = (first < 0) | (last < first) | (last > places[:, 2])
        if wrong.any():
            raise DataError(f"{self._folder}: row {rows[wrong][0]}: column {name} is damaged; {REMAKE}")
        return self._file[batch], places[:, 1] + first * places[:, 3], last - first

    def _find(self, name: str, rows: Indices, kind: pa.DataType = INT32) -> tuple[Indices, Indices]:
        """The record batch in which each of `rows` is, and where the column of that `kind` lies there."""
        batch = np.searchsorted(self._first_rows, rows, side="right") - 1
        return batch, self._places_of(name, kind)[batch]

    def _places_of(self, name: str, kind: pa.DataType) -> Indices:
        """Where the column of that `kind` lies in each record batch, [batches, 4]: as `Place`."""
        if name not in self._places or (self._places[name][:, 3] != KINDS[kind]).any():
            raise DataError(f"{self._folder}: has no column {name} of {kind}; {REMAKE}")
        return self._places[name]

    def _read(self, files: Indices, first: Indices, lengths: Indices) -> Ints:
        """`lengths` [B] words each, from the word `first` [B] of the files with the numbers `files` [B]."""
        if self._are_small:
            ends = lengths.cumsum()
            words = np.arange(lengths.sum()) + np.repeat(first - (ends - lengths), lengths)
            return self._at(np.repeat(files, lengths), words)
        handles = [self._handles[file] for file in files.tolist()]
        content = b"".join(map(os.pread, handles, (4 * lengths).tolist(), (4 * first).tolist()))
        if len(content) != 4 * lengths.sum():
            raise DataError(f"{self._folder}: its files end before their rows do; {REMAKE}")
        return np.frombuffer(content, "<i4")

    def _at(self, files: Indices, words: Indices) -> Ints:
        """The words at `words` [B] of the mapped files with the numbers `files` [B]."""
        if len(self._mapped) == 1:
            return self._mapped[0][words]
        found = np.empty(len(words), np.int32)
        for file, mapped in enumerate(self._mapped):
            here = files == file
            found[here] = mapped[words[here]]
        return found

    @cached_property
    def _mapped(self) -> list[Ints]:
        return [np.frombuffer(mapped, "<i4", len(mapped) // 4) for mapped in map(_map, self._paths)]

    @cached_property
    def _handles(self) -> list[int]:
        return [os.open(path, os.O_RDONLY) for path in self._paths]  # for as long as the process lives

    @property
    def _folder(self) -> Path:
        return self._paths[0].parent


def _batches(paths: Sequence[Path]) -> Iterator[Batch]:
    """The record batches that have rows; only their heads are read."""
    for number, path in enumerate(paths):
        try:
            file = pa.py_buffer(_map(path))
            reader = pa.ipc.open_stream(file)
            inner = [field.type.value_type if pa.types.is_list(field.type) else field.type for field in reader.schema]
            columns = [name for name, kind in zip(reader.schema.names, inner, strict=True) if kind in KINDS]
            for batch in reader:
                if batch.num_rows:
                    yield number, batch.num_rows, {name: _place(batch[name], file) for name in columns}
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read ({error}); {REMAKE}") from None


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)  # else Linux reads megabytes around each page that is not in its cache yet
    return mapped


def _place(column: pa.Array, file: pa.Buffer) -> Place:
    is_list = pa.types.is_list(column.type)
    numbers = column.values if is_list else column
    if column.null_count or numbers.null_count:
        raise ValueError("a value is missing")
    offsets = _word(column.buffers()[1], file) + column.offset if is_list else 0
    n_words = KINDS[numbers.type]
    return offsets, _word(numbers.buffers()[1], file) + n_words * numbers.offset, len(numbers), n_words


def _word(buffer: pa.Buffer, file: pa.Buffer) -> int:
    """The word of `file` at which `buffer` begins."""
    if not buffer.size:
        return 0
    place = buffer.address - file.address
    if place % 4 or not 0 <= place <= file.size - buffer.size:
        raise ValueError("its buffers are compressed or not aligned")
    return place // 4
