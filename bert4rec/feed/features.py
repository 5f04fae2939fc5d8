"""The features of the items of a lookup: values of bags, ready-made vectors, and which items have been trained on."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.reader import Dataset
from bert4rec.feed.batch import AnyBatch, Batch, FeatureBags, Lookup


class FeatureRows(Protocol):
    """The feature values of n items: `values` and `weights` [N], `lengths` [n], `vectors` [n, W]."""

    values: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    vectors: npt.NDArray[np.float32]


class Bag(Protocol):
    """A feature whose items have values, numbered from 0 to `n_values` - 1; 0 = missing."""

    @property
    def name(self) -> str:
        """Return the name of the feature."""
        ...

    @property
    def n_values(self) -> int:
        """Return the number of values."""
        ...


class ItemFeatures(Protocol):
    """The features of a catalogue: `n_values` values of all bags together, and vectors of `width` numbers.

    The values of `bags` are numbered one after the other, and so are the columns of the vectors, by `vector_widths`.
    """

    n_values: int
    width: int
    vector_widths: dict[str, int]

    @property
    def bags(self) -> Sequence[Bag]:
        """Return the features with values."""
        ...

    def read(self, items: npt.NDArray[np.int64]) -> FeatureRows:
        """Return the features of `items` [n]."""
        ...


class FeaturePlace(NamedTuple):
    """Hold the `values` of a feature among all values, and its `columns` of the ready-made vectors; one is empty."""

    values: slice
    columns: slice


class FeatureReader:
    """Read the features of items for a model, from memory-mapped `features`.

    `is_warm` [n_items]: whether an item has training positions; a cold item has no id vector.
    """

    def __init__(self, features: ItemFeatures, is_warm: npt.NDArray[np.bool_]) -> None:
        self._features, self._is_warm = features, is_warm
        self.n_values, self.width = features.n_values, features.width

    def places(self) -> dict[str, FeaturePlace]:
        """Return the name of each feature, and its place."""
        places, first = {}, 0
        for bag in self._features.bags:
            places[bag.name] = FeaturePlace(slice(first, first + bag.n_values), slice(0, 0))
            first += bag.n_values
        first = 0
        for name, width in self._features.vector_widths.items():
            places[name] = FeaturePlace(slice(0, 0), slice(first, first + width))
            first += width
        return places

    def read(self, ids: Tensor) -> FeatureBags:
        """Return the features of the items `ids` [n] int64, on the device of `ids`."""
        items = ids.cpu().numpy()
        rows = self._features.read(items)
        ends = np.cumsum(rows.lengths)
        is_warm = self._is_warm[items].astype(np.float32)
        arrays = (rows.values, ends - rows.lengths, rows.weights, rows.vectors.reshape(-1), is_warm)
        return FeatureBags(*map(torch.from_numpy, arrays)).to(ids.device)

    def read_batch(self, batch: AnyBatch) -> AnyBatch:
        """Return the `batch` with the features of its input items and of its candidates."""
        if isinstance(batch, Batch):
            batch = batch._replace(items=self._with_features(batch.items))
        if batch.candidates is None:
            return batch
        items = self._with_features(batch.candidates.items)
        return batch._replace(candidates=batch.candidates._replace(items=items))

    def _with_features(self, lookup: Lookup) -> Lookup:
        return lookup._replace(features=self.read(lookup.ids))


def feature_reader_of(dataset: Dataset) -> FeatureReader | None:
    """Return the reader of the item features of `dataset`, if it has any."""
    return None if dataset.features is None else FeatureReader(dataset.features, dataset.popularity > 0)
