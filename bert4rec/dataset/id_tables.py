"""Look up users or items by number or by id in sorted Parquet files, and read only the rows that are asked for."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from itertools import pairwise
from operator import methodcaller
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert4rec.dataset.columns import PREPARE_AGAIN, SmallPickle
from bert4rec.dataset.format import one_array, read_version
from bert4rec.dataset.ids import LARGEST_ID, WHOLE_NUMBER
from bert4rec.dataset.segments import Segments
from bert4rec.runtime.arrays import Int64s, Integers
from bert4rec.runtime.errors import DataError, in_one_line

UNKNOWN = -1  # number of an id that the table does not have
VALUE = methodcaller("as_py")  # of an element of Arrow
OPEN_FILES, KEPT_GROUPS = 16, 8  # of a table, the last ones that were used

Part = TypeVar("Part")
T = TypeVar("T")


class Outline(NamedTuple):
    """The columns of a file, and of each row group the first row and the first and last id, as the file notes them.

    `starts` [groups + 1] counts the rows of the whole table. `bounds` is None where nothing is noted: of very long
    ids, there are no statistics, nor of a row group whose ids are all forgotten.
    """

    schema: pa.Schema
    starts: Sequence[int]
    bounds: Sequence[tuple[Any, Any] | None]

    @property
    def are_numbers(self) -> bool:
        """Return whether the ids of the file are whole numbers; else they are text."""
        return bool(pa.types.is_integer(self.schema.field("original").type))


class IdTable(SmallPickle):
    """The users or items (`name`) of the dataset `folder` with this `metadata.json`: ids, numbers and other columns.

    The rows of a segment are sorted by `original`, and its files begin with its first row. Ids are whole numbers, or
    text if a segment has text ids: then the numbers of other segments are text too. The id of a forgotten user or item
    is null, and is never found. Opening reads nothing, and memory does not grow with the table.

    All methods raise `DataError` for files that are missing or damaged, and if the folder holds another dataset by now.
    """

    def __init__(self, folder: Path, metadata: Mapping[str, Any], name: str) -> None:
        self._folder, self._fingerprint = folder, metadata["fingerprint"]
        self.segments = Segments.of(metadata, name)
        self._files = sorted(file for file in metadata["files"] if file.startswith(f"{name}/"))
        self._starts = [int(re.sub(r"\D", "", Path(file).stem)) for file in self._files]

    def __len__(self) -> int:
        return len(self.segments)

    @cached_property
    def are_numbers(self) -> bool:
        """Return whether ids are whole numbers; else they are text."""
        return self._outline(len(self._files) - 1).are_numbers

    @property
    def are_numbers_by_segment(self) -> list[bool]:
        """Return for each segment whether its ids are stored as whole numbers."""
        return [self._outline(self._starts.index(first)).are_numbers for first in self.segments.starts[:-1]]

    @cached_property
    def schema(self) -> pa.Schema:
        """Return all columns with their types; text has 64-bit offsets, since 32-bit offsets end at 2 GiB."""
        return _wide(self._outline(len(self._files) - 1).schema)

    def rows(self, numbers: Integers, columns: Sequence[str]) -> pa.Table:
        """Return those of the `columns` that the table has, for `numbers` [n] in any order.

        Only the row groups with these numbers are read, one at a time.
        """
        places = self.segments.rows(numbers)
        order = np.argsort(places, kind="stable")
        places, parts, schema = places[order], [], self._select(columns)
        for file, group, first, some in self._groups_with(places):
            rows = self._cast(self._group(file, group, tuple(schema.names)), schema)
            parts.append(rows.take(to_arrow(places[some] - first)))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.concat_tables([schema.empty_table(), *parts]).take(to_arrow(back))

    def find(self, ids: Sequence[Any] | pa.Array | pa.ChunkedArray) -> Int64s:
        """Return the numbers [n] of `ids` [n], canonical ones or None; `UNKNOWN` for an id that the table lacks.

        Each row group that may have some of them by its first and last id is read once.
        """
        if isinstance(ids, pa.Array | pa.ChunkedArray):
            wanted = one_array(ids) if isinstance(ids, pa.ChunkedArray) else ids
        else:
            wanted = pa.array(ids, pa.int64() if self.are_numbers else pa.large_string())
        encoded = wanted.dictionary_encode()
        distinct = encoded.dictionary
        rows, missing = np.full(len(distinct) + 1, UNKNOWN, np.int64), np.arange(len(distinct))
        for first, stop in pairwise(self.segments.starts):
            if len(missing):
                rows[missing] = self._find_rows(distinct.take(to_arrow(missing)), first, stop)
                missing = missing[rows[missing] == UNKNOWN]
        found = rows[to_numpy(encoded.indices.fill_null(len(distinct)))]
        is_known = found != UNKNOWN
        found[is_known] = self.segments.numbers(found[is_known])
        return found

    def parts(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield those of the `columns` that the table has, in the order of the rows, a row group at a time."""
        schema = self._select(columns)
        for file in range(len(self._files)):
            for group in range(len(self._outline(file).bounds)):
                yield self._cast(self._read(file, group, tuple(schema.names)), schema)

    def in_order(self, columns: Sequence[str]) -> pa.Table:
        """Return those of the `columns` that the table has, for all numbers from 0 on: for a table that is small."""
        return pa.concat_tables([*self.parts(columns)]).take(self._row_by_number)

    @cached_property
    def _row_by_number(self) -> pa.Array:
        return to_arrow(self.segments.rows(np.arange(len(self))))

    def _select(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in columns if name in self.schema.names])

    def _cast(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return the table with the types of `schema`: an older segment may have numbers where newer ids are text."""
        return table if table.schema.equals(schema) else table.cast(schema)

    def _groups_with(self, rows: Int64s) -> Iterator[tuple[int, int, int, slice]]:
        """Yield each file and row group with some of the ascending `rows`: its first row, and the slice of `rows`."""
        cuts = np.searchsorted(rows, [*self._starts, len(self)]).tolist()
        for file, (start, end) in enumerate(pairwise(cuts)):
            if start < end:
                starts = self._outline(file).starts
                inner = (start + np.searchsorted(rows[start:end], starts)).tolist()
                for group, (low, high) in enumerate(pairwise(inner)):
                    if low < high:
                        yield file, group, starts[group], slice(low, high)

    def _find_rows(self, ids: pa.Array, first: int, stop: int) -> Int64s:
        """Return the rows [n] of different `ids` [n] in the segment from row `first` to `stop`, or `UNKNOWN`."""
        files = range(bisect_left(self._starts, first), bisect_left(self._starts, stop))
        ids = _as_numbers(ids) if self._outline(files[0]).are_numbers else ids.cast(pa.large_string())
        order = pc.sort_indices(ids)  # None, for a text that is no number, comes last
        ordered, rows = ids.take(order), np.full(len(ids), UNKNOWN, np.int64)
        for file, low, high in _split(ordered, 0, len(ids) - ids.null_count, files, self._first_bounds):
            groups = range(len(self._outline(file).bounds))
            for group, start, end in _split(ordered, low, high, groups, partial(self._bounds, file)):
                if (bounds := self._bounds(file, group)) is None:
                    continue
                least, most = bounds
                start = bisect_left(ordered, least, start, end, key=VALUE)
                end = bisect_right(ordered, most, start, end, key=VALUE)
                if start < end:
                    column = one_array(self._group(file, group, ("original",))["original"])
                    # A hash table of the wanted ids is several times faster than one of all ids of the row group.
                    places = pc.index_in(column, value_set=ordered.slice(start, end - start))
                    found = to_numpy(pc.indices_nonzero(places.is_valid()))
                    rows[start + to_numpy(places.drop_null())] = self._outline(file).starts[group] + found
        back = np.empty_like(rows)
        back[to_numpy(order)] = rows
        return back

    def _bounds(self, file: int, group: int) -> tuple[Any, Any] | None:
        """Return the first and the last id of a row group; None if all are forgotten."""
        if (bounds := self._outline(file).bounds[group]) is not None:
            return bounds
        column = self._group(file, group, ("original",))["original"].drop_null()
        return (column[0].as_py(), column[-1].as_py()) if len(column) else None

    def _first_bounds(self, file: int) -> tuple[Any, Any] | None:
        """Return those of the first row group of a file that has ids; None if all ids of the file are forgotten."""
        groups = range(len(self._outline(file).bounds))
        return next((bounds for group in groups if (bounds := self._bounds(file, group)) is not None), None)

    @cached_property
    def _outline(self) -> Callable[[int], Outline]:
        return cache(lambda file: self._use(file, partial(outline_of, first=self._starts[file])))

    @cached_property
    def _group(self) -> Callable[[int, int, tuple[str, ...]], pa.Table]:
        """Return a function like `_read` that keeps the last row groups."""
        return lru_cache(KEPT_GROUPS)(self._read)

    def _read(self, file: int, group: int, columns: tuple[str, ...]) -> pa.Table:
        table = self._use(file, lambda opened: opened.read_row_group(group, columns=[*columns]).select(columns))
        return self._cast(table, _wide(table.schema))

    @cached_property
    def _open(self) -> Callable[[int], pq.ParquetFile]:
        """Return a function that opens a file, and keeps the last ones open."""
        paths = [self._folder / file for file in self._files]

        @lru_cache(OPEN_FILES)
        def opened(file: int) -> pq.ParquetFile:
            return read_version(self._folder, self._fingerprint, partial(pq.ParquetFile, paths[file]))

        return opened

    @cached_property
    def _lock(self) -> Lock:
        return Lock()

    def _use(self, file: int, use: Callable[[pq.ParquetFile], T]) -> T:
        """Return what `use` returns of a file, which one thread may use at a time."""
        try:
            with self._lock:
                return use(self._open(file))
        except (OSError, pa.ArrowException) as error:
            path = self._folder / self._files[file]
            raise DataError(f"{path}: cannot be read ({in_one_line(error)}); {PREPARE_AGAIN}") from None


def to_arrow(numbers: Int64s) -> pa.Array:
    """Return the numbers as an Arrow array; `pa.array` would import pandas."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def to_numpy(numbers: pa.Array | pa.ChunkedArray) -> Int64s:
    """Return numbers without a missing one as a NumPy array; `to_numpy` of Arrow would import pandas."""
    array = one_array(numbers) if isinstance(numbers, pa.ChunkedArray) else numbers
    return np.from_dlpack(array).astype(np.int64)


def outline_of(file: pq.ParquetFile, first: int) -> Outline:
    """Return the outline of a file that begins with row `first`."""
    about = file.metadata
    leaf = [about.schema.column(i).path for i in range(len(about.schema))].index("original")
    groups = [about.row_group(group) for group in range(about.num_row_groups)]
    statistics = [group.column(leaf).statistics for group in groups]
    bounds = [(each.min, each.max) if each is not None and each.has_min_max else None for each in statistics]
    starts = [first, *(first + np.cumsum([group.num_rows for group in groups])).tolist()]
    return Outline(file.schema_arrow, starts, bounds)


def _wide(schema: pa.Schema) -> pa.Schema:
    """Return the schema with 64-bit offsets of text."""
    return pa.schema(
        [field.with_type(pa.large_string()) if pa.types.is_string(field.type) else field for field in schema]
    )


def _as_numbers(ids: pa.Array) -> pa.Array:
    """Return ids as whole numbers, None for those that are none."""
    if pa.types.is_integer(ids.type):
        return ids.cast(pa.int64())
    texts = ids.to_pylist()
    numbers = (int(text) if text is not None and WHOLE_NUMBER.fullmatch(text) else None for text in texts)
    kept = [number if number is not None and -LARGEST_ID - 1 <= number <= LARGEST_ID else None for number in numbers]
    return pa.array(kept, pa.int64())


def _split(
    ids: pa.Array, start: int, stop: int, parts: Sequence[Part], bounds: Callable[[Part], tuple[Any, Any] | None]
) -> Iterator[tuple[Part, int, int]]:
    """Yield the sorted `parts` that may have any of the sorted `ids` from `start` to `stop`, each with a range of them.

    The parts are halved again and again, so that `bounds`, their first and last ids, are only looked at along the way.
    A part without bounds has no ids.
    """
    if start == stop:
        return
    if len(parts) == 1:
        yield parts[0], start, stop
        return
    middle = len(parts) // 2
    if (ends := bounds(parts[middle])) is None:
        yield from _split(ids, start, stop, [*parts[:middle], *parts[middle + 1 :]], bounds)
        return
    cut = bisect_left(ids, ends[0], start, stop, key=VALUE)
    yield from _split(ids, start, cut, parts[:middle], bounds)
    yield from _split(ids, cut, stop, parts[middle:], bounds)
