"""The plan of a run: who will hold what, in bytes, before anything is allocated."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import ShardingPlan

from bert4rec.config.abilities import needs_negatives
from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.memory import Memory
from bert4rec.runtime.wording import counted
from bert4rec.sharding.footprint import (
    Bytes,
    Job,
    Shard,
    dense_bytes,
    hidden_bytes,
    needed,
    shard,
    step_count_bytes,
    sync_bytes,
)
from bert4rec.sharding.placement import StepTime, machine, place


@dataclass(frozen=True)
class Plan:
    """Who holds what of a `job`, and the `memory` that is available for it; the same on every process.

    `needs` [world_size] holds what each process takes at its peak, of its GPU and of its host. `sharding_plan`,
    `sharding_types` by table and `times` by rank are TorchRec's, in `dmp` only.
    """

    job: Job
    memory: Memory
    shards: list[Shard]
    needs: list[tuple[Bytes, Bytes]]
    sharding_plan: ShardingPlan | None = None
    sharding_types: dict[str, str] = field(default_factory=dict)
    times: dict[int, StepTime] = field(default_factory=dict)

    def held(self, rank: int) -> dict[str, int]:
        """Bytes of weights and of optimizer state on `rank`, as `parallelize.held_bytes` counts them."""
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
        """The shards of `rank`."""
        return [part for part in self.shards if part.rank == rank]

    def largest(self) -> Iterator[tuple[str, int, Bytes, int | None]]:
        """For each kind of memory: its name, the rank that needs most of it, what for, and how much is available."""
        kinds = (("GPU memory", self.memory.device), ("host memory", self.memory.host))
        for kind, (name, available) in enumerate(kinds):
            rank = max(range(self.job.world_size), key=lambda rank: sum(self.needs[rank][kind].values()))
            if parts := self.needs[rank][kind]:
                yield name, rank, parts, available

    def messages(self) -> dict[str, tuple[int, float]]:
        """What is in none of the times: bytes that a process receives in a step, at most, and milliseconds for them.

        By TorchRec's bandwidths; what goes on among processes of several hosts is taken for messages between hosts.
        """
        job, where = self.job, machine(self.job)
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
        """Whether every process has the memory that it needs."""
        return all(available is None or sum(parts.values()) <= available for *_, parts, available in self.largest())


def make_plan(job: Job, memory: Memory) -> Plan:
    """Plan `job` for processes with `memory`; needs no process group and allocates nothing.

    The plan may not fit (`Plan.fits`). Raises `SettingsError` where TorchRec finds no plan even without a limit, and
    where the processes cannot be cut into the groups that share negatives.
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
    """The plan of `job`, or None where it does not fit: faster than to find out what it would need."""
    try:
        plan = _replicated(job, memory) if job.mode == "ddp" else _sharded(job, memory, memory)
    except PlannerError:
        return None
    return plan if plan.fits else None


def _check_groups(job: Job) -> None:
    """Raise `SettingsError` where the processes cannot be cut into the groups that hold tables or draw negatives."""
    shared_by, n = job.negatives_shared_by, job.world_size
    if n % job.group_size:
        raise SettingsError(
            f"parallelism.sharding_group_size = {job.group_size}: {_no_such_groups(n)}, or 0 for all of them"
        )
    if job.trains and needs_negatives(job.loss) and shared_by != "all" and n % shared_by:
        raise SettingsError(f'training.negatives_shared_by = {shared_by}: {_no_such_groups(n)}, "all"')


def _no_such_groups(n: int) -> str:
    sizes = ", ".join(str(size) for size in range(1, n + 1) if n % size == 0)
    return f"{counted(n, 'process')} cannot be cut into such groups; valid with {n}: {sizes}"


def headline(plan: Plan) -> str:
    """The plan in one line: where the tables are, and what the process that needs most will take."""
    kinds = list(plan.largest())
    taken = " and ".join(
        size(sum(parts.values()))
        + ("" if available is None else f" of {size(available)}")
        + ("" if len(kinds) == 1 else f" of {name}")
        for name, _, parts, available in kinds
    )
    tables = ", ".join(_place(plan, name) for name in plan.job.tables)
    return f"plan: {tables}; {taken}{' each' if plan.job.world_size > 1 else ''}"


def summary(plan: Plan) -> str:
    """The plan in a few lines, however many processes there are."""
    job = plan.job
    groups = f", in {job.n_groups} groups of {job.group_size}" if job.n_groups > 1 else ""
    lines = [f"plan: {job.mode} on {job.world_size} x {job.device_type}, {job.local_world_size} a host{groups}"]
    lines += [_table_line(plan, name) for name in job.tables]
    for name, rank, parts, available in plan.largest():
        limit = "" if available is None else f" of {size(available)}"
        lines.append(f"  {name}: {size(sum(parts.values()))}{limit} at most (process {rank}): {listed(parts)}")
    return "\n".join(lines)


def page(plan: Plan) -> str:
    """The whole plan: every shard, every process."""
    lines = [summary(plan), "", "shards:"]
    for part in plan.shards:
        rows, columns = part.row + part.n_rows - 1, part.column + part.n_columns - 1
        lines.append(
            f"  {part.table}: rows {part.row}…{rows}, columns {part.column}…{columns} on process {part.rank}: "
            f"{part.weight_bytes} bytes of weights, {part.state_bytes} of optimizer state"
        )
    lines += ["", "processes, in bytes:"]
    for rank, (on_device, on_host) in enumerate(plan.needs):
        held = plan.held(rank)
        lines.append(
            f"  {rank}: {held['weights']} of weights and {held['optimizer_state']} of optimizer state, dense part "
            f"included; needs {sum(on_host.values())} of host memory"
            + (f" and {sum(on_device.values())} of GPU memory" if on_device else "")
        )
    return "\n".join(lines) + "\n"


def size(n_bytes: float) -> str:
    """Bytes for people: "1.23 GB", in powers of a thousand."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB" if n_bytes < 999.5 else f"{n_bytes / 1000:,.4g} TB"


def listed(parts: Bytes) -> str:
    """What takes how much, without what takes nothing."""
    return ", ".join(f"{name} {size(taken)}" for name, taken in parts.items() if taken)


def _replicated(job: Job, memory: Memory) -> Plan:
    shards = [
        shard(job, name, rank, (0, 0), (table.num_embeddings, table.embedding_dim))
        for rank in range(job.world_size)
        for name, table in job.tables.items()
    ]
    return Plan(job, memory, shards, _needs(job, shards))


def _sharded(job: Job, memory: Memory, limits: Memory) -> Plan:
    """TorchRec's plan within `limits`; raises `PlannerError` where it finds none."""
    placed = place(job, limits)
    needs = _needs(job, placed.shards)
    return Plan(job, memory, placed.shards, needs, placed.sharding_plan, placed.sharding_types, placed.times)


def _needs(job: Job, shards: list[Shard]) -> list[tuple[Bytes, Bytes]]:
    """What each process needs; those that hold shards of the same sizes need the same."""
    of_rank: list[list[Shard]] = [[] for _ in range(job.world_size)]
    for part in shards:
        of_rank[part.rank].append(part)
    known: dict[tuple[tuple[str, int, int], ...], tuple[Bytes, Bytes]] = {}
    needs = []
    for parts in of_rank:
        key = tuple((part.table, part.n_rows, part.n_columns) for part in parts)
        if key not in known:
            known[key] = needed(job, parts)
        needs.append(known[key])
    return needs


def _place(plan: Plan, name: str) -> str:
    """A table's shape, and on how many processes it is."""
    table, n_processes = plan.job.tables[name], plan.job.world_size
    n_holders = len({part.rank for part in plan.shards if part.table == name})
    holders = counted(n_holders, "process") + ("" if n_holders == n_processes else f" of {n_processes:,}")
    is_copied = plan.job.mode == "ddp" and n_processes > 1
    layout = "a copy on each of" if is_copied else f"{_layout(plan, name).replace('_', '-')} on"
    if plan.job.n_groups > 1:
        layout = f"{_layout(plan, name).replace('_', '-')} in each of {plan.job.n_groups} groups, on"
    return f"{name} table {table.num_embeddings:,} x {table.embedding_dim}, {layout} {holders}"


def _layout(plan: Plan, name: str) -> str:
    return plan.sharding_types.get(name, "replicated")


def _table_line(plan: Plan, name: str) -> str:
    parts = sorted((part for part in plan.shards if part.table == name), key=lambda part: part.weight_bytes)
    table, smallest, largest = plan.job.tables[name], parts[0], parts[-1]
    shapes = _range(*(f"{part.n_rows:,} x {part.n_columns}" for part in (smallest, largest)))
    weights = _range(*(size(part.weight_bytes) for part in (smallest, largest)))
    state = _range(*(size(part.state_bytes) for part in (smallest, largest)))
    n_holders = len({part.rank for part in parts})
    return (
        f"  {name}: {table.num_embeddings:,} x {table.embedding_dim}, {_layout(plan, name)}, "
        f"{len(parts)} x [{shapes}] on {n_holders} of {counted(plan.job.world_size, 'process')}; "
        f"each {weights} of weights, {state} of optimizer state"
    )


def _range(smallest: str, largest: str) -> str:
    return largest if smallest == largest else f"{smallest} … {largest}"
