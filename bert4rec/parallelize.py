"""Parallelism, applied to the model from outside: the item table sharded and the rest replicated, or all replicated.

`dmp`: TorchRec's DistributedModelParallel; the tables live in shards and are updated by fused optimizers in backward,
the dense part is wrapped in DistributedDataParallel. `ddp`: DistributedDataParallel over everything.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel, get_unwrapped_module
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.types import KernelConfig, PlannerError, Topology, TopologyFactory, TrainerConfig
from torchrec.distributed.types import ShardingPlan

from bert4rec.errors import SettingsError
from bert4rec.initialization import initialize
from bert4rec.launch import by_first
from bert4rec.model import SPARSE_MODULES, Bert4Rec
from bert4rec.row_shard import RowShard
from bert4rec.share import Share

SHARDING_TYPES = ("row_wise", "table_wise", "column_wise")
FUSED_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
}
EPSILON = 1e-8  # of every adaptive optimizer, fused or not: the libraries' own defaults differ


def parallelize(
    model: Bert4Rec,
    *,
    mode: str,
    device: torch.device,
    seed: int,
    sharding_type: str = "row_wise",
    sparse_optimizer: str = "rowwise_adagrad",
    sparse_learning_rate: float = 0.02,
    batch_size: int = 64,
    local_world_size: int = 1,
) -> nn.Module:
    """Allocate, initialise and wrap a `model` that was built on `meta`; needs a process group.

    The result is called as the model is. Under `dmp` no process ever holds more of a table than its shards; TorchRec's
    planner places them, for `batch_size` sequences a process and `local_world_size` processes a host. Raises
    `SettingsError`, on every process, where the tables do not fit.
    """
    model.share = Share(dist.get_rank(), dist.get_world_size())
    if mode == "ddp":
        model.to_empty(device=device)
        initialize(model, seed)
        return DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    planner = EmbeddingShardingPlanner(
        topology=_topology(device.type, dist.get_world_size(), local_world_size),
        constraints=_constraints(model, allowed_types(sharding_type, sparse_optimizer), batch_size),
        batch_size=batch_size,
    )
    dense = trains_shards(model.loss, "tied" if model.head is None else "linear", sharding_type)
    sharder = _sharder("sgd" if dense else sparse_optimizer, sparse_learning_rate)
    plan = by_first(lambda: _plan(model, sharder, planner))  # hosts with other memory must not plan otherwise
    sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=[sharder], init_data_parallel=False)
    if dense:
        model.shards = {name: _row_shard(model, name) for name in SPARSE_MODULES if getattr(model, name) is not None}
    initialize(unwrap(sharded), seed)
    sharded.init_data_parallel()
    return sharded


def _row_shard(model: Bert4Rec, name: str) -> RowShard:
    (value,) = getattr(model, name).state_dict().values()
    (shard,) = value.local_shards()
    rows_per_process = -(-value.shape[0] // model.share.n_processes)
    return RowShard(
        shard.tensor, first=shard.metadata.shard_offsets[0], rows_per_process=rows_per_process, share=model.share
    )


def trains_shards(loss: str, head: str, sharding_type: str) -> bool:
    """Whether `dmp` trains row-wise shards as ordinary parameters: where every item has a gradient at every step."""
    return loss == "softmax" and head == "tied" and sharding_type == "row_wise"


def unwrap(model: nn.Module) -> Any:
    """The model inside the wrappers: its tables stay sharded, its methods can be called."""
    return get_unwrapped_module(model)


def compile_blocks(model: nn.Module) -> None:
    """torch.compile what follows attention in each block, most of its work, for any number of positions."""
    for block in unwrap(model).encoder.blocks:
        block.merge = torch.compile(block.merge, dynamic=True)


def allowed_types(sharding_type: str, sparse_optimizer: str) -> list[str]:
    """What the planner may choose from: row-wise Adagrad is another algorithm when a row is cut."""
    if sharding_type != "auto":
        return [sharding_type]
    return [t for t in SHARDING_TYPES if not (t == "column_wise" and sparse_optimizer == "rowwise_adagrad")]


def describe_plan(model: nn.Module) -> str:
    """One line a shard of every table, and how the dense part is held."""
    lines = []
    for name, value in unwrap(model).state_dict().items():
        if isinstance(value, ShardedTensor):
            for shard in value.metadata().shards_metadata:
                rows, columns = (
                    f"{first}…{first + size - 1}"
                    for first, size in zip(shard.shard_offsets, shard.shard_sizes, strict=True)
                )
                lines.append(f"{name}: rows {rows}, columns {columns} on {shard.placement}")
    n_dense = sum(
        value.numel() for value in unwrap(model).state_dict().values() if not isinstance(value, ShardedTensor)
    )
    return "\n".join([*lines, f"dense part: {n_dense} weights on every rank"]) + "\n"


def held_bytes(model: nn.Module, optimizer_states: Any) -> dict[str, int]:
    """Bytes of weights and of optimizer state that this process holds."""
    return {
        "weights": sum(map(_bytes, unwrap(model).state_dict().values())),
        "optimizer_state": sum(map(_bytes, optimizer_states)),
    }


def _bytes(value: Any) -> int:
    if isinstance(value, ShardedTensor):
        return sum(_bytes(shard.tensor) for shard in value.local_shards())
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def _plan(model: nn.Module, sharder: EmbeddingCollectionSharder, planner: EmbeddingShardingPlanner) -> ShardingPlan:
    """TorchRec's plan; raises `SettingsError` where the tables do not fit."""
    try:
        return planner.plan(model, [sharder])
    except PlannerError as error:
        reason = str(error).splitlines()[0].strip(" .")
        raise SettingsError(
            f"TorchRec's planner finds no place for the item table: {reason}; use more processes, a smaller "
            "model.embed_dim or another parallelism.sharding_type"
        ) from None


def _sharder(optimizer: str, learning_rate: float) -> EmbeddingCollectionSharder:
    return EmbeddingCollectionSharder(
        fused_params={"optimizer": FUSED_OPTIMIZERS[optimizer], "learning_rate": learning_rate, "eps": EPSILON}
    )


def _topology(device_type: str, world_size: int, local_world_size: int) -> Topology:
    host_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // local_world_size
    device_memory = torch.cuda.get_device_properties(0).total_memory if device_type == "cuda" else None
    trainer = TrainerConfig(
        world_size=world_size,
        local_world_size=local_world_size,
        ddr_cap_bytes=host_memory,
        hbm_cap_bytes=device_memory,
    )
    return TopologyFactory.create_topology(trainer, kernel_config=KernelConfig(compute_device=device_type))


def _constraints(model: Bert4Rec, types: list[str], batch_size: int) -> dict[str, ParameterConstraints]:
    """For each table: the sharding types allowed, kernels that update in backward, narrow enough columns, the load."""
    ids_per_sequence = {"item": model.max_len, "candidate": model.n_rows / batch_size}
    return {
        table.name: ParameterConstraints(
            sharding_types=types,
            compute_kernels=["fused"],
            min_partition=-(-table.embedding_dim // (4 * dist.get_world_size())) * 4,
            pooling_factors=[ids_per_sequence[feature.removesuffix("_bias")] for feature in table.feature_names],
        )
        for table in model.tables
    }
