"""The features of the items of a lookup: values of bags, ready-made vectors, and which items have been trained on."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.item_features import ItemFeatures
from bert4rec.dataset.reader import Dataset
from bert4rec.feed.batch import AnyBatch, Batch, FeatureBags, Lookup


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
        self.sizes = features.sizes

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
