"""Plan the shards and the memory of each process before anything is allocated, with TorchRec's planner in `dmp`.

The planned processes need not exist.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import CacheParams, CommOp, ShardingPlan

from bert4rec.config.kinds import SHARDING_TYPES, needs_negatives, supports_column_sharding
from bert4rec.runtime.errors import SettingsError, format_bytes, pluralize
from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import (
    CACHE_LOAD_FACTOR,
    Bytes,
    Job,
    Shard,
    dense_bytes,
    hidden_bytes,
    peak_bytes,
    resident_bytes,
    shard,
    step_count_bytes,
    sync_bytes,
)
from bert4rec.sharding.torchrec_internals import (
    ChosenOptions,
    Perf,
    Storage,
    Topology,
    make_topology,
    perf_estimator,
    with_input_lengths,
)

FUSED_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
}
EPSILON = 1e-8  # of every adaptive optimizer, fused or not: the defaults of the libraries differ
NO_LIMIT = 2**62


class StepTime(NamedTuple):
    """TorchRec's estimate of the time of a process for the tables in a step, in milliseconds."""

    forward_compute: float
    forward_communication: float
    backward_compute: float
    backward_communication: float


@dataclass(frozen=True)
class Plan:
    """The shards of a `job` and the available `memory`; equal on every process.

    `needs` [world_size]: peak bytes of each process, on its GPU and on its host. In `dmp` only, TorchRec gives the
    `sharding_plan` of the first group, the `sharding_types` by table, and the `times` by rank.
    """

    job: Job
    memory: Memory
    shards: list[Shard]
    needs: list[tuple[Bytes, Bytes]]
    sharding_plan: ShardingPlan | None = None
    sharding_types: dict[str, str] = field(default_factory=dict)
    times: dict[int, StepTime] = field(default_factory=dict)

    def resident_bytes(self, rank: int) -> dict[str, int]:
        """Return the bytes of weights and of optimizer state on `rank`, counted like `parallelize.held_bytes`."""
        weights, state = dense_bytes(self.job)
        shards = self.shards_of(rank)
        for table in self.job.tables.keys() - {part.table for part in shards}:
            if self.job.updates[table] == "dense_shards":  # a shard without rows has a step count too
                state += step_count_bytes(self.job, table)
        return {
            "weights": weights + sum(part.weight_bytes for part in shards),
            "optimizer_state": state + sum(part.state_bytes for part in shards),
        }

    def shards_of(self, rank: int) -> list[Shard]:
        """Return the shards of `rank`."""
        return [part for part in self.shards if part.rank == rank]

    def largest(self) -> Iterator[tuple[str, int, Bytes, int | None]]:
        """Yield for each kind of memory its name, the rank that needs most, its bytes by use, and the limit or None."""
        kinds = (("GPU memory", self.memory.device), ("host memory", self.memory.host))
        for kind, (name, available) in enumerate(kinds):
            rank = max(range(self.job.world_size), key=lambda rank: sum(self.needs[rank][kind].values()))
            if parts := self.needs[rank][kind]:
                yield name, rank, parts, available

    def messages(self) -> dict[str, tuple[int, float]]:
        """Return the messages that `times` omits: the most bytes that a process receives per step, and milliseconds.

        Bandwidths are TorchRec's; a group of processes on several hosts uses the bandwidth between hosts.
        """
        job, bandwidths = self.job, topology(self.job)
        received = {
            "hidden states to be scored": (hidden_bytes(job), job.group_size),
            "between the groups": (max(sync_bytes(job, self.shards_of(rank)) for rank in range(job.group_size)),
                                   job.world_size),
        }  # fmt: skip
        return {
            name: (total, total / (bandwidths.intra_host_bw if n <= job.local_world_size else bandwidths.inter_host_bw))
            for name, (total, n) in received.items() if total
        }  # fmt: skip

    @property
    def fits(self) -> bool:
        """Return whether every process has the memory that it needs."""
        return all(available is None or sum(parts.values()) <= available for *_, parts, available in self.largest())


def make_plan(job: Job, memory: Memory) -> Plan:
    """Return a plan of `job` for processes with `memory`; needs no process group and allocates nothing.

    The plan may not fit (`Plan.fits`). Raises `SettingsError` if TorchRec finds no plan even without a limit, or if the
    number of processes is not a multiple of the group size.
    """
    _check_groups(job)
    with contextlib.suppress(PlannerError):
        return _plan(job, memory, memory)
    try:  # without a limit, for the numbers in the error message
        return _plan(job, memory, Memory(host=None))
    except PlannerError as error:
        reason = str(error).splitlines()[0].strip(" .")
        tables = " and ".join(f"{name} table" for name in job.tables)
        raise SettingsError(
            f"TorchRec's planner finds no place for the {tables}: {reason}; use another number of processes, "
            "model.embed_dim or parallelism.sharding_type"
        ) from None


def fitting_plan(job: Job, memory: Memory) -> Plan | None:
    """Return the plan of `job`, or None if it does not fit."""
    with contextlib.suppress(PlannerError):
        plan = _plan(job, memory, memory)
        return plan if plan.fits else None
    return None


def _check_groups(job: Job) -> None:
    """Raise `SettingsError` if the number of processes is not a multiple of a group size."""
    shared_by, n = job.negatives_shared_by, job.world_size
    if n % job.group_size:
        raise SettingsError(
            f"parallelism.sharding_group_size = {job.group_size}: {_no_such_groups(n)}, or 0 for all of them"
        )
    if job.trains and needs_negatives(job.loss) and shared_by != "all" and n % shared_by:
        raise SettingsError(f'training.negatives_shared_by = {shared_by}: {_no_such_groups(n)}, "all"')


def _no_such_groups(n: int) -> str:
    sizes = ", ".join(str(size) for size in range(1, n + 1) if n % size == 0)
    return f"{pluralize(n, 'process')} cannot be divided into groups of this size; valid with {n}: {sizes}"


def summary(plan: Plan) -> str:
    """Return the plan in a few lines, for any number of processes."""
    job = plan.job
    groups = f", in {job.n_groups} groups of {job.group_size}" if job.n_groups > 1 else ""
    lines = [f"plan: {job.mode} on {job.world_size} x {job.device_type}, {job.local_world_size} a host{groups}"]
    for table in job.tables:
        shards = [part for part in plan.shards if part.table == table]
        weights = _range([(part.weight_bytes, format_bytes(part.weight_bytes)) for part in shards])
        state = _range([(part.weight_bytes, format_bytes(part.state_bytes)) for part in shards])
        lines.append(f"  {table}: {_table(plan, table)}; each {weights} of weights, {state} of optimizer state")
    for name, rank, parts, available in plan.largest():
        limit = "" if available is None else f" of {format_bytes(available)}"
        listed = ", ".join(f"{part} {format_bytes(taken)}" for part, taken in parts.items() if taken)
        lines.append(f"  {name}: {format_bytes(sum(parts.values()))}{limit} at most (process {rank}): {listed}")
    return "\n".join(lines)


def to_text(plan: Plan) -> str:
    """Return the whole plan: every shard, every process."""
    lines = [summary(plan), "", "shards:"]
    for part in plan.shards:
        rows, columns = part.row + part.n_rows - 1, part.column + part.n_columns - 1
        lines.append(
            f"  {part.table}: rows {part.row}…{rows}, columns {part.column}…{columns} on process {part.rank}: "
            f"{part.weight_bytes} bytes of weights, {part.state_bytes} of optimizer state"
        )
    lines += ["", "processes, in bytes:"]
    for rank, (on_device, on_host) in enumerate(plan.needs):
        held = plan.resident_bytes(rank)
        lines.append(
            f"  {rank}: {held['weights']} of weights and {held['optimizer_state']} of optimizer state, dense part "
            f"included; needs {sum(on_host.values())} of host memory"
            + (f" and {sum(on_device.values())} of GPU memory" if on_device else "")
        )
    return "\n".join(lines) + "\n"


def _plan(job: Job, memory: Memory, limits: Memory) -> Plan:
    """Return the replicas, or TorchRec's plan within `limits`; raise `PlannerError` if the tables do not fit."""
    if job.mode == "ddp":
        shards = [
            shard(job, name, rank, (0, 0), (table.num_embeddings, table.embedding_dim))
            for rank in range(job.world_size)
            for name, table in job.tables.items()
        ]
        return Plan(job, memory, shards, _needs(job, shards))
    # The planner places only the tables.
    others = [sum(parts.values()) for parts in peak_bytes(job, [])]
    hbm, ddr = (
        NO_LIMIT if limit is None else max(0, limit - taken)
        for limit, taken in zip((limits.device, limits.host), others, strict=True)
    )
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
    firsts = range(0, job.world_size, job.group_size)
    shards = [part._replace(rank=first + part.rank) for first in firsts for part in _shards(job, answer.options)]
    times = {first + rank: time for first in firsts for rank, time in _step_times(answer.options).items()}
    sharding_types = {option.name: option.sharding_type for option in answer.options}
    return Plan(job, memory, shards, _needs(job, shards), sharding_plan, sharding_types, times)


def _needs(job: Job, shards: list[Shard]) -> list[tuple[Bytes, Bytes]]:
    """Return the peak bytes of each process, computed once for equal sets of shard sizes."""
    rank_shards: list[list[Shard]] = [[] for _ in range(job.world_size)]
    for part in shards:
        rank_shards[part.rank].append(part)
    sizes = [tuple((part.table, part.n_rows, part.n_columns) for part in parts) for parts in rank_shards]
    known = {key: peak_bytes(job, parts) for key, parts in dict(zip(sizes, rank_shards, strict=True)).items()}
    return [known[key] for key in sizes]


def _table(plan: Plan, name: str) -> str:
    """Return a table's shape, its layout and the shards with their processes."""
    job, table, parts = plan.job, plan.job.tables[name], [part for part in plan.shards if part.table == name]
    shapes = _range([(part.weight_bytes, f"{part.n_rows:,} x {part.n_columns}") for part in parts])
    n_holders = len({part.rank for part in parts})
    layout = plan.sharding_types.get(name, "replicated")
    embed_dim = job.model["embed_dim"]
    wider = f" ({embed_dim} wide, with bias and padding)" if table.embedding_dim > embed_dim else ""
    return (
        f"{table.num_embeddings:,} x {table.embedding_dim}{wider}, {layout}, "
        f"{len(parts)} x [{shapes}] on {n_holders} of {pluralize(job.world_size, 'process')}"
    )


def _range(sizes: list[tuple[int, str]]) -> str:
    """Return the texts of the smallest and the largest of `sizes`; one if they are equal."""
    smallest, largest = min(sizes)[1], max(sizes)[1]
    return largest if smallest == largest else f"{smallest} … {largest}"


def sharder(job: Job, optimizer: str, learning_rate: float = 0.0) -> EmbeddingCollectionSharder:
    """Return the sharder of tables that `optimizer` updates in backward."""
    fused = {"optimizer": FUSED_OPTIMIZERS[optimizer], "learning_rate": learning_rate, "eps": EPSILON}
    # With rounding to nearest, small updates would not change fp16 rows; fbgemm rounds stochastically on CUDA only.
    fused["stochastic_rounding"] = job.table_precision == "fp16"
    return EmbeddingCollectionSharder(fused_params=fused, qcomm_codecs_registry=_codecs(job))


def _codecs(job: Job) -> dict[str, Any] | None:
    """Return the codecs of vectors and gradients in messages; None if messages are fp32.

    Gradients are bf16 if vectors are fp16: fp16 loses precision below 6e-5 and soon underflows, bf16 does not.
    """
    if job.messages == job.table_precision == "fp32":
        return None
    back = CommType.FP32 if job.messages == "fp32" else CommType.BF16
    # Built here because TorchRec's registry replaces bf16 by fp16 on CPU, although gloo sends both.
    codecs = get_qcomm_codecs(QCommsConfig(forward_precision=CommType(job.messages), backward_precision=back))
    return {CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL.name: codecs}


def allowed_types(sharding_type: str, sparse_optimizer: str) -> list[str]:
    """Return the sharding types that the planner may choose."""
    if sharding_type != "auto":
        return [sharding_type]
    return [name for name in SHARDING_TYPES if supports_column_sharding(sparse_optimizer, name)]


def topology(job: Job, *, hbm: int = 0, ddr: int = 0) -> Topology:
    """Return TorchRec's topology of a group; `hbm` and `ddr` are the bytes of GPU and host memory of each process.

    The planner needs hosts with equally many processes: if a group does not end at the end of a host, hosts are
    smaller.
    """
    host_size = math.gcd(job.group_size, job.local_world_size)
    return make_topology(
        world_size=job.group_size, local_world_size=host_size, device_type=job.device_type, hbm=hbm, ddr=ddr
    )


def _constraints(job: Job) -> dict[str, ParameterConstraints]:
    """Return by table the allowed sharding types and kernel, the minimum shard width, and the load of each feature."""
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
    """Estimates the size of a shard for the planner, with the formulas of the footprint.

    The memory of a step is not a sum over shards; it is computed when all shards are placed.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._without = job, resident_bytes(job, [])
        self._known: dict[tuple[str, int, int], tuple[int, int]] = {}

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        """Fill `storage` of every shard."""
        for option in sharding_options:
            for part in option.shards:
                size = (option.name, part.size[0], part.size[1])
                if size not in self._known:  # a thousand shards have two or three different sizes
                    self._known[size] = self._size(_shard(self._job, option.name, 0, part))
                part.storage = Storage(*self._known[size])

    def _size(self, part: Shard) -> tuple[int, int]:
        pairs = zip(resident_bytes(self._job, [part]), self._without, strict=True)
        on_device, on_host = (sum(with_part.values()) - sum(without.values()) for with_part, without in pairs)
        return on_device, on_host


class _Times:
    """Estimates the time of a step with TorchRec, corrected for messages that are not sent.

    TorchRec assumes that every id may be on any process. With a softmax over the whole catalogue and row-wise sharding,
    the candidates of a process are its own rows, which need no messages. TorchRec also counts messages of a single
    process to itself.
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
        # The first feature is that of the sequences, the second, if any, that of the candidates.
        sequences = option.input_lengths[0] if self._job.group_size > 1 else 0.0
        # One shard suffices: all row-wise shards have the same messages.
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
    """Return the estimated time of each rank, summed over its shards."""
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
