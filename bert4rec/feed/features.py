"""The features of the items of a lookup: values of bags, ready-made vectors, and which items have been trained on."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.format import TRAIN_COUNTS
from bert4rec.dataset.item_features import FeatureRows, ItemFeatures
from bert4rec.dataset.reader import Catalogue
from bert4rec.feed.batch import AnyBatch, Batch, FeatureBags, Lookup, TableBags, unique_with_inverse
from bert4rec.runtime.arrays import Bools, Int64s


class WarmItems:
    """Tell which items have training positions, by a `file` with their counts.

    The file is mapped: all processes of a host share its memory, and a pickle holds its name alone.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._counts = file, np.load(file, mmap_mode="r")

    def __reduce__(self) -> tuple[Any, ...]:
        return WarmItems, (self._file,)

    def __getitem__(self, items: Int64s) -> Bools:
        """Return which of the `items` [n] have training positions."""
        return np.asarray(self._counts[items] > 0)


class FeatureReader:
    """Read the features of items for a model, from memory-mapped `features`.

    `is_warm` [n_items]: whether an item has training positions; a cold item has no id vector. A feature with at least
    `tables_from` values has a table of its own.
    """

    def __init__(self, features: ItemFeatures, is_warm: Bools | WarmItems, tables_from: int) -> None:
        self._features, self._is_warm = features, is_warm
        self.sizes = features.sizes._replace(tables_from=tables_from)
        bags = zip(self.sizes.bags, accumulate(bag.n_values for bag in self.sizes.bags), strict=True)
        self._values = {bag.name: range(end - bag.n_values, end) for bag, end in bags}
        self._table_values = [self._values[bag.name] for bag in self.sizes.tables.values()]
        self._left_out = ""

    @property
    def names(self) -> list[str]:
        """Return the names of the features."""
        return [*self._values, *self._features.vector_widths]

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Leave out the feature `name` in this context: its values have the weight 0, its vectors are 0."""
        self._left_out = name
        try:
            yield
        finally:
            self._left_out = ""

    def read(self, ids: Tensor) -> FeatureBags:
        """Return the features of the items `ids` [n] int64, on the device of `ids`."""
        items = ids.cpu().numpy()
        rows = self._features.read(items)
        if self._left_out:
            self._leave_out(rows)
        tables = tuple(_bags_of_table(rows, own) for own in self._table_values)
        for own in reversed(self._table_values):
            rows = _without_values(rows, own)
        is_warm = self._is_warm[items].astype(np.float32)
        arrays = (rows.values, _offsets(rows.lengths), rows.weights, rows.vectors.reshape(-1), is_warm)
        values, offsets, weights, vectors, warm = map(torch.from_numpy, arrays)
        return FeatureBags(values, offsets, weights, vectors, warm, tables).to(ids.device)

    def read_batch(self, batch: AnyBatch) -> AnyBatch:
        """Return the `batch` with the features of its input items and of its candidates."""
        if isinstance(batch, Batch):
            batch = batch._replace(items=self.with_features(batch.items))
        if batch.candidates is None:
            return batch
        items = self.with_features(batch.candidates.items)
        return batch._replace(candidates=batch.candidates._replace(items=items))

    def with_features(self, lookup: Lookup) -> Lookup:
        """Return the `lookup` with the features of its items."""
        return lookup if lookup.features else lookup._replace(features=self.read(lookup.ids))

    def _leave_out(self, rows: FeatureRows) -> None:
        values = self._values.get(self._left_out, range(0))
        rows.weights[_is_in(rows.values, values)] = 0
        first = 0
        for name, width in self._features.vector_widths.items():
            if name == self._left_out:
                rows.vectors[:, first : first + width] = 0
            first += width


def _is_in(numbers: Int64s, values: range) -> Bools:
    return (numbers >= values.start) & (numbers < values.stop)


def _offsets(lengths: Int64s) -> Int64s:
    return np.cumsum(lengths) - lengths


def _lengths(rows: FeatureRows, is_counted: Bools) -> Int64s:
    """Return the number of values [n] of each item that are counted."""
    items = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
    return np.bincount(items[is_counted], minlength=len(rows.lengths))


def _bags_of_table(rows: FeatureRows, values: range) -> TableBags:
    """Return the `values` of the items as rows of their table."""
    is_own = _is_in(rows.values, values)
    distinct, places = unique_with_inverse(torch.from_numpy(rows.values[is_own] - values.start))
    offsets = torch.from_numpy(_offsets(_lengths(rows, is_own)))
    return TableBags(distinct, places, offsets, torch.from_numpy(rows.weights[is_own]))


def _without_values(rows: FeatureRows, values: range) -> FeatureRows:
    """Return the rows without `values`; the values after these are counted on from the one before them."""
    is_kept = ~_is_in(rows.values, values)
    numbers = rows.values[is_kept]
    numbers = np.where(numbers >= values.stop, numbers - len(values), numbers)
    return FeatureRows(numbers, rows.weights[is_kept], _lengths(rows, is_kept), rows.vectors)


def feature_reader_of(items: Catalogue, tables_from: int) -> FeatureReader | None:
    """Return the reader of the features of `items`, if they have any; `tables_from` as in `FeatureSizes`."""
    if items.features is None:
        return None
    return FeatureReader(items.features, WarmItems(items.folder / TRAIN_COUNTS), tables_from)
