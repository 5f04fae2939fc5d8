"""Tables in shards, all of them on this process."""

import torch
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
from torch.distributed._shard.sharding_spec import ShardMetadata


def sharded(values: torch.Tensor, places: list[tuple[slice, slice]] | None = None) -> ShardedTensor:
    """Return a table cut into shards of these rows and columns; without places into one, which is `values` itself."""
    shards = []
    for rows, columns in places or [(slice(0, len(values)), slice(0, values.shape[1]))]:
        part = values[rows, columns].contiguous()
        shards.append(Shard(part, ShardMetadata([rows.start, columns.start], list(part.shape), "rank:0/cpu")))
    properties = TensorProperties(dtype=values.dtype)
    metadata = ShardedTensorMetadata([shard.metadata for shard in shards], values.size(), properties)
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata)
