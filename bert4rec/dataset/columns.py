"""Columns of a dataset folder that `datasets` has saved: its Arrow files mapped into memory, read as NumPy arrays.

The pages of mapped files are shared by all processes, and Linux takes them back when memory is short. Arrow maps them
here and not `datasets`, which does the same, but takes a second to import in every process.
"""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bert4rec.dataset.format import STATE
from bert4rec.runtime.errors import DataError

REMAKE = "make it again with `bert4rec prepare` and the same settings"

Array: TypeAlias = npt.NDArray[Any]
Ints: TypeAlias = npt.NDArray[np.int32]
Indices: TypeAlias = npt.NDArray[np.int64]


class Columns:
    """The columns of numbers, and of lists of numbers, in the Arrow files of `folder`; opened when first used.

    Pickled, it takes no row along. Raises `DataError` for files that are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder}

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._batches[0].schema.names)

    def numbers(self, name: str) -> Array:
        """Return a plain column as one array [N], a copy."""
        return np.concatenate([self._values(batch[name]) for batch in self._batches])

    def lengths(self, name: str) -> Indices:
        """Return the lengths [N] of all lists of a column."""
        return np.concatenate([np.diff(offsets) for offsets, _ in self._lists(name)]).astype(np.int64)

    def lengths_at(self, name: str, rows: Indices) -> Indices:
        """Return the lengths [B] of the lists at `rows` [B]."""
        chunks, places = self._find(rows)
        return self._offsets_at(name, chunks, places + 1) - self._offsets_at(name, chunks, places)

    def slices(self, name: str, rows: Indices, starts: Indices, stops: Indices) -> Array:
        """Return the elements `starts` to `stops` [B] of the lists at `rows` [B], one after another [total]."""
        lists, (chunks, places) = self._lists(name), self._find(rows)
        first = self._offsets_at(name, chunks, places)
        bounds = zip(chunks.tolist(), (first + starts).tolist(), (first + stops).tolist(), strict=True)
        return np.concatenate([lists[0][1][:0], *(lists[chunk][1][start:stop] for chunk, start, stop in bounds)])

    def elements(self, name: str, rows: Indices, places: Indices) -> Array:
        """Return the elements at `places` [B] of the lists at `rows` [B]."""
        lists, (chunks, in_chunk) = self._lists(name), self._find(rows)
        numbers, found = self._offsets_at(name, chunks, in_chunk) + places, np.empty(len(rows), lists[0][1].dtype)
        for chunk in np.unique(chunks).tolist():
            here = chunks == chunk
            found[here] = lists[chunk][1][numbers[here]]
        return found

    def _offsets_at(self, name: str, chunks: Indices, places: Indices) -> Indices:
        """Return the offsets [B] of a column of lists at `places` of the record batches `chunks`."""
        lists, found = self._lists(name), np.empty(len(chunks), np.int64)
        for chunk in np.unique(chunks).tolist():
            here = chunks == chunk
            found[here] = lists[chunk][0][places[here]]
        return found

    def _find(self, rows: Indices) -> tuple[Indices, Indices]:
        """Return the record batch of each of `rows` [B], and the place in it."""
        chunks = np.searchsorted(self._first_rows, rows, side="right") - 1
        return chunks, rows - self._first_rows[chunks]

    def _lists(self, name: str) -> list[tuple[Ints, Array]]:
        """Return the offsets and the values of a column of lists, by record batch."""
        if name not in self._known_lists:
            self._known_lists[name] = [self._list(name, batch[name]) for batch in self._batches]
        return self._known_lists[name]

    def _list(self, name: str, column: Any) -> tuple[Ints, Array]:
        if not pa.types.is_list(column.type) or column.null_count:
            raise DataError(f"{self._folder}: column {name} has the type {column.type}, or a list is missing; {REMAKE}")
        offsets: Ints = np.from_dlpack(column.offsets)  # type: ignore[assignment]
        values = self._values(column.values)
        if len(column) and (offsets[0] < 0 or offsets[-1] > len(values) or (np.diff(offsets) < 0).any()):
            raise DataError(f"{self._folder}: column {name} is damaged; {REMAKE}")
        return offsets, values

    def _values(self, column: Any) -> Array:
        if column.null_count:
            raise DataError(f"{self._folder}: a value is missing; {REMAKE}")
        return np.from_dlpack(column)  # to_numpy would import pandas

    @cached_property
    def _known_lists(self) -> dict[str, list[tuple[Ints, Array]]]:
        return {}

    @cached_property
    def _first_rows(self) -> Indices:
        return np.cumsum([0, *map(len, self._batches)], dtype=np.int64)

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        state = self._folder / STATE
        try:
            files = [self._folder / file["filename"] for file in json.loads(state.read_text())["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{state}: cannot be read ({error}); {REMAKE}") from None
        return [batch for path in files for batch in _mapped(path)]


def _mapped(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            empty = pa.RecordBatch.from_arrays(
                [pa.nulls(0, field.type) for field in stream.schema], schema=stream.schema
            )
            yield from [*stream] or [empty]
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMAKE}") from None
