"""The items of a model by their own ids: those of the interactions that it was trained on."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from bert4rec.dataset.format import ITEMS, one_array
from bert4rec.runtime.errors import DataError

Ints = npt.NDArray[np.int64]

UNKNOWN = -1  # in the place of an index
LINES_AT_ONCE = 65_536
TRAIN_COUNT = "train_count"
COLUMNS = ("item", "original", "title", TRAIN_COUNT)  # of the items' table


class ItemIds:
    """Hold the original ids of items 0 … V - 1, and their titles where they have some ("" for one that has none).

    `train_counts` [V]: the training positions of each item, by default 0.
    """

    def __init__(self, originals: pa.Array, titles: pa.Array | None = None, train_counts: Ints | None = None) -> None:
        self.originals, self.titles = originals, titles
        self.train_counts = np.zeros(len(originals), np.int64) if train_counts is None else train_counts

    @classmethod
    def read(cls, folder: Path) -> "ItemIds":
        """Read the items of a dataset folder. Raises `DataError`."""
        try:
            table = pq.read_table(folder / ITEMS)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{folder / ITEMS}: cannot be read: {error}") from None
        columns = {name: one_array(table[name]) for name in table.column_names if name in COLUMNS}
        order = pc.sort_indices(columns["item"])
        titles = columns["title"].fill_null("").take(order) if "title" in columns else None
        return cls(columns["original"].take(order), titles, _counts(columns[TRAIN_COUNT].take(order)))

    @classmethod
    def read_lines(cls, path: Path, *, are_numbers: bool) -> "ItemIds":
        """Read JSON lines that `write_lines` has written. Raises `DataError`."""
        own = pa.int64() if are_numbers else pa.string()
        schema = pa.schema([("id", own), ("title", pa.string()), (TRAIN_COUNT, pa.int64())])
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        try:
            table = pa.json.read_json(path, parse_options=options)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{path}: cannot be read: {error}") from None
        titles = table["title"]
        has_titles = titles.null_count < len(titles)
        filled = one_array(titles).fill_null("") if has_titles else None
        return cls(one_array(table["id"]), filled, _counts(one_array(table[TRAIN_COUNT])))

    def write_lines(self, path: Path) -> None:
        """Write one line for each item by index: {"id": …, "title": …, "train_count": …}, without an empty title."""
        with path.open("w", encoding="utf-8") as file:
            for first in range(0, len(self), LINES_AT_ONCE):
                indices = range(first, min(first + LINES_AT_ONCE, len(self)))
                for index, item, title in zip(indices, self.of(indices), self.titles_of(indices), strict=True):
                    line = {"id": item, **({"title": title} if title else {})}
                    line[TRAIN_COUNT] = int(self.train_counts[index])
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")

    @property
    def are_numbers(self) -> bool:
        """Return whether ids are whole numbers, else text."""
        return bool(pa.types.is_integer(self.originals.type))

    def __len__(self) -> int:
        return len(self.originals)

    def indices(self, originals: Iterable[Any]) -> Ints:
        """Return the index of each item, `UNKNOWN` for an unknown one. Numbers may be given as text."""
        found = (self._index.get(self._kind(value), UNKNOWN) for value in originals)
        return np.fromiter(found, np.int64)

    def of(self, indices: Sequence[int]) -> list[Any]:
        """Return the original ids at `indices`."""
        return list(self.originals.take(pa.array(indices, pa.int64())).to_pylist())

    def titles_of(self, indices: Sequence[int]) -> list[str]:
        """Return the titles at `indices`, "" where none is known."""
        return (
            list(self.titles.take(pa.array(indices, pa.int64())).to_pylist())
            if self.titles is not None
            else [""] * len(indices)
        )

    def most_popular(self, k: int, hidden: npt.NDArray[np.bool_] | None = None) -> Ints:
        """Return the indices of the `k` items with most training positions, without those that are `hidden` [V].

        The most popular comes first, of equal ones the lower index.
        """
        shown = np.arange(len(self)) if hidden is None else np.flatnonzero(~hidden)
        counts = self.train_counts[shown]
        if k < len(shown):
            is_high = counts >= np.partition(counts, -k)[-k]
            shown, counts = shown[is_high], counts[is_high]
        return shown[np.argsort(-counts, kind="stable")][:k]

    @cached_property
    def _index(self) -> dict[Any, int]:
        return {original: index for index, original in enumerate(self.originals.to_pylist())}

    def _kind(self, value: Any) -> Any:
        """Return `value` as text or as a number, as the ids are."""
        if not self.are_numbers:
            return str(value)
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return number if isinstance(value, str) or number == value else None  # 1.7 is no item 1


def _counts(column: pa.Array) -> Ints:
    # to_numpy would import pandas.
    return np.from_dlpack(column.fill_null(0).cast(pa.int64())).astype(np.int64, copy=False)
