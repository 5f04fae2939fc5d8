"""Which process holds which part of the tables: TorchRec's planner, asked for processes that need not exist."""

import math
from typing import Any, NamedTuple

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.types import CacheParams, CommOp, ShardingPlan

from bert4rec.config.kinds import SHARDING_TYPES, supports_column_sharding
from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import CACHE_LOAD_FACTOR, Job, Shard, peak_bytes, resident_bytes, shard
from bert4rec.sharding.torchrec_internals import (
    ChosenOptions,
    Perf,
    Storage,
    Topology,
    make_topology,
    perf_estimator,
    place_on_first_gpus,
    with_input_lengths,
)

FUSED_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
}
EPSILON = 1e-8  # of every adaptive optimizer, fused or not: the libraries' own defaults differ
NO_LIMIT = 2**62


class StepTime(NamedTuple):
    """TorchRec's estimate of what a process spends on the tables in a step, in milliseconds."""

    forward_compute: float
    forward_communication: float
    backward_compute: float
    backward_communication: float


class Placement(NamedTuple):
    """The planner's answer: the shards, its own plan, which is that of the first group, each table's type, the time of
    each process with a shard.
    """

    shards: list[Shard]
    sharding_plan: ShardingPlan
    sharding_types: dict[str, str]
    times: dict[int, StepTime]


def place(job: Job, memory: Memory) -> Placement:
    """Return TorchRec's plan of a `dmp` job for processes with that much memory.

    Raises `PlannerError` where the tables do not fit.
    """
    # The planner places the tables alone.
    others = [sum(parts.values()) for parts in peak_bytes(job, [])]
    limits = [NO_LIMIT if limit is None else limit for limit in (memory.device, memory.host)]
    hbm, ddr = (max(0, limit - taken) for limit, taken in zip(limits, others, strict=True))
    hardware, constraints = topology(job, hbm=hbm, ddr=ddr), _constraints(job)
    estimators = [_Times(job, hardware, constraints), _Sizes(job)]
    answer = ChosenOptions()
    planner = EmbeddingShardingPlanner(
        topology=hardware,
        batch_size=job.batch_size,
        enumerator=EmbeddingEnumerator(hardware, job.batch_size, constraints, estimators),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        constraints=constraints,
        stats=[answer],
    )
    sharding_plan = planner.plan(job.built, [sharder(job, job.sparse_optimizer)])
    if job.device_type == "cuda" and torch.cuda.device_count() == 1:
        place_on_first_gpus(sharding_plan)
    sharding_types = {option.name: option.sharding_type for option in answer.options}
    shards, times = _shards(job, answer.options), _step_times(answer.options)
    firsts = range(0, job.world_size, job.group_size)
    copies = [part._replace(rank=first + part.rank) for first in firsts for part in shards]
    every_time = {first + rank: time for first in firsts for rank, time in times.items()}
    return Placement(copies, sharding_plan, sharding_types, every_time)


def sharder(job: Job, optimizer: str, learning_rate: float = 0.0) -> EmbeddingCollectionSharder:
    """Return the sharder of tables that are updated in backward by `optimizer`."""
    fused = {"optimizer": FUSED_OPTIMIZERS[optimizer], "learning_rate": learning_rate, "eps": EPSILON}
    # Rounded to the nearest, rows of fp16 would stay where they are once updates are small; fbgemm has it on CUDA only.
    fused["stochastic_rounding"] = job.table_precision == "fp16"
    return EmbeddingCollectionSharder(fused_params=fused, qcomm_codecs_registry=_codecs(job))


def _codecs(job: Job) -> dict[str, Any] | None:
    """Return the codecs of vectors and gradients in messages; None if messages are fp32.

    Gradients are bf16 where vectors are fp16: below 6e-5 fp16 loses digits and soon everything, bf16 does not.
    """
    if job.messages == job.table_precision == "fp32":
        return None
    back = CommType.FP32 if job.messages == "fp32" else CommType.BF16
    # Made by hand: TorchRec's own registry falls back from bf16 to fp16 on CPU, though gloo sends both.
    codecs = get_qcomm_codecs(QCommsConfig(forward_precision=CommType(job.messages), backward_precision=back))
    return {CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL.name: codecs}


def allowed_types(sharding_type: str, sparse_optimizer: str) -> list[str]:
    """Return the sharding types that the planner may choose."""
    if sharding_type != "auto":
        return [sharding_type]
    return [name for name in SHARDING_TYPES if supports_column_sharding(sparse_optimizer, name)]


def topology(job: Job, *, hbm: int = 0, ddr: int = 0) -> Topology:
    """Return the processes of a group as TorchRec sees them; `hbm` and `ddr` are bytes of GPU and host memory of each.

    The planner wants hosts of as many processes each: of a group that does not end where a host ends, smaller ones.
    """
    of_host = math.gcd(job.group_size, job.local_world_size)
    return make_topology(
        world_size=job.group_size, local_world_size=of_host, device_type=job.device_type, hbm=hbm, ddr=ddr
    )


def _constraints(job: Job) -> dict[str, ParameterConstraints]:
    """Return sharding types, a kernel that updates in backward, narrow enough columns, the load of each feature."""
    cached = job.compute_kernel == "fused_uvm_caching"
    return {
        name: ParameterConstraints(
            sharding_types=allowed_types(job.sharding_type, job.sparse_optimizer),
            compute_kernels=[job.compute_kernel],
            cache_params=CacheParams(load_factor=CACHE_LOAD_FACTOR) if cached else None,
            min_partition=-(-table.embedding_dim // (4 * job.group_size)) * 4,
            pooling_factors=[job.lookups_per_step[feature] / job.batch_size for feature in table.feature_names],
        )
        for name, table in job.tables.items()
    }


class _Sizes:
    """Tells the planner how large a shard is, by the formulas of the footprint: one truth about bytes.

    What passes through a step is no sum over shards and is judged when all are placed.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._without = job, resident_bytes(job, [])
        self._known: dict[tuple[str, int, int], tuple[int, int]] = {}

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        """Fill `storage` of every shard."""
        for option in sharding_options:
            for part in option.shards:
                size = (option.name, part.size[0], part.size[1])
                if size not in self._known:  # a thousand shards come in two or three sizes
                    self._known[size] = self._size(_shard(self._job, option.name, 0, part))
                part.storage = Storage(*self._known[size])

    def _size(self, part: Shard) -> tuple[int, int]:
        pairs = zip(resident_bytes(self._job, [part]), self._without, strict=True)
        on_device, on_host = (sum(with_part.values()) - sum(without.values()) for with_part, without in pairs)
        return on_device, on_host


class _Times:
    """TorchRec's estimate of a step, corrected where it cannot know what the candidates are.

    It takes every id for one that may stand on any process. With a softmax over the whole catalogue and row-wise
    sharding a process asks for the rows that it holds itself: they are looked up, but do not travel. And it lets a
    lone process send messages to itself.
    """

    def __init__(self, job: Job, topology: Topology, constraints: dict[str, ParameterConstraints]) -> None:
        self._job = job
        self._torchrec = perf_estimator(topology, constraints)

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        """Fill `perf` of every shard."""
        self._torchrec.estimate(sharding_options, sharder_data_map)
        for option in sharding_options:
            has_own_candidates = (
                option.name == "item" and self._job.scores_whole_catalogue and option.sharding_type == "row_wise"
            )
            if self._job.group_size == 1 or has_own_candidates:
                self._without_candidates(option, sharder_data_map)

    def _without_candidates(self, option: Any, sharder_data_map: Any) -> None:
        # The first feature are the sequences, the second, if there is one, the candidates.
        sequences = option.input_lengths[0] if self._job.group_size > 1 else 0.0
        # One shard: the messages of all row-wise shards are the same.
        travelling = with_input_lengths(option, [sequences, *[0.0] * (len(option.input_lengths) - 1)])
        self._torchrec.estimate([travelling], sharder_data_map)
        messages = travelling.shards[0].perf
        for part in option.shards:
            part.perf.fwd_comms, part.perf.bwd_comms = messages.fwd_comms, messages.bwd_comms


def _shards(job: Job, options: list[Any]) -> list[Shard]:
    """Return the shards with rows, sorted by rank."""
    pairs = ((option.name, part) for option in options for part in option.shards if part.size[0])
    parts = [_shard(job, name, part.rank, part) for name, part in pairs]
    return sorted(parts, key=lambda part: (part.rank, part.table, part.row, part.column))


def _step_times(options: list[Any]) -> dict[int, StepTime]:
    """Return the sum over the shards of each rank."""
    total: dict[int, Perf] = {}
    for part in (part for option in options for part in option.shards):
        total[part.rank] = total[part.rank] + part.perf if part.rank in total else part.perf
    return {
        rank: StepTime(perf.fwd_compute, perf.fwd_comms, perf.bwd_compute + perf.prefetch_compute, perf.bwd_comms)
        for rank, perf in total.items()
    }


def _shard(job: Job, table: str, rank: int, part: Any) -> Shard:
    (row, column), (n_rows, n_columns) = part.offset, part.size
    return shard(job, table, rank, (row, column), (n_rows, n_columns))
