"""Columns of Arrow's stream files: rows are read where the file has them, whatever its size.

All that is remembered is where the buffers of each record batch begin: tens of bytes for thousands of rows.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bert4rec.runtime.errors import DataError

REMAKE = "make it again with `python preprocessing.py` and the same settings"

MAPPED_BYTES = 64 * 2**20  # files that are larger together are not mapped

Ints: TypeAlias = npt.NDArray[np.int32]
Indices: TypeAlias = npt.NDArray[np.int64]


class Columns:
    """The columns of int32 and of lists of int32 in `paths`, files of one table in their order.

    Pickled, it takes along where things are but no bytes of the files, which every process opens for itself. Raises
    `DataError` for files that are not such a table, and for rows that they cannot have.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = Files(paths)
        parts = list(self._files.parts())
        self._first_rows = np.cumsum([0, *(part.n_rows for part in parts)], dtype=np.int64)
        self._file = np.array([part.file for part in parts], np.int64)
        names: set[str] = set.intersection(*(set(part.places) for part in parts)) if parts else set()
        self._places = {name: np.array([part.places[name] for part in parts], np.int64) for name in sorted(names)}

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def names(self) -> list[str]:
        """The columns that there are; none where there are no rows."""
        return list(self._places)

    def numbers(self, name: str, rows: Indices) -> Ints:
        """The numbers [B] of a plain column in `rows` [B]."""
        part, places = self._find(name, rows)
        first = places[:, 1] + rows - self._first_rows[part]
        return self._files.read(self._file[part], first, np.ones_like(rows))

    def lists(self, name: str, rows: Indices) -> tuple[Ints, Indices]:
        """The lists of a column in `rows` [B]: their numbers one after another, and how many each has [B]."""
        file, first, lengths = self._bounds(name, rows)
        return self._files.read(file, first, lengths), lengths

    def lengths(self, name: str, rows: Indices) -> Indices:
        """How many numbers the lists of a column have in `rows` [B]."""
        return self._bounds(name, rows)[2]

    def _bounds(self, name: str, rows: Indices) -> tuple[Indices, Indices, Indices]:
        """The file of each list [B], its first word there and its length."""
        part, places = self._find(name, rows)
        file = self._file[part]
        at = places[:, 0] + rows - self._first_rows[part]
        bounds = self._files.read(file, at, np.full_like(rows, 2)).reshape(-1, 2).astype(np.int64)
        first, last = bounds[:, 0], bounds[:, 1]
        wrong = (first < 0) | (last < first) | (last > places[:, 2])
        if wrong.any():
            raise DataError(f"{self._files.folder}: row {rows[wrong][0]}: column {name} is damaged; {REMAKE}")
        return file, places[:, 1] + first, last - first

    def _find(self, name: str, rows: Indices) -> tuple[Indices, Indices]:
        """The part in which each of `rows` is, and where the column lies there."""
        if name not in self._places:
            raise DataError(f"{self._files.folder}: has no column {name} of int32; {REMAKE}")
        part = np.searchsorted(self._first_rows, rows, side="right") - 1
        return part, self._places[name][part]


class Place(NamedTuple):
    """Where a column of a record batch begins, in words: its lists' offsets (0 if it has none), its numbers."""

    offsets: int
    numbers: int
    n_numbers: int


class Part(NamedTuple):
    """A record batch: the number of its file, its rows, and the columns that can be read."""

    file: int
    n_rows: int
    places: dict[str, Place]


class Files:
    """Files as words of 32 bits, opened when a process first reads them.

    Small ones are mapped into memory, and their words taken from there. Of large ones each run of words is read by
    itself from the page cache, which all processes share: Linux maps 64 KiB around a page that is touched and counts
    them as memory of the process, so that in random order a large file would soon be there as a whole.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._are_small = sum(path.stat().st_size for path in paths) <= MAPPED_BYTES

    def __getstate__(self) -> dict[str, Any]:
        return {"_paths": self._paths, "_are_small": self._are_small}  # what is open stays with its process

    @property
    def folder(self) -> Path:
        """Where the files stand, for messages."""
        return self._paths[0].parent

    def read(self, files: Indices, first: Indices, lengths: Indices) -> Ints:
        """`lengths` [B] words each, from the word `first` [B] of the files with the numbers `files` [B]."""
        return self._gather(files, first, lengths) if self._are_small else self._read_each(files, first, lengths)

    def _gather(self, files: Indices, first: Indices, lengths: Indices) -> Ints:
        ends = lengths.cumsum()
        words = np.arange(lengths.sum()) + np.repeat(first - (ends - lengths), lengths)
        if len(self._mapped) == 1:
            return self._mapped[0][words]
        of_words, found = np.repeat(files, lengths), np.empty(len(words), np.int32)
        for file, mapped in enumerate(self._mapped):
            here = of_words == file
            found[here] = mapped[words[here]]
        return found

    def _read_each(self, files: Indices, first: Indices, lengths: Indices) -> Ints:
        handles = [self._handles[file] for file in files.tolist()]
        content = b"".join(map(os.pread, handles, (4 * lengths).tolist(), (4 * first).tolist()))
        if len(content) != 4 * lengths.sum():
            raise DataError(f"{self.folder}: its files end before their rows do; {REMAKE}")
        return np.frombuffer(content, "<i4")

    @cached_property
    def _mapped(self) -> list[Ints]:
        return [np.frombuffer(mapped, "<i4", len(mapped) // 4) for mapped in map(_map, self._paths)]

    @cached_property
    def _handles(self) -> list[int]:
        return [os.open(path, os.O_RDONLY) for path in self._paths]  # for as long as the process lives

    def parts(self) -> Iterator[Part]:
        """The record batches that have rows; only their heads are read."""
        for number, path in enumerate(self._paths):
            try:
                file = pa.py_buffer(_map(path))
                reader = pa.ipc.open_stream(file)
                columns = _readable(reader.schema)
                for batch in reader:
                    if batch.num_rows:
                        places = {name: _place(batch.column(at), file) for at, name in columns.items()}
                        yield Part(number, batch.num_rows, places)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise DataError(f"{path}: cannot be read ({error}); {REMAKE}") from None


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)  # else Linux reads megabytes around each page that is not in its cache yet
    return mapped


def _readable(schema: pa.Schema) -> dict[int, str]:
    """Number → name of the columns of int32 and of lists of int32."""
    inner = {
        at: field.type.value_type if pa.types.is_list(field.type) else field.type for at, field in enumerate(schema)
    }
    return {at: schema.field(at).name for at, of in inner.items() if of == pa.int32()}


def _place(column: pa.Array, file: pa.Buffer) -> Place:
    is_list = pa.types.is_list(column.type)
    numbers = column.values if is_list else column
    if column.null_count or numbers.null_count:
        raise ValueError("a value is missing")
    offsets = _word(column.buffers()[1], file) + column.offset if is_list else 0
    return Place(offsets, _word(numbers.buffers()[1], file) + numbers.offset, len(numbers))


def _word(buffer: pa.Buffer, file: pa.Buffer) -> int:
    """The word of `file` at which `buffer` begins."""
    if not buffer.size:
        return 0
    place = buffer.address - file.address
    if place % 4 or not 0 <= place <= file.size - buffer.size:
        raise ValueError("its buffers are compressed or not aligned")
    return place // 4
