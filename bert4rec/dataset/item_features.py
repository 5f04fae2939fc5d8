"""The features of items in a dataset folder: memory-mapped bags of values and ready-made vectors."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from bert4rec.dataset.format import read_version
from bert4rec.runtime.arrays import Array, Float32s, Int64s
from bert4rec.runtime.errors import DataError

FEATURES_FOLDER = "item_features"
VALUES = "values.parquet"  # the names of the values of categories
MEANING = {"kind", "first", "n_values", "edges", "words", "width"}  # entries of a feature in `metadata.json`
NO_LETTER = re.compile(r"\W+")
ARRAYS = ("offsets", "values", "weights", "vectors")


class BagFeature(NamedTuple):
    """The name of a feature, the number of its values, 0 of them missing or unseen, and an item's mean number."""

    name: str
    n_values: int
    per_item: float = 1.0


class FeatureSizes(NamedTuple):
    """The sizes of all item features: their values, and the `width` of an item's ready-made vectors.

    A feature with at least `tables_from` values has a table of its own, which can be sharded; the vectors of all other
    values are replicated.
    """

    bags: tuple[BagFeature, ...]
    width: int = 0
    tables_from: int = 1_000_000

    @property
    def tables(self) -> dict[str, BagFeature]:
        """Return the features with a table of their own, by the name of the table."""
        names = [f"feature_{number}_{re.sub(NO_LETTER, '_', bag.name)}" for number, bag in enumerate(self.bags)]
        return {name: bag for name, bag in zip(names, self.bags, strict=True) if bag.n_values >= self.tables_from}

    @property
    def n_values(self) -> int:
        """Return the number of all values."""
        return sum(bag.n_values for bag in self.bags)

    @property
    def n_replicated(self) -> int:
        """Return the number of values whose vectors are replicated."""
        return self.n_values - sum(bag.n_values for bag in self.tables.values())


class FeatureRows(NamedTuple):
    """The features of n items.

    `values` and `weights` [N] are one item's after the other's, `lengths` [n] long: numbers of values, counted over all
    features, and one over the square root of the number of values that the item has of the same feature. `vectors`
    [n, width].
    """

    values: Int64s
    weights: Float32s
    lengths: Int64s
    vectors: Float32s


class Bags(NamedTuple):
    """The values of all items: those of item i from `offsets[i]` to `offsets[i + 1]`."""

    offsets: Int64s
    values: Int64s
    weights: Float32s

    @classmethod
    def of(cls, features: Sequence[tuple[Int64s, Int64s]], *, n_items: int) -> "Bags":
        """Return the bags of `features`, each given as pairs of an item [N] and a value [N].

        >>> pairs = (np.array([0, 0, 0, 0, 1]), np.array([1, 2, 5, 6, 0])), (np.array([0, 1]), np.array([7, 8]))
        >>> [array.tolist() for array in Bags.of(pairs, n_items=2)]
        [[0, 5, 7], [1, 2, 5, 6, 7, 0, 8], [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0]]
        """
        nothing = np.zeros(0, np.int64)
        items = np.concatenate([nothing, *(items for items, _ in features)])
        values = np.concatenate([nothing, *(values for _, values in features)])
        factors = [1 / np.sqrt(np.bincount(items, minlength=n_items)[items]) for items, _ in features if len(items)]
        weights = np.concatenate([nothing, *factors]).astype(np.float32)
        order = np.lexsort((values, items))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=n_items))])
        return cls(offsets, values[order], weights[order])


def write_bags(folder: Path, bags: Bags, vectors: Sequence[Float32s]) -> None:
    """Write the features of all items into the dataset `folder`; `vectors` are those of each feature of that kind."""
    n_items = len(bags.offsets) - 1
    side_by_side = np.concatenate([np.zeros((n_items, 0), np.float32), *vectors], axis=1)
    arrays: list[Array] = [bags.offsets, bags.values.astype(np.int32), bags.weights, side_by_side]
    for name, array in zip(ARRAYS, arrays, strict=True):
        np.save(folder / FEATURES_FOLDER / f"{name}.npy", array)


class ItemFeatures:
    """The features of the items of a dataset, `about` by name as in `metadata.json`; read when they are needed.

    Raises `DataError` if the dataset in the folder has another `fingerprint` by then.
    """

    def __init__(self, folder: Path, about: Mapping[str, Mapping[str, Any]], fingerprint: str) -> None:
        self.about, self._fingerprint = about, fingerprint
        self._folder = folder / FEATURES_FOLDER
        self._arrays: dict[str, Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_arrays": {}}  # another process maps the files itself

    @property
    def bags(self) -> tuple[BagFeature, ...]:
        """Return the features with values, in the order of their numbers."""
        bags = {name: feature for name, feature in self.about.items() if feature["kind"] != "vector"}
        return tuple(BagFeature(name, bag["n_values"], bag["values_per_item"]) for name, bag in bags.items())

    @property
    def vector_widths(self) -> dict[str, int]:
        """Return the features with ready-made vectors, in the order of their columns, and their widths."""
        return {name: feature["width"] for name, feature in self.about.items() if feature["kind"] == "vector"}

    @property
    def sizes(self) -> FeatureSizes:
        """Return the sizes of all features."""
        return FeatureSizes(self.bags, sum(self.vector_widths.values()))

    @cached_property
    def meaning(self) -> str:
        """Return a checksum of what the values mean, which is the same in a dataset that extends this one."""
        fitted = {name: {key: feature[key] for key in MEANING & feature.keys()} for name, feature in self.about.items()}
        path = self._folder / VALUES
        names = pq.read_table(path, columns=["number", "name"]).to_pydict() if path.exists() else {}
        return hashlib.sha256(json.dumps([fitted, names], sort_keys=True).encode()).hexdigest()[:12]

    def read(self, items: Int64s) -> FeatureRows:
        """Return the features of `items` [n]."""
        offsets = self._array("offsets")
        starts = offsets[items]
        lengths = offsets[items + 1] - starts
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
        values, weights = self._array("values")[places], self._array("weights")[places]
        return FeatureRows(values.astype(np.int64), weights, lengths, self._array("vectors")[items])

    def categories_of(self, items: Int64s) -> dict[str, list[str]]:
        """Return for each feature of the kind category the names of the values of `items` [n]; "" for none."""
        if not any(feature["kind"] == "category" for feature in self.about.values()):
            return {}
        table = pq.read_table(self._folder / VALUES)
        names = dict(zip(table["number"].to_pylist(), table["name"].to_pylist(), strict=True))
        rows, found = self.read(items), {}
        for name, feature in self.about.items():
            if feature["kind"] == "category":
                is_own = (rows.values >= feature["first"]) & (rows.values < feature["first"] + feature["n_values"])
                found[name] = [names.get(number, "") for number in rows.values[is_own].tolist()]
        return found

    def _array(self, name: str) -> Array:
        if name not in self._arrays:
            path = self._folder / f"{name}.npy"
            try:
                load = partial(np.load, path, mmap_mode="r")
                self._arrays[name] = read_version(self._folder.parent, self._fingerprint, load)
            except (OSError, ValueError) as error:
                raise DataError(f"{path}: cannot be read ({error}); make the dataset again") from None
        return self._arrays[name]
