"""Tensors in parts, read and made, in a process group of one process that holds all of them."""

import pytest
import torch
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed._shard.sharding_spec import ShardMetadata

from bert4rec.sharding.torchrec_internals import copy_of, local_bytes, local_parts, placed_parts, sharded_like
from tests.sharding.sharded import sharded

VALUES = torch.arange(20.0).view(5, 4)


@pytest.fixture
def table(group_of_one: None) -> ShardedTensor:
    """`VALUES` as 2 whole rows and, under them, 3 rows cut into columns of 3 and 1."""
    return sharded(VALUES, [(slice(0, 2), slice(0, 4)), (slice(2, 5), slice(0, 3)), (slice(2, 5), slice(3, 4))])


def test_a_copy_has_memory_of_its_own_at_the_same_places(table: ShardedTensor) -> None:
    for original in (table, VALUES):
        copy, whole = copy_of(original), torch.full((5, 4), torch.nan)
        for part, row, column in placed_parts(copy):
            whole[row : row + part.shape[0], column : column + part.shape[1]] = part
            part.zero_()
        assert torch.equal(whole, VALUES)
        assert all(part.any() for part in local_parts(original))
    assert copy_of(table).metadata() == table.metadata()
    assert local_bytes([table, torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.uint8)]) == 80 + 24 + 2


def test_a_number_for_each_row_is_sharded_like_a_table(table: ShardedTensor) -> None:
    rows = [ShardMetadata([0], [2], "rank:0/cpu"), ShardMetadata([2], [3], "rank:0/cpu")]
    local = [Shard(torch.tensor([7.0, 8.0]), rows[0]), Shard(torch.tensor([1.0, 2.0, 3.0]), rows[1])]
    tensor = sharded_like(table, local, rows)
    assert tensor.size() == torch.Size([5])
    assert [part.tolist() for part in local_parts(tensor)] == [[7.0, 8.0], [1.0, 2.0, 3.0]]
    assert [shard.shard_offsets for shard in tensor.metadata().shards_metadata] == [[0], [2]]
