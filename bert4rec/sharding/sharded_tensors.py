"""Tensors of which every process holds some parts: TorchRec's ShardedTensor, read and made."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from bert4rec.sharding.torchrec_internals import (
    Shard,
    ShardedTensor,
    ShardedTensorMetadata,
    ShardMetadata,
    TensorProperties,
    sharded_tensor,
)


def local_parts(value: Any) -> list[Tensor]:
    """Return the parts of a tensor that this process holds; all of it, where it is no ShardedTensor."""
    return [shard.tensor for shard in value.local_shards()] if isinstance(value, ShardedTensor) else [value]


def placed_parts(table: Any) -> Iterator[tuple[Tensor, int, int]]:
    """Yield the parts of a `table` that this process holds, each with its first row and column."""
    if not isinstance(table, ShardedTensor):
        yield table, 0, 0
        return
    for shard in table.local_shards():
        row, column = shard.metadata.shard_offsets
        yield shard.tensor, row, column


def local_bytes(values: Iterable[Any]) -> int:
    """Return bytes that this process holds of all the tensors."""
    return sum(part.numel() * part.element_size() for value in values for part in local_parts(value))


def copy_of(value: Any) -> Any:
    """Return a tensor with the same values, sharded in the same way, in memory of its own."""
    if not isinstance(value, ShardedTensor):
        return value.detach().clone()
    local = [Shard(shard.tensor.detach().clone(), shard.metadata) for shard in value.local_shards()]
    return sharded_like(value, local, value.metadata().shards_metadata)


def of_one_shard(values: Tensor) -> ShardedTensor:
    """Return a tensor of which this process holds all, in one shard, which is `values` itself."""
    shard = Shard(values, ShardMetadata([0] * values.dim(), list(values.shape), "rank:0/cpu"))
    metadata = ShardedTensorMetadata([shard.metadata], values.size(), TensorProperties(dtype=values.dtype))
    return sharded_tensor([shard], metadata)


def sharded_like(table: ShardedTensor, local: list[Shard], every: list[ShardMetadata]) -> ShardedTensor:
    """Return a tensor with other shards or values than `table`, possibly of its first dimensions only.

    `local` are those of this process, `every` says where those of all processes are.
    """
    size = table.size()[: len(every[0].shard_sizes)]
    metadata = ShardedTensorMetadata(every, size, table.metadata().tensor_properties)
    return sharded_tensor(local, metadata, like=table)
