"""Refuse a job that needs more memory than there is, and warn of too few steps; with changes that are known to help."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bert4rec.config.kinds import has_kernel, has_optimizer, needs_negatives, supports_column_sharding
from bert4rec.runtime.errors import SettingsError, pluralize
from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import Job
from bert4rec.sharding.plan import Plan, fitting_plan, size

OPTIONS = {
    "mode": "--mode",
    "loss": "--training.loss",
    "sharding_type": "--parallelism.sharding_type",
    "compute_kernel": "--parallelism.compute_kernel",
    "sparse_optimizer": "--parallelism.sparse_optimizer",
    "sharding_group_size": "--parallelism.sharding_group_size",
    "negatives_shared_by": "--training.negatives_shared_by",
    "n_train_negatives": "--training.n_train_negatives",
}
SHARDED = {"mode": "dmp", "sharding_type": "row_wise"}
MOST_PROCESSES = 1024
SMALLER_OPTIMIZERS = ("rowwise_adagrad", "sgd")
KERNELS = ("fused_uvm_caching", "fused_uvm")
MOST_ADVICE = 4
SPARE = 0.95  # part of the memory that a smaller size may take, since free memory varies
FEW_STEPS = 5  # of an epoch


def refuse_unless_it_fits(plan: Plan, *, min_len: int = 2) -> None:
    """Raise `SettingsError` if a process needs more memory than is available to it.

    `min_len` is the smallest valid model.max_len with the other settings.
    """
    if plan.fits:
        return
    lacking = []
    for name, _, parts, available in plan.largest():
        if available is not None and sum(parts.values()) > available:
            largest = max(parts, key=parts.__getitem__)
            lacking.append(
                f"{size(sum(parts.values()))} of {name} per process ({size(parts[largest])} of it {largest}), "
                f"{size(available)} available"
            )
    fitting = list(itertools.islice(fitting_changes(plan.job, plan.memory, min_len=min_len), MOST_ADVICE))
    advice = f"it fits with {'; or '.join(fitting)}" if fitting else "no change of a single setting makes it fit"
    raise SettingsError(f"this configuration needs {'; and '.join(lacking)}; {advice}")


def few_steps(n_windows: int, batch_size: int, world_size: int, *, unit: str = "window") -> str:
    """Return a warning, with advice, if an epoch of `n_windows` has fewer than `FEW_STEPS` steps; else ""."""

    def n_steps(batch_size: int, world_size: int) -> int:
        return math.ceil(n_windows / (batch_size * world_size))

    def smaller_batch(world_size: int) -> int:
        return next((n for n in _round_numbers(batch_size) if n_steps(n, world_size) >= FEW_STEPS), 0)

    if n_steps(batch_size, world_size) >= FEW_STEPS:
        return ""
    fewer = next((n for n in range(world_size - 1, 0, -1) if n_steps(batch_size, n) >= FEW_STEPS), 0)
    better = [pluralize(fewer, "process")] if fewer else []
    if smaller := smaller_batch(world_size):
        better.append(f"--training.per_device_train_batch_size={smaller}")
    if not better and world_size > 1:
        better.append(f"1 process with --training.per_device_train_batch_size={smaller_batch(1) or 1}")
    advice = f"; better: {' or '.join(better)}" if better else ""
    steps, windows = pluralize(n_steps(batch_size, world_size), "step"), pluralize(n_windows, unit)
    return (
        f"an epoch has only {steps}: {windows} in batches of {batch_size * world_size:,} "
        f"({pluralize(world_size, 'process')} x {batch_size:,}){advice}"
    )


def fitting_changes(job: Job, memory: Memory, *, min_len: int = 2) -> Iterator[str]:
    """Yield single changes of `job` that fit into `memory`, as they are typed, with the memory of a process.

    First changes of where tables are stored, then of the speed, then of what is learned.
    """
    spare = Memory(*(None if limit is None else int(SPARE * limit) for limit in (memory.host, memory.device)))
    batch_size = "--training.per_device_train_batch_size" if job.trains else "--evaluation.per_device_eval_batch_size"
    yield from _first(memory, [_changed(job, SHARDED)])
    yield from _first(memory, [_changed(job, {"sharding_group_size": 0})])
    kernels = [name for name in KERNELS if has_kernel(name, job.mode, job.device_type) and not job.sharding_group_size]
    yield from _first(memory, (_changed(job, {"compute_kernel": name}) for name in kernels))
    smaller = ((f"{batch_size}={n}", replace(job, batch_size=n)) for n in _round_numbers(job.batch_size))
    yield from _first(spare, smaller)
    yield from _first(memory, _more_processes(job, memory))
    if not job.trains:
        return  # the model is given
    if job.loss == "softmax" and job.n_train_negatives < job.n_items:
        yield from _first(memory, [_changed(job, {"loss": "sampled_softmax"})])
    optimizers = [
        name for name in SMALLER_OPTIMIZERS if job.mode == "ddp" or supports_column_sharding(name, job.sharding_type)
    ]
    yield from _first(memory, (_changed(job, {"sparse_optimizer": name}) for name in optimizers))
    if needs_negatives(job.loss):
        n, own = job.n_train_negatives, []
        if job.negatives_shared_by == "all" and job.world_size > 1:  # as many in all, drawn by each process
            own = [_changed(job, {"negatives_shared_by": 1, "n_train_negatives": math.ceil(n / job.world_size)})]
        fewer = (_changed(job, {"n_train_negatives": n}) for n in _round_numbers(n))
        yield from _first(spare, itertools.chain(own, fewer))
    for name, least in (("max_len", min_len), ("embed_dim", 1)):
        multiple = 1 if name == "max_len" else math.lcm(4, job.model.get("n_heads", 1))
        values = [n for n in _round_numbers(job.model.get(name, 0)) if n >= least and n % multiple == 0]
        yield from _first(spare, ((f"--model.{name}={n}", replace(job, model={**job.model, name: n})) for n in values))


def _first(memory: Memory, changes: Iterable[tuple[str, Job]]) -> Iterator[str]:
    """Yield the first of `changes` (what is typed, the changed job) that fits, with the memory of a process."""
    for typed, job in changes:
        if typed and (plan := fitting_plan(job, memory)):
            needs = " and ".join(f"{size(sum(parts.values()))} of {name}" for name, _, parts, _ in plan.largest())
            yield f"{typed} ({needs})"
            return


def _changed(job: Job, fields: Mapping[str, Any]) -> tuple[str, Job]:
    """Return what is typed for a job with other `fields`, and the job; with an optimizer that can update its tables."""
    changed = replace(job, **fields)
    name = changed.sparse_optimizer
    is_slow = name == "adam" and changed.mode == "dmp" and job.device_type == "cpu" and needs_negatives(changed.loss)
    if is_slow or not all(has_optimizer(name, updates, job.device_type) for updates in changed.updates.values()):
        changed = replace(changed, sparse_optimizer="rowwise_adagrad")  # Adam on CPU updates all rows at each step
    values = ((option, getattr(job, name), getattr(changed, name)) for name, option in OPTIONS.items())
    return " ".join(f"{option}={new}" for option, old, new in values if new != old), changed


def _more_processes(job: Job, memory: Memory) -> Iterator[tuple[str, Job]]:
    """Yield jobs on 2, 3, 4, 6, 8, 12, … times as many hosts as now."""
    text = f"{{}} processes, {job.local_world_size} a host as large as now"
    if job.mode == "ddp":
        typed, job = _changed(job, SHARDED)
        if fitting_plan(job, memory):
            return  # the present processes suffice
        text = f"{typed} on {text}"
    if job.sharding_group_size:
        return  # the memory of a group does not depend on the number of groups
    groups = 1 if job.negatives_shared_by == "all" else job.negatives_shared_by
    step = math.lcm(job.local_world_size, groups)
    first = job.world_size // step + 1
    hosts = sorted({max(first, job.world_size * factor // step) for factor in _round_numbers(2 * MOST_PROCESSES)})
    for n in (step * n for n in hosts):
        if n > MOST_PROCESSES:
            return
        yield text.format(n), replace(job, world_size=n)


def _round_numbers(below: int) -> list[int]:
    """Return the numbers 1, 2, 3, 4, 6, 8, 12, 16, … smaller than `below`, the largest first."""
    numbers = {n for power in range(below.bit_length()) for n in (2**power, 3 * 2**power // 2)}
    return sorted((n for n in numbers if n < below), reverse=True)


def load_imbalance(job: Job, popularity: npt.NDArray[np.integer]) -> float:
    """Return the load imbalance: rows served by the busiest process in a step over the group's mean; at least 1.

    `popularity` [n_items] counts how often each item comes. A batch asks for an item once, however often it comes: with
    the probability 1 - (1 - p)^n, for n positions that are drawn in proportion to it. So do the targets of a loss
    against negatives, which themselves are taken for even. Takes memory for the rows of a process.
    """
    rows_per_process = -(-job.tables["item"].num_embeddings // job.group_size)
    total = max(1, int(popularity.sum(dtype=np.int64)))
    n_drawn = [job.built.lookups_per_step(n_positions=job.n_positions, n_candidates=0)["item"]]
    if needs_negatives(job.loss):
        n_drawn.append(job.n_targets)
    loads = np.zeros(job.group_size)
    for process in range(job.group_size):
        p = popularity[process * rows_per_process : (process + 1) * rows_per_process] / total
        loads[process] = sum(-np.expm1(n * np.log1p(-np.minimum(p, 1 - 1e-12))).sum() for n in n_drawn)
    if needs_negatives(job.loss):
        loads += job.n_train_negatives / job.group_size
    return float(loads.max() / loads.mean()) if loads.any() else 1.0
