"""Item vectors: rows of the table by index, with the items' own ids."""

from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.export.vectors import write_vectors
from bert4rec.inference.item_ids import ItemIds

ITEMS = torch.tensor([[1.0, 2.0, 0.5], [3.0, 4.0, -0.5], [5.0, 6.0, 0.0]])  # vectors and a bias
TABLE, HEAD = "model.item_table.embeddings.item.weight", "model.head.weight"


class InMemory:
    """Stands where a checkpoint stands; blocks are of two rows."""

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = {f"model.{name}": value for name, value in tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def blocks(self, name: str) -> tuple[Tensor, ...]:
        return self._tensors[name].split(2)


# With biases, a row of the table has columns of zeros behind them; without, nothing. The first two rows are of special
# ids.
ROWS = torch.cat([torch.full((2, 6), 9.0), torch.cat([ITEMS, torch.zeros(3, 3)], 1)])
MODELS = {
    "tied": {"item_table.embeddings.item.weight": ROWS},
    "tied without bias": {"item_table.embeddings.item.weight": ROWS[:, :2]},
    "linear": {
        "item_table.embeddings.item.weight": torch.zeros(5, 2), "head.weight": ITEMS[:, :2], "head.bias": ITEMS[:, 2],
    },
    "linear without bias": {"item_table.embeddings.item.weight": torch.zeros(5, 2), "head.weight": ITEMS[:, :2]},
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_items_with_what_scores_them(tmp_path: Path, model: str) -> None:
    ids = ItemIds(pa.array(["b", "a", "c"]), pa.array(["B", "", "C"]))
    write_vectors(tmp_path, cast(StoredTensors, InMemory(**MODELS[model])), ids, embed_dim=2)
    width = 2 if "without" in model else 3
    vectors = np.load(tmp_path / "vectors.npy")
    np.testing.assert_array_equal(vectors, ITEMS[:, :width].numpy())
    assert vectors.dtype == np.float32
    biases = {} if "without" in model else {"bias": [0.5, -0.5, 0.0]}
    assert pq.read_table(tmp_path / "vectors.parquet").to_pydict() == {
        "item": ["b", "a", "c"], "title": ["B", "", "C"], "vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], **biases,
    }  # fmt: skip


def test_ids_that_are_numbers_and_have_no_titles(tmp_path: Path) -> None:
    stored = cast(StoredTensors, InMemory(**MODELS["tied without bias"]))
    write_vectors(tmp_path, stored, ItemIds(pa.array([7, 5, 6])), embed_dim=2)
    table = pq.read_table(tmp_path / "vectors.parquet")
    assert table.schema.names == ["item", "vector"]
    assert table["item"].to_pylist() == [7, 5, 6]
