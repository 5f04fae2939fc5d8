"""Tensors in parts, read and made, in a process group of one process that holds all of them."""

import pytest
import torch
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed._shard.sharding_spec import ShardMetadata

from bert4rec.sharding.torchrec_internals import (
    copy_of,
    local_bytes,
    local_parts,
    one_shard_tensor,
    placed_parts,
    sharded_like,
)
from tests.sharding.sharded import sharded

VALUES = torch.arange(20.0).view(5, 4)


@pytest.fixture
def table(group_of_one: None) -> ShardedTensor:
    """`VALUES` as 2 whole rows and, under them, 3 rows cut into columns of 3 and 1."""
    return sharded(VALUES, [(slice(0, 2), slice(0, 4)), (slice(2, 5), slice(0, 3)), (slice(2, 5), slice(3, 4))])


def test_a_whole_tensor_is_its_only_part() -> None:
    ((part, row, column),) = placed_parts(VALUES)
    assert (local_parts(VALUES)[0] is part is VALUES, row, column) == (True, 0, 0)


def test_a_copy_has_memory_of_its_own(table: ShardedTensor) -> None:
    copies = copy_of(table), copy_of(VALUES)
    for one, other in zip(local_parts(table), local_parts(copies[0]), strict=True):
        assert torch.equal(one, other)
        other.zero_()
    copies[1].zero_()
    assert all(part.any() for part in [*local_parts(table), VALUES])
    assert copies[0].metadata() == table.metadata()


def test_parts_come_with_their_places_and_their_bytes(table: ShardedTensor) -> None:
    assert [tuple(part.shape) for part in local_parts(table)] == [(2, 4), (3, 3), (3, 1)]
    whole = torch.full((5, 4), torch.nan)
    for part, row, column in placed_parts(table):
        whole[row : row + part.shape[0], column : column + part.shape[1]] = part
    assert torch.equal(whole, VALUES)
    assert local_bytes([table, torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.uint8)]) == 80 + 24 + 2


def test_what_is_made_like_a_table_may_have_its_first_dimension_only(table: ShardedTensor) -> None:
    """As the state of row-wise Adagrad: a number for each row."""
    rows = [ShardMetadata([0], [2], "rank:0/cpu"), ShardMetadata([2], [3], "rank:0/cpu")]
    local = [Shard(torch.tensor([7.0, 8.0]), rows[0]), Shard(torch.tensor([1.0, 2.0, 3.0]), rows[1])]
    tensor = sharded_like(table, local, rows)
    assert tensor.size() == torch.Size([5])
    assert [part.tolist() for part in local_parts(tensor)] == [[7.0, 8.0], [1.0, 2.0, 3.0]]
    assert [shard.shard_offsets for shard in tensor.metadata().shards_metadata] == [[0], [2]]


@pytest.mark.parametrize("values", [torch.arange(6.0).view(3, 2), torch.arange(3.0)])
def test_one_shard_is_the_tensor_itself(group_of_one: None, values: torch.Tensor) -> None:
    tensor = one_shard_tensor(values)
    (part,) = local_parts(tensor)
    assert part is values
    assert (tensor.size(), tensor.dtype) == (values.size(), values.dtype)
