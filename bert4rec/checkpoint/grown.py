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
from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.memory import host_memory
from bert4rec.sharding.torchrec_internals import of_one_shard

OF_ITEMS = ("item_table.", "head.")  # modules of a model with a row an item


def read_grown(checkpoint: Path, n_new: int) -> dict[str, Tensor]:
    """Read all tensors of a verified checkpoint by name; those that belong to items get `n_new` more rows of zeros.

    Every tensor is in memory once: it is read straight into its place. Needs a process group. Raises `DataError` if
    there is no room for them.
    """
    stored = StoredTensors(checkpoint)
    shapes = {name: _shape(name, stored.shape(name), n_new) for name in stored}
    n_bytes = sum(stored.dtype(name).itemsize * math.prod(shape) for name, shape in shapes.items())
    if n_bytes > (room := host_memory()):
        raise DataError(
            f"{checkpoint}: its tensors with {n_new:,} new rows take {n_bytes / 1e9:,.1f} GB, but this host has "
            f"{room / 1e9:,.1f} GB available; extend the run on a host with more memory"
        )
    tensors = {name: torch.zeros(shape, dtype=stored.dtype(name)) for name, shape in shapes.items()}
    load(checkpoint, {name: tensor[: stored.shape(name)[0]] for name, tensor in tensors.items()})
    return tensors


def write_grown(folder: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write a checkpoint of these tensors as a run of one process does. Needs a process group. Raises `SaveError`."""
    parts = {name: of_one_shard(value) if _belongs_to_items(name) else value for name, value in tensors.items()}
    save(folder, parts, metadata)


def rows_of_items(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor that belongs to items, [V, …], and its name."""
    for name, tensor in tensors.items():
        if _belongs_to_items(name):
            yield name, tensor


def _belongs_to_items(name: str) -> bool:
    return name.partition(".")[2].startswith(OF_ITEMS)


def _shape(name: str, shape: tuple[int, ...], n_new: int) -> tuple[int, ...]:
    return (shape[0] + n_new, *shape[1:]) if _belongs_to_items(name) else shape
