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

from bert4rec.dataset.originals import one_array
from bert4rec.dataset.schema import FIRST_ITEM_ID, ITEMS
from bert4rec.runtime.errors import DataError

Ints = npt.NDArray[np.int64]

UNKNOWN = -1  # in the place of an index
LINES_AT_ONCE = 65_536
COLUMNS = ("item", "original", "title")  # of the items' table


class ItemIds:
    """The original ids of items 0 … V - 1, and their titles where they have some ("" for one that has none)."""

    def __init__(self, originals: pa.Array, titles: pa.Array | None = None) -> None:
        self.originals, self.titles = originals, titles

    @classmethod
    def read(cls, folder: Path) -> "ItemIds":
        """From a dataset folder. Raises `DataError`."""
        try:
            table = pq.read_table(folder / ITEMS)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{folder / ITEMS}: cannot be read: {error}") from None
        columns = {name: one_array(table[name]) for name in table.column_names if name in COLUMNS}
        order = pc.sort_indices(columns["item"])
        titles = columns["title"].fill_null("").take(order) if "title" in columns else None
        return cls(columns["original"].take(order), titles)

    @classmethod
    def read_lines(cls, path: Path, *, are_numbers: bool) -> "ItemIds":
        """From JSON lines, as `write_lines` makes them. Raises `DataError`."""
        schema = pa.schema([("id", pa.int64() if are_numbers else pa.string()), ("title", pa.string())])
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        try:
            table = pa.json.read_json(path, parse_options=options)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{path}: cannot be read: {error}") from None
        titles = table["title"]
        has_titles = titles.null_count < len(titles)
        return cls(one_array(table["id"]), one_array(titles).fill_null("") if has_titles else None)

    def write_lines(self, path: Path) -> None:
        """A line an item, in the order of their indices: {"id": …, "title": …}, the title where one is known."""
        with path.open("w", encoding="utf-8") as file:
            for first in range(0, len(self), LINES_AT_ONCE):
                indices = range(first, min(first + LINES_AT_ONCE, len(self)))
                for item, title in zip(self.of(indices), self.titles_of(indices), strict=True):
                    line = {"id": item, "title": title} if title else {"id": item}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")

    @property
    def are_numbers(self) -> bool:
        """Whether ids are whole numbers, else text."""
        return bool(pa.types.is_integer(self.originals.type))

    def __len__(self) -> int:
        return len(self.originals)

    def indices(self, originals: Iterable[Any]) -> Ints:
        """The index of each item; `UNKNOWN` where there is no such item. Numbers may be given as text."""
        found = (self._index.get(self._kind(value), UNKNOWN) for value in originals)
        return np.fromiter(found, np.int64)

    def of(self, indices: Sequence[int]) -> list[Any]:
        """The original ids at `indices`."""
        return list(self.originals.take(pa.array(indices, pa.int64())).to_pylist())

    def titles_of(self, indices: Sequence[int]) -> list[str]:
        """The titles at `indices`, "" where none is known."""
        return (
            list(self.titles.take(pa.array(indices, pa.int64())).to_pylist())
            if self.titles is not None
            else [""] * len(indices)
        )

    @cached_property
    def _index(self) -> dict[Any, int]:
        return {original: index for index, original in enumerate(self.originals.to_pylist())}

    def _kind(self, value: Any) -> Any:
        """`value` as the ids are: text, or a number."""
        if not self.are_numbers:
            return str(value)
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return number if isinstance(value, str) or number == value else None  # 1.7 is no item 1


def as_ids(indices: Ints) -> Ints:
    """The ids that a model knows items by."""
    return indices + FIRST_ITEM_ID
