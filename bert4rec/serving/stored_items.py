"""Look up the items of a dataset folder, and read only what is asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert4rec.dataset.format import ITEMS, NO_ITEM, n_forgotten, one_array
from bert4rec.dataset.id_tables import to_numpy
from bert4rec.dataset.ids import canonical_value
from bert4rec.dataset.reader import open_catalogue
from bert4rec.runtime.arrays import Bools, Int64s
from bert4rec.serving.histories import TRAIN_COUNT, ItemIds, is_plain, plain

MOST_KEPT = 1 << 20  # items whose ids are kept in memory: of a larger catalogue, those that were asked for last
BLOCK_ITEMS = 1 << 20  # items of a large catalogue that are read at once in their order
NOT_OTHERS = ("item", "original", "title", TRAIN_COUNT)


class StoredItemIds(ItemIds):
    """The items of a dataset `folder`, or of a run's links to one.

    Opening it reads nothing of the table. The ids and titles of a catalogue of at most `MOST_KEPT` items are read whole
    when they are needed first; those of a larger one are looked up in the files. Raises `DataError` if these cannot be
    read.
    """

    def __init__(
        self, folder: Path, *, recent_counts: Int64s | None = None, again: Callable[[], Bools] | None = None
    ) -> None:
        catalogue = open_catalogue(folder)
        self._table, self._is_small = catalogue.item_table, catalogue.n_items <= MOST_KEPT
        self.train_counts, self.recent_counts, self._again = catalogue.popularity, recent_counts, again
        self._n_forgotten, self._found = n_forgotten(catalogue.metadata, ITEMS), dict[Any, int]()

    @cached_property
    def originals(self) -> pa.Array:  # type: ignore[override]
        """Return the original ids of all items [V]."""
        return one_array(self._table.in_order(["original"])["original"])

    @cached_property
    def titles(self) -> pa.Array | None:  # type: ignore[override]
        """Return the titles of all items [V], "" for an item without one; None for no titles."""
        return one_array(self._table.in_order(["title"])["title"]).fill_null("") if self.have_titles else None

    @cached_property
    def others(self) -> Mapping[str, pa.Array]:
        """Return the further columns as JSON has them."""
        return _plain_columns(self._table.in_order(self._other_names))

    @property
    def have_titles(self) -> bool:
        """Return whether any item may have a title."""
        return "title" in self._table.schema.names

    @cached_property
    def are_numbers(self) -> bool:
        """Return whether ids are whole numbers; otherwise they are text."""
        return self._table.are_numbers

    @cached_property
    def forgotten(self) -> Bools | None:
        """Return which items [V] are forgotten, so that they are not recommended; None if none is."""
        if not self._n_forgotten:
            return None
        return np.asarray(one_array(self._table.in_order(["original"])["original"]).is_null())

    def __len__(self) -> int:
        return len(self._table)

    def slice(self, indices: range) -> pa.Table:
        """Return the `columns` of the items at consecutive `indices`."""
        if self._is_small:
            return super().slice(indices)
        blocks = range(indices.start // BLOCK_ITEMS, -(-indices.stop // BLOCK_ITEMS))
        rows = pa.concat_tables([self._block(block) for block in blocks] or [self._block(0).slice(0, 0)])
        return rows.slice(indices.start - blocks.start * BLOCK_ITEMS, len(indices))

    def indices(self, originals: Iterable[Any]) -> Int64s:
        """Return the index of each item, `NO_ITEM` for an unknown one. Numbers may be given as text, 7 as 7.0."""
        if self._is_small:
            return super().indices(originals)
        ids = [canonical_value(original, is_number=self.are_numbers) for original in originals]
        missing = [one for one in dict.fromkeys(ids) if one is not None and one not in self._found]
        if len(self._found) + len(missing) > MOST_KEPT:
            self._found, missing = {}, [one for one in dict.fromkeys(ids) if one is not None]
        if missing:
            self._found.update(zip(missing, self._table.find(missing).tolist(), strict=True))
        return np.fromiter((self._found.get(one, NO_ITEM) for one in ids), np.int64)

    def look_up(self, originals: Iterable[Any]) -> None:
        """Make it faster to ask for the `indices` of these items in small groups afterwards: each file is read once."""
        if not self._is_small:
            self.indices(originals)

    def parts(self) -> Iterator[tuple[Int64s, list[Any]]]:
        """Yield the indices and the original ids of all items in parts, in any order."""
        for part in self._table.parts(["item", "original"]):
            yield to_numpy(part["item"]), part["original"].to_pylist()

    def of(self, indices: Sequence[int]) -> list[Any]:
        """Return the original ids at `indices`."""
        return super().of(indices) if self._is_small else self._values("original", indices)

    def titles_of(self, indices: Sequence[int]) -> list[str]:
        """Return the titles at `indices`; "" for an unknown title."""
        if self._is_small or not self.have_titles:
            return super().titles_of(indices)
        return [title or "" for title in self._values("title", indices)]

    def _values(self, name: str, indices: Sequence[int]) -> list[Any]:
        return list(self._table.rows(np.array(indices, np.int64), [name])[name].to_pylist())

    @property
    def _other_names(self) -> list[str]:
        return [field.name for field in self._table.schema if field.name not in NOT_OTHERS and is_plain(field.type)]

    @cached_property
    def _block(self) -> Callable[[int], pa.Table]:
        """Return a function that reads the `columns` of the items of a block by its number, and keeps the last one."""

        @lru_cache(1)
        def read(block: int) -> pa.Table:
            numbers = np.arange(block * BLOCK_ITEMS, min((block + 1) * BLOCK_ITEMS, len(self)))
            rows = self._table.rows(numbers, ["original", "title", *self._other_names])
            titles = {"title": one_array(rows["title"]).fill_null("")} if self.have_titles else {}
            others = _plain_columns(rows.select(self._other_names))
            columns = {"item": one_array(rows["original"]), **titles, TRAIN_COUNT: self.train_counts[numbers]}
            return pa.table(columns | others)

        return read


def _plain_columns(table: pa.Table) -> dict[str, pa.Array]:
    return {name: plain(one_array(table[name])) for name in table.column_names}
