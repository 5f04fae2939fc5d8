"""Weights on disk by torch.distributed.checkpoint: every process writes its own shards, any number reads them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed._shard.sharding_spec import ShardMetadata

from bert4rec.footprint import PIECE_BYTES
from bert4rec.parallelize import unwrap


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the weights of a parallelized model to `folder`, which all hosts share, in place of what was there.

    They are written beside it and renamed when whole; at every moment `folder` or `folder.old` is a whole one.
    """
    unfinished, old = folder.with_name(folder.name + ".tmp"), folder.with_name(folder.name + ".old")
    if dist.get_rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    dist.barrier()
    dcp.save(_in_pieces(unwrap(model).state_dict()), checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        if folder.exists():
            folder.rename(old)
        unfinished.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def load_weights(model: nn.Module, folder: Path) -> None:
    """Read the weights from `folder` into `model`, however either is sharded. A checkpoint is trusted input."""
    state = unwrap(model).state_dict()
    dcp.load(_in_pieces(state), checkpoint_id=folder)  # in place: the pieces are views of the state's tensors
    unwrap(model).load_state_dict(state)


def _in_pieces(state: dict[str, Any]) -> dict[str, Any]:
    """The same weights, every shard as several small ones: a shard is copied on its way to and from the disk."""
    return {name: _cut(value) if isinstance(value, ShardedTensor) else value for name, value in state.items()}


def _cut(value: ShardedTensor) -> ShardedTensor:
    pieces = [piece for shard in value.metadata().shards_metadata for piece in _pieces(shard, value.dtype)]
    local = []
    for shard in value.local_shards():
        first = shard.metadata.shard_offsets[0]
        for piece in _pieces(shard.metadata, value.dtype):
            start = piece.shard_offsets[0] - first
            local.append(Shard(shard.tensor[start : start + piece.shard_sizes[0]], piece))
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        local,
        ShardedTensorMetadata(pieces, value.size(), value.metadata().tensor_properties),
        process_group=value._process_group,
    )


def _pieces(shard: ShardMetadata, dtype: torch.dtype) -> Iterator[ShardMetadata]:
    """A shard's rows, `PIECE_BYTES` at a time."""
    (first, *rest), (n_rows, *width) = shard.shard_offsets, shard.shard_sizes
    step = max(1, PIECE_BYTES // (dtype.itemsize * max(1, sum(width))))
    for start in range(0, n_rows, step):
        yield ShardMetadata([first + start, *rest], [min(step, n_rows - start), *width], shard.placement)
