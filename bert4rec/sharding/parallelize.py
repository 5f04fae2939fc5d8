"""Parallelism, applied to the model from outside.

`dmp`: TorchRec's DistributedModelParallel shards the tables, which fused optimizers update in backward or ordinary ones
after it; DistributedDataParallel wraps the dense part. `ddp`: DistributedDataParallel replicates everything.
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

from bert4rec.models.names import FEATURE_VALUES, MASK
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import DenseShard, IdExchange, Table, is_of_table, saved_name, set_precision
from bert4rec.sharding.footprint import Job
from bert4rec.sharding.groups import make_groups, share_gradients
from bert4rec.sharding.plan import Plan, sharder
from bert4rec.sharding.torchrec_internals import (
    give_a_row_to_empty_kernel,
    kernels,
    local_bytes,
    local_parts,
    lookup_of_whole_table,
    move_plan,
    placed_parts,
)

ROWS_PER_BLOCK = 4096
EMBEDDING_SCALE = 0.02  # standard deviation of item and position vectors, as in BERT (Devlin et al. 2019)
POSITIONS = "encoder.positions.weight"
FROM_ZERO = ("encoder.gaps.weight", "encoder.dates.weight", "encoder.events.weight")


@torch.no_grad()
def initialize(model: RankingModel, seed: int) -> None:
    """Fill every weight of an allocated, possibly sharded `model`, as a pure function of `seed`."""
    for name, value in model.state_dict().items():
        if is_of_table(name):
            table = model.get_submodule(name.partition(".collection.")[0])
            assert isinstance(table, Table)
            for part, row, column in placed_parts(value):
                fill_rows(part, saved_name(name), row, column, table.n_initialized, seed)
        else:
            value.copy_(_dense_weight(saved_name(name), value, seed))


def fill_rows(part: Tensor, name: str, row: int, column: int, width: int, seed: int) -> None:
    """Fill a shard of the table `name` that begins at (`row`, `column`): drawn up to column `width`, then zeros.

    Rows are drawn in blocks of the whole table, so that they do not depend on the shards; each block is drawn once.
    """
    for block in range(row // ROWS_PER_BLOCK, -(-(row + len(part)) // ROWS_PER_BLOCK) if len(part) else 0):
        first = block * ROWS_PER_BLOCK
        vectors = _normal((ROWS_PER_BLOCK, width), seed, name, block)[max(0, row - first) :, column:] * EMBEDDING_SCALE
        piece = part[max(0, first - row) :][: len(vectors)]
        n_drawn = min(vectors.shape[1], part.shape[1])
        piece[:, :n_drawn] = vectors[: len(piece), :n_drawn]
        piece[:, n_drawn:] = 0


def _dense_weight(name: str, value: Tensor, seed: int) -> Tensor:
    if "norm.weight" in name:
        return torch.ones_like(value, device="cpu")
    if name.endswith("bias") or name in FROM_ZERO:
        return torch.zeros_like(value, device="cpu")
    scale = EMBEDDING_SCALE if name in (MASK, POSITIONS, FEATURE_VALUES) else math.sqrt(2 / sum(value.shape))
    return _normal(value.shape, seed, name, 0) * scale


def _normal(shape: tuple[int, ...] | torch.Size, seed: int, name: str, block: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}/{block}".encode()) | seed << 32)
    return torch.randn(shape, generator=generator)


def parallelize(
    model: RankingModel, plan: Plan, *, device: torch.device, seed: int, sparse_learning_rate: float, repeatable: bool,
    timeout: timedelta,
) -> nn.Module:  # fmt: skip
    """Allocate, initialise and wrap a `model` that was built on `meta`, by `plan`; needs a process group.

    Returns the wrapped model, which is called like the model. If the plan is not for a training, the weights are not
    initialised, and there are no gradient buckets. Under `dmp`, no process ever holds more of a table than its shards.
    With `repeatable`, gradients are summed in the same order at every step, also at the first one after a restart.
    `timeout` limits each message between the groups of the plan.
    """
    set_precision(model.tables, plan.job.table_precision)
    groups = make_groups(plan.job.group_size, timeout)
    for table in model.tables:
        table.partition, table.replicas, table.world = groups
    # After its first step DDP reorders the gradients, which changes the rounding of sums over three or more processes.
    # It does not reorder them if it has to look for unused parameters.
    keeps_order = repeatable and groups.world.n_processes > 2
    if plan.job.mode == "ddp":
        model.to_empty(device=device)
        if not plan.job.trains:
            return model
        initialize(model, seed)
        return DistributedDataParallel(
            model, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=keeps_order
        )
    assert plan.sharding_plan is not None, "a plan of `dmp` has TorchRec's"
    first = groups.replicas.rank * groups.shards.n_processes
    sharded = DistributedModelParallel(
        model,
        env=groups.environment(device.type),
        device=device,
        plan=move_plan(plan.sharding_plan, first, plan.job.local_world_size),
        sharders=[_Sharder(plan.job, sparse_learning_rate)],
        init_data_parallel=False,
        data_parallel_wrapper=DefaultDataParallelWrapper(
            static_graph=not keeps_order, find_unused_parameters=keeps_order
        ),
    )
    for kernel in kernels(unwrap(sharded)):  # with few rows, row-wise sharding leaves the last processes without any
        give_a_row_to_empty_kernel(kernel)
        if groups.replicas.n_processes > 1:
            share_gradients(kernel, groups.replicas)
    for table in model.tables:
        if table.partition.n_processes > 1:
            table.exchange = IdExchange(table.collection, table.partition.n_processes, device)
        elif plan.job.messages == "fp32":  # else TorchRec rounds the vectors and gradients of a lone process too
            shape = table.config.num_embeddings, table.config.embedding_dim
            table.kernel = lookup_of_whole_table(table.collection, shape)
        if plan.job.updates[table.config.name] == "dense_shards":
            table.dense_shard = _dense_shard(table, device, plan.job)
    if plan.job.trains:
        initialize(unwrap(sharded), seed)
        sharded.init_data_parallel()
    return sharded


class _Sharder(EmbeddingCollectionSharder):  # type: ignore[misc]
    """Shards each table with its fused optimizer, or with SGD, which has no state, if an ordinary one updates it."""

    def __init__(self, job: Job, learning_rate: float) -> None:
        super().__init__()
        self._sharders = {
            name: sharder(job, job.sparse_optimizer if updates == "fused" else "sgd", learning_rate)
            for name, updates in job.updates.items()
        }

    def shard(self, module: Any, *args: Any, **keywords: Any) -> ShardedEmbeddingCollection:
        """Return the sharded `module`, a collection of one table; called by TorchRec."""
        (table,) = module.embedding_configs()
        return self._sharders[table.name].shard(module, *args, **keywords)


def _dense_shard(table: Table, device: torch.device, job: Job) -> DenseShard:
    """Return this process's rows: TorchRec gives each process equally many, and the last one the rest."""
    (value,) = table.collection.state_dict().values()
    rows_per_process = -(-table.config.num_embeddings // table.partition.n_processes)
    (weight,) = local_parts(value) or [torch.empty(0, table.config.embedding_dim, device=device)]
    first = table.partition.rank * rows_per_process
    message = torch.float32 if job.messages == "fp32" else torch.bfloat16  # like the gradients in TorchRec's messages
    return DenseShard(weight, first=first, partition=table.partition, message=message)


def unwrap(model: nn.Module) -> Any:
    """Return the model inside the wrappers, with its methods; its tables stay sharded."""
    return get_unwrapped_module(model)


def compile_blocks(model: nn.Module) -> None:
    """Apply torch.compile to the part after attention in each block, most of its work, for any number of positions."""
    for block in unwrap(model).encoder.blocks:
        block.feed_forward = torch.compile(block.feed_forward, dynamic=True)


def held_bytes(model: nn.Module, optimizer_states: Any) -> dict[str, int]:
    """Return the bytes of weights and of optimizer state on this process."""
    return {
        "weights": local_bytes(unwrap(model).state_dict().values()),
        "optimizer_state": local_bytes(optimizer_states),
    }
