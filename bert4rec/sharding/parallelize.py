"""Parallelism, applied to the model from outside: its tables sharded and the rest replicated, or all replicated.

`dmp`: TorchRec's DistributedModelParallel; the tables live in shards and are updated by fused optimizers in backward,
the dense part is wrapped in DistributedDataParallel. `ddp`: DistributedDataParallel over everything.
"""

import math
import zlib
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.model_parallel import (
    DefaultDataParallelWrapper,
    DistributedModelParallel,
    get_unwrapped_module,
)
from torchrec.distributed.types import ShardingPlan

from bert4rec.models.names import MASK
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import DenseShard, IdExchange, Table, is_of_table, saved_name, set_precision
from bert4rec.sharding.footprint import Job
from bert4rec.sharding.groups import Groups, make_groups, share_gradients
from bert4rec.sharding.plan import Plan, sharder
from bert4rec.sharding.torchrec_internals import (
    give_a_row_to_empty_kernel,
    kernels,
    local_bytes,
    local_parts,
    move_plan,
    place_on_first_gpus,
    placed_parts,
)

ROWS_PER_BLOCK = 4096
EMBEDDING_SCALE = 0.02  # standard deviation of item and position vectors, as in BERT (Devlin et al. 2019)
POSITIONS, TIMES = "encoder.positions.weight", ("encoder.gaps.weight", "encoder.dates.weight")


@torch.no_grad()
def initialize(model: RankingModel, seed: int) -> None:
    """Fill every weight of an allocated, perhaps sharded `model` as a pure function of `seed`."""
    for name, value in model.state_dict().items():
        if is_of_table(name):
            table = model.get_submodule(name.partition(".")[0])
            assert isinstance(table, Table)
            for part, row, column in placed_parts(value):
                _fill_rows(part, saved_name(name), row, column, table.n_initialized, seed)
        else:
            value.copy_(_dense_weight(saved_name(name), value, seed))


def initial_rows(name: str, first: int, n_rows: int, width: int, seed: int) -> Tensor:
    """Return the vectors of rows `first` … `first + n_rows` of table `name` at the start, [n_rows, width]."""
    blocks = range(first // ROWS_PER_BLOCK, (first + n_rows - 1) // ROWS_PER_BLOCK + 1)
    values = torch.cat([_normal((ROWS_PER_BLOCK, width), seed, name, block) for block in blocks])
    offset = first - blocks.start * ROWS_PER_BLOCK
    return values[offset : offset + n_rows] * EMBEDDING_SCALE


def _fill_rows(part: Tensor, name: str, row: int, column: int, width: int, seed: int) -> None:
    """Fill a shard that begins at (`row`, `column`), a block at a time: vectors `width` wide, zeros behind them."""
    for start in range(0, len(part), ROWS_PER_BLOCK):
        piece = part[start : start + ROWS_PER_BLOCK]
        vectors = initial_rows(name, row + start, len(piece), width, seed)[:, column : column + part.shape[1]]
        piece[:, : vectors.shape[1]] = vectors
        piece[:, vectors.shape[1] :] = 0


def _dense_weight(name: str, value: Tensor, seed: int) -> Tensor:
    if "norm.weight" in name:
        return torch.ones_like(value, device="cpu")
    if name.endswith("bias") or name in TIMES:
        return torch.zeros_like(value, device="cpu")
    scale = EMBEDDING_SCALE if name in (MASK, POSITIONS) else math.sqrt(2 / sum(value.shape))
    return _normal(value.shape, seed, name, 0) * scale


def _normal(shape: tuple[int, ...] | torch.Size, seed: int, name: str, block: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}/{block}".encode()) | seed << 32)
    return torch.randn(shape, generator=generator)


def parallelize(
    model: RankingModel, plan: Plan, *, device: torch.device, seed: int, sparse_learning_rate: float, repeatable: bool,
    timeout: timedelta,
) -> nn.Module:  # fmt: skip
    """Allocate, initialise and wrap a `model` that was built on `meta`, by `plan`; needs a process group.

    The result is called as the model is. Where the plan is not one of a training, the weights are yet to be loaded, and
    there are no buckets of gradients. Under `dmp` no process ever holds more of a table than its shards. With
    `repeatable`, gradients are summed in the same order at every step, also the first one after a restart. A message
    between the groups of the plan may take as long as `timeout`.
    """
    set_precision(model.tables, plan.job.table_precision)
    groups = make_groups(plan.job.group_size, timeout)
    for table in model.tables:
        table.partition, table.replicas, table.world = groups
    # After its first step DDP puts the gradients into an order of its own, and with it the sums of three or more
    # processes; not where it has to look for parameters without a gradient.
    keeps_order = repeatable and groups.world.n_processes > 2
    if plan.job.mode == "ddp":
        model.to_empty(device=device)
        if not plan.job.trains:
            return model
        initialize(model, seed)
        return DistributedDataParallel(
            model, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=keeps_order
        )
    sharded = DistributedModelParallel(
        model,
        env=groups.environment(device.type),
        device=device,
        plan=_plan_of_group(plan, groups),
        sharders=[_Sharder(plan.job, sparse_learning_rate)],
        init_data_parallel=False,
        data_parallel_wrapper=DefaultDataParallelWrapper(
            static_graph=not keeps_order, find_unused_parameters=keeps_order
        ),
    )
    for kernel in kernels(unwrap(sharded)):  # row-wise, the last processes have none where there are few rows
        give_a_row_to_empty_kernel(kernel)
        if groups.replicas.n_processes > 1:
            share_gradients(kernel, groups.replicas)
    for table in model.tables:
        if table.partition.n_processes > 1:
            table.exchange = IdExchange(table.collection, table.partition.n_processes, device)
        if plan.job.updates[table.config.name] == "dense_shards":
            table.dense_shard = _dense_shard(table, device, plan.job)
    if plan.job.trains:
        initialize(unwrap(sharded), seed)
        sharded.init_data_parallel()
    return sharded


def _plan_of_group(plan: Plan, groups: Groups) -> ShardingPlan | None:
    """Return TorchRec's plan, made for the first group, for the group of this process."""
    if plan.sharding_plan is None or groups.replicas.n_processes == 1:
        return plan.sharding_plan
    first = groups.replicas.rank * groups.shards.n_processes
    moved = move_plan(plan.sharding_plan, first, plan.job.local_world_size)
    if plan.job.device_type == "cuda" and torch.cuda.device_count() == 1:
        place_on_first_gpus(moved)
    return moved


class _Sharder(EmbeddingCollectionSharder):  # type: ignore[misc]
    """Shards each table with the optimizer that updates it in backward: one without a state, where none does."""

    def __init__(self, job: Job, learning_rate: float) -> None:
        super().__init__()
        self._of_table = {
            name: sharder(job, job.sparse_optimizer if updates == "fused" else "sgd", learning_rate)
            for name, updates in job.updates.items()
        }

    def shard(self, module: Any, *args: Any, **keywords: Any) -> ShardedEmbeddingCollection:
        """Called by TorchRec for each collection, which holds one table."""
        (table,) = module.embedding_configs()
        return self._of_table[table.name].shard(module, *args, **keywords)


def _dense_shard(table: Table, device: torch.device, job: Job) -> DenseShard:
    """Return the rows that this process holds: TorchRec gives each as many, the last one what is left."""
    (value,) = table.collection.state_dict().values()
    rows_per_process = -(-table.config.num_embeddings // table.partition.n_processes)
    (weight,) = local_parts(value) or [torch.empty(0, table.config.embedding_dim, device=device)]
    first = table.partition.rank * rows_per_process
    message = torch.float32 if job.messages == "fp32" else torch.bfloat16  # as TorchRec's, for the others
    return DenseShard(weight, first=first, partition=table.partition, message=message)


def unwrap(model: nn.Module) -> Any:
    """Return the model inside the wrappers: its tables stay sharded, its methods can be called."""
    return get_unwrapped_module(model)


def compile_blocks(model: nn.Module) -> None:
    """torch.compile what follows attention in each block, most of its work, for any number of positions."""
    for block in unwrap(model).encoder.blocks:
        block.feed_forward = torch.compile(block.feed_forward, dynamic=True)


def held_bytes(model: nn.Module, optimizer_states: Any) -> dict[str, int]:
    """Return bytes of weights and of optimizer state that this process holds."""
    return {
        "weights": local_bytes(unwrap(model).state_dict().values()),
        "optimizer_state": local_bytes(optimizer_states),
    }
