"""Tensors of a checkpoint, read without a process group."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
from torch.distributed._shard.sharding_spec import ShardMetadata

from bert4rec.checkpoint import store
from bert4rec.checkpoint.store import save
from bert4rec.checkpoint.stored_tensors import StoredTensors

TABLE = torch.arange(44.0).view(11, 4)

# How a table [11, 4] may be cut: rows and columns of each shard.
CUTS = {
    "row-wise": [(slice(0, 5), slice(0, 4)), (slice(5, 11), slice(0, 4))],
    "column-wise": [(slice(0, 11), slice(0, 1)), (slice(0, 11), slice(1, 4))],
}


def sharded(cut: str, dtype: torch.dtype) -> ShardedTensor:
    shards = []
    for rows, columns in CUTS[cut]:
        part = TABLE[rows, columns].contiguous().to(dtype)
        place = ShardMetadata([rows.start, columns.start], list(part.shape), "rank:0/cpu")
        shards.append(Shard(part, place))
    metadata = ShardedTensorMetadata([shard.metadata for shard in shards], TABLE.size(), TensorProperties(dtype=dtype))
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the libraries about themselves
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("cut", CUTS)
def test_rows_come_in_their_order_however_they_were_cut(
    group_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str, dtype: torch.dtype
) -> None:
    """Half precision is read as float32."""
    monkeypatch.setattr(store, "PIECE_BYTES", 12 * dtype.itemsize)  # three whole rows
    weight = torch.tensor([0.5, -0.0])
    save(tmp_path / "one", {"table": sharded(cut, dtype), "weight": weight, "scale": torch.tensor(7)}, {})
    dist.destroy_process_group()
    stored = StoredTensors(tmp_path / "one")
    assert {*stored} == {"table", "weight", "scale"}
    assert (stored.shape("table"), stored.dtype("table")) == ((11, 4), torch.float32)
    blocks = list(stored.blocks("table"))
    assert len(blocks) >= 3
    assert torch.equal(torch.cat(blocks), TABLE)
    assert torch.equal(stored.read("table"), TABLE)
    assert torch.equal(stored.read("weight"), weight)
