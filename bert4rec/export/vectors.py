"""Item vectors for an index of nearest neighbours, as Parquet and as a NumPy array, a block of items at a time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from bert4rec.checkpoint.stored_tensors import MODEL, StoredTensors
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.export.weights import bytes_of
from bert4rec.inference.item_ids import ItemIds
from bert4rec.models.names import HEAD, HEAD_BIAS, TABLE

PARQUET, NPY = "vectors.parquet", "vectors.npy"


def write_vectors(folder: Path, stored: StoredTensors, ids: ItemIds, embed_dim: int) -> None:
    """Write `vectors.npy`, float32 [V, d + 1 with biases], and `vectors.parquet`: id, title, vector, bias of each item.

    The item of row i is line i of the list of ids. A score is the product with a history's state, which has a 1 behind
    it where there are biases.
    """
    width = embed_dim + _has_bias(stored, embed_dim)
    with (folder / NPY).open("wb") as file, pq.ParquetWriter(folder / PARQUET, _schema(ids, width, embed_dim)) as table:
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), width)}
        np.lib.format.write_array_header_1_0(file, header)
        first = 0
        for block in _vectors(stored, embed_dim):
            file.write(bytes_of(block))
            indices = range(first, first + len(block))
            table.write_table(_table(block, ids, indices, table.schema, embed_dim))
            first += len(block)


def _vectors(stored: StoredTensors, embed_dim: int) -> Iterator[Tensor]:
    """Yield the vectors [n, d] that score items, with their biases as a last column, in the order of their indices."""
    if MODEL + HEAD in stored:
        weight = stored.read(MODEL + HEAD)  # a layer of a model that is on every process: it is not sharded
        yield (
            torch.cat([weight, stored.read(MODEL + HEAD_BIAS)[:, None]], 1) if _has_bias(stored, embed_dim) else weight
        )
        return
    n_special = FIRST_ITEM_ID
    for block in stored.blocks(MODEL + TABLE):
        vectors = block[n_special:, : embed_dim + _has_bias(stored, embed_dim)]
        n_special = max(0, n_special - len(block))
        if len(vectors):
            yield vectors


def _has_bias(stored: StoredTensors, embed_dim: int) -> bool:
    return MODEL + HEAD_BIAS in stored if MODEL + HEAD in stored else stored.shape(MODEL + TABLE)[1] > embed_dim


def _schema(ids: ItemIds, width: int, embed_dim: int) -> pa.Schema:
    fields = {"item": ids.originals.type, "title": pa.large_string(), "vector": pa.list_(pa.float32(), embed_dim)}
    if ids.titles is None:
        del fields["title"]
    if width > embed_dim:
        fields["bias"] = pa.float32()
    return pa.schema(list(fields.items()))


def _table(block: Tensor, ids: ItemIds, indices: range, schema: pa.Schema, embed_dim: int) -> pa.Table:
    vectors = pa.array(block[:, :embed_dim].flatten().numpy())
    columns = {
        "item": ids.originals[indices.start : indices.stop],
        "title": ids.titles_of(indices),
        "vector": pa.FixedSizeListArray.from_arrays(vectors, embed_dim),
        "bias": pa.array(block[:, -1].numpy()),
    }
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)
