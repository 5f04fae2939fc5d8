"""A checkpoint for more items: read into tensors that have room for the new ones, and written by a single process.

Whatever belongs to items stands in the order of their ids, so that new rows come behind the others and no row moves.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert4rec.checkpoint.store import load, save
from bert4rec.checkpoint.stored_tensors import MODEL, StoredTensors
from bert4rec.dataset.schema import FIRST_ITEM_ID, MASK_ID
from bert4rec.models.names import MASK, TABLE
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.memory import host_memory
from bert4rec.sharding.sharded_tensors import of_one_shard

SLOTS = "optimizer.encoder.norm.bias."  # state of the optimizer of the dense part, for instance
ROWS_BEFORE = {"item_table.": FIRST_ITEM_ID, "head.": 0}  # module of a model → its rows before those of the items


def read_grown(checkpoint: Path, n_new: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint that was verified, by name; what belongs to items has `n_new` more rows, of zeros.

    Every tensor is in memory once: it is read straight into its place. Wants a process group. Raises `DataError` where
    there is no room for them.
    """
    stored = StoredTensors(checkpoint)
    shapes = {name: _shape(name, stored.shape(name), n_new) for name in stored}
    n_bytes = sum(stored.dtype(name).itemsize * math.prod(shape) for name, shape in shapes.items())
    if n_bytes > (room := host_memory()):
        raise DataError(
            f"{checkpoint}: its tensors with {n_new:,} new rows take {n_bytes / 1e9:,.1f} GB, of which this host has "
            f"{room / 1e9:,.1f} GB available; extend the run on a host with more memory"
        )
    tensors = {name: torch.zeros(shape, dtype=stored.dtype(name)) for name, shape in shapes.items()}
    load(checkpoint, {name: tensor[: stored.shape(name)[0]] for name, tensor in tensors.items()})
    return tensors


def add_mask_vector(tensors: dict[str, Tensor], embed_dim: int) -> None:
    """Give a Bert4Rec of an earlier version of this program its mask token's vector, which was a row of the table.

    The optimizer's state of it starts from zeros: that of a row is of another optimizer.
    """
    if MODEL + MASK in tensors:
        return
    tensors[MODEL + MASK] = tensors[MODEL + TABLE][MASK_ID, :embed_dim].clone()
    for slot in [name.removeprefix(SLOTS) for name in tensors if name.startswith(SLOTS)]:
        tensors[f"optimizer.{MASK}.{slot}"] = torch.zeros(embed_dim)


def write_grown(folder: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """A checkpoint of these tensors, as a run of one process writes it. Wants a process group. Raises `SaveError`."""
    parts = {name: of_one_shard(value) if _rows_before(name) is not None else value for name, value in tensors.items()}
    save(folder, parts, metadata)


def rows_of_items(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Of each tensor that belongs to items its name and the rows of all items [V, …], views of it."""
    for name, tensor in tensors.items():
        if (before := _rows_before(name)) is not None:
            yield name, tensor[before:]


def _rows_before(name: str) -> int | None:
    """Rows of a tensor before those of the items; None where it does not belong to items."""
    module = name.partition(".")[2]
    return next((rows for start, rows in ROWS_BEFORE.items() if module.startswith(start)), None)


def _shape(name: str, shape: tuple[int, ...], n_new: int) -> tuple[int, ...]:
    return shape if _rows_before(name) is None else (shape[0] + n_new, *shape[1:])
