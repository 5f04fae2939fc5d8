"""Plan which process stores which shards, in bytes, before anything is allocated."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import ShardingPlan

from bert4rec.config.kinds import needs_negatives
from bert4rec.runtime.errors import SettingsError, pluralize
from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import (
    Bytes,
    Job,
    Shard,
    dense_bytes,
    hidden_bytes,
    peak_bytes,
    shard,
    step_count_bytes,
    sync_bytes,
)
from bert4rec.sharding.placement import StepTime, place, topology


@dataclass(frozen=True)
class Plan:
    """Hold the shards of a `job` and the available `memory`; equal on every process.

    `needs` [world_size]: peak bytes of each process, on its GPU and on its host. `sharding_plan`, `sharding_types` by
    table and `times` by rank are TorchRec's, in `dmp` only.
    """

    job: Job
    memory: Memory
    shards: list[Shard]
    needs: list[tuple[Bytes, Bytes]]
    sharding_plan: ShardingPlan | None = None
    sharding_types: dict[str, str] = field(default_factory=dict)
    times: dict[int, StepTime] = field(default_factory=dict)

    def resident_bytes(self, rank: int) -> dict[str, int]:
        """Return bytes of weights and of optimizer state on `rank`, counted like `parallelize.held_bytes`."""
        weights, state = dense_bytes(self.job)
        shards = self.of_rank(rank)
        for table in self.job.tables.keys() - {part.table for part in shards}:
            if self.job.updates[table] == "dense_shards":  # a weight without rows has its steps counted all the same
                state += step_count_bytes(self.job, table)
        return {
            "weights": weights + sum(part.weight_bytes for part in shards),
            "optimizer_state": state + sum(part.state_bytes for part in shards),
        }

    def of_rank(self, rank: int) -> list[Shard]:
        """Return the shards of `rank`."""
        return [part for part in self.shards if part.rank == rank]

    def largest(self) -> Iterator[tuple[str, int, Bytes, int | None]]:
        """Yield for each kind of memory its name, the rank that needs most of it, what for, and the available bytes."""
        kinds = (("GPU memory", self.memory.device), ("host memory", self.memory.host))
        for kind, (name, available) in enumerate(kinds):
            rank = max(range(self.job.world_size), key=lambda rank: sum(self.needs[rank][kind].values()))
            if parts := self.needs[rank][kind]:
                yield name, rank, parts, available

    def messages(self) -> dict[str, tuple[int, float]]:
        """Return messages that `times` leaves out: most bytes received by a process in a step, and milliseconds.

        Bandwidths are TorchRec's; messages among processes of several hosts count as messages between hosts.
        """
        job, where = self.job, topology(self.job)
        received = {
            "hidden states to be scored": (hidden_bytes(job), job.group_size),
            "between the groups": (max(sync_bytes(job, self.of_rank(rank)) for rank in range(job.group_size)),
                                   job.world_size),
        }  # fmt: skip
        return {
            name: (taken, taken / (where.intra_host_bw if n <= job.local_world_size else where.inter_host_bw))
            for name, (taken, n) in received.items() if taken
        }  # fmt: skip

    @property
    def fits(self) -> bool:
        """Return whether every process has the memory that it needs."""
        return all(available is None or sum(parts.values()) <= available for *_, parts, available in self.largest())


def make_plan(job: Job, memory: Memory) -> Plan:
    """Plan `job` for processes with `memory`; needs no process group and allocates nothing.

    The plan may not fit (`Plan.fits`). Raise `SettingsError` if TorchRec finds no plan even without a limit, or if the
    number of processes is no multiple of a group's.
    """
    _check_groups(job)
    if job.mode == "ddp":
        return _replicated(job, memory)
    with contextlib.suppress(PlannerError):
        return _sharded(job, memory, memory)
    try:  # without a limit: the figures of a refusal
        return _sharded(job, memory, Memory(host=None))
    except PlannerError as error:
        reason = str(error).splitlines()[0].strip(" .")
        tables = " and ".join(f"{name} table" for name in job.tables)
        raise SettingsError(
            f"TorchRec's planner finds no place for the {tables}: {reason}; use another number of processes, "
            "model.embed_dim or parallelism.sharding_type"
        ) from None


def fitting_plan(job: Job, memory: Memory) -> Plan | None:
    """Return the plan of `job`, or None if it does not fit."""
    try:
        plan = _replicated(job, memory) if job.mode == "ddp" else _sharded(job, memory, memory)
    except PlannerError:
        return None
    return plan if plan.fits else None


def _check_groups(job: Job) -> None:
    """Raise `SettingsError` if the number of processes is no multiple of a group's."""
    shared_by, n = job.negatives_shared_by, job.world_size
    if n % job.group_size:
        raise SettingsError(
            f"parallelism.sharding_group_size = {job.group_size}: {_no_such_groups(n)}, or 0 for all of them"
        )
    if job.trains and needs_negatives(job.loss) and shared_by != "all" and n % shared_by:
        raise SettingsError(f'training.negatives_shared_by = {shared_by}: {_no_such_groups(n)}, "all"')


def _no_such_groups(n: int) -> str:
    sizes = ", ".join(str(size) for size in range(1, n + 1) if n % size == 0)
    return f"{pluralize(n, 'process')} cannot be cut into such groups; valid with {n}: {sizes}"


def summary_line(plan: Plan) -> str:
    """Return the plan in one line: the tables, and the memory of the process that needs most."""
    kinds = list(plan.largest())
    needs = " and ".join(
        size(sum(parts.values()))
        + ("" if available is None else f" of {size(available)}")
        + ("" if len(kinds) == 1 else f" of {name}")
        for name, _, parts, available in kinds
    )
    tables = ", ".join(f"{name} table {_table(plan, name)}" for name in plan.job.tables)
    return f"plan: {tables}; {needs}{' each' if plan.job.world_size > 1 else ''}"


def summary(plan: Plan) -> str:
    """Return the plan in a few lines, for any number of processes."""
    job = plan.job
    groups = f", in {job.n_groups} groups of {job.group_size}" if job.n_groups > 1 else ""
    lines = [f"plan: {job.mode} on {job.world_size} x {job.device_type}, {job.local_world_size} a host{groups}"]
    for table in job.tables:
        shards = [part for part in plan.shards if part.table == table]
        weights = _range([(part.weight_bytes, size(part.weight_bytes)) for part in shards])
        state = _range([(part.weight_bytes, size(part.state_bytes)) for part in shards])
        lines.append(f"  {table}: {_table(plan, table)}; each {weights} of weights, {state} of optimizer state")
    for name, rank, parts, available in plan.largest():
        limit = "" if available is None else f" of {size(available)}"
        listed = ", ".join(f"{part} {size(taken)}" for part, taken in parts.items() if taken)
        lines.append(f"  {name}: {size(sum(parts.values()))}{limit} at most (process {rank}): {listed}")
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


def size(n_bytes: float) -> str:
    """Return bytes for people: "1.23 GB", in powers of a thousand."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB" if n_bytes < 999.5 else f"{n_bytes / 1000:,.4g} TB"


def _replicated(job: Job, memory: Memory) -> Plan:
    shards = [
        shard(job, name, rank, (0, 0), (table.num_embeddings, table.embedding_dim))
        for rank in range(job.world_size)
        for name, table in job.tables.items()
    ]
    return Plan(job, memory, shards, _needs(job, shards))


def _sharded(job: Job, memory: Memory, limits: Memory) -> Plan:
    """Return TorchRec's plan within `limits`; raise `PlannerError` if there is none."""
    placed = place(job, limits)
    needs = _needs(job, placed.shards)
    return Plan(job, memory, placed.shards, needs, placed.sharding_plan, placed.sharding_types, placed.times)


def _needs(job: Job, shards: list[Shard]) -> list[tuple[Bytes, Bytes]]:
    """Return the memory of each process, computed once for equal sets of shard sizes."""
    of_rank: list[list[Shard]] = [[] for _ in range(job.world_size)]
    for part in shards:
        of_rank[part.rank].append(part)
    known: dict[tuple[tuple[str, int, int], ...], tuple[Bytes, Bytes]] = {}
    needs = []
    for parts in of_rank:
        key = tuple((part.table, part.n_rows, part.n_columns) for part in parts)
        if key not in known:
            known[key] = peak_bytes(job, parts)
        needs.append(known[key])
    return needs


def _table(plan: Plan, name: str) -> str:
    """Return a table's shape, its layout and the shards with their processes."""
    job, table, parts = plan.job, plan.job.tables[name], [part for part in plan.shards if part.table == name]
    shapes = _range([(part.weight_bytes, f"{part.n_rows:,} x {part.n_columns}") for part in parts])
    n_holders = len({part.rank for part in parts})
    layout = plan.sharding_types.get(name, "replicated")
    return (
        f"{table.num_embeddings:,} x {table.embedding_dim}, {layout}, "
        f"{len(parts)} x [{shapes}] on {n_holders} of {pluralize(job.world_size, 'process')}"
    )


def _range(sizes: list[tuple[int, str]]) -> str:
    """Return the texts of the smallest and the largest of `sizes`; one if they are equal."""
    smallest, largest = min(sizes)[1], max(sizes)[1]
    return largest if smallest == largest else f"{smallest} … {largest}"
