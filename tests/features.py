"""Item features in memory, as those of a dataset folder are read."""

import numpy as np
import numpy.typing as npt

from bert4rec.dataset.item_features import BagFeature, FeatureRows, FeatureSizes


class InMemory:
    """Features of items: bags of joint values, and vectors."""

    def __init__(self, values: list[list[int]], bags: dict[str, int], vectors: npt.NDArray[np.float32]) -> None:
        self._values, self._vectors = values, vectors
        self.bags = tuple(BagFeature(*bag) for bag in bags.items())
        width = vectors.shape[1]
        self.sizes = FeatureSizes(self.bags, width)
        self.vector_widths = {"picture": width} if width else {}

    def read(self, items: npt.NDArray[np.int64]) -> FeatureRows:
        values = [self._values[item] for item in items]
        first = self.bags[0].n_values if self.bags else 0
        weights = [sum((value < first) == (other < first) for other in row) ** -0.5 for row in values for value in row]
        return FeatureRows(
            values=np.array([value for row in values for value in row], np.int64),
            lengths=np.array([len(row) for row in values], np.int64),
            weights=np.array(weights, np.float32),
            vectors=self._vectors[items],
        )

    def categories_of(self, items: npt.NDArray[np.int64]) -> dict[str, list[str]]:
        return {"genre": [str(self._values[item][0]) for item in items]}


def some_features(n_items: int) -> InMemory:
    """A genre (values 0 to 4; 0 is missing), tags (5 to 14) and a picture of three numbers, drawn once and for all."""
    draw = np.random.default_rng(3)
    values = [
        [int(draw.integers(5)), *sorted(draw.choice(np.arange(5, 15), draw.integers(1, 4), replace=False).tolist())]
        for _ in range(n_items)
    ]
    return InMemory(values, {"genre": 5, "tags": 10}, draw.normal(size=(n_items, 3)).astype(np.float32))
