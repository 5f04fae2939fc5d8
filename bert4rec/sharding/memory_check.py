"""Refuse a job that does not fit into memory; warn of too few steps or negatives. Each with changes that help."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bert4rec.config.kinds import has_kernel, has_optimizer, needs_negatives, supports_column_sharding
from bert4rec.config.resolve import FEW_STEPS, MOST_SHARING
from bert4rec.runtime.arrays import Integers
from bert4rec.runtime.errors import SettingsError, format_bytes, pluralize
from bert4rec.runtime.memory import Memory
from bert4rec.sharding.footprint import Job
from bert4rec.sharding.plan import Plan, fitting_plan

OPTIONS = (  # those that a change of a field of the same name needs
    "--mode", "--training.loss", "--parallelism.sharding_type", "--parallelism.compute_kernel",
    "--parallelism.sparse_optimizer", "--parallelism.sharding_group_size", "--training.negatives_shared_by",
    "--training.n_train_negatives",
)  # fmt: skip
SHARDED = {"mode": "dmp", "sharding_type": "row_wise"}
MOST_PROCESSES = 1024
FACTORS = (2, 4, 8, 16, 32)  # divisors of a size, or multiples of the number of processes
SMALLER_OPTIMIZERS = ("rowwise_adagrad", "sgd")
KERNELS = ("fused_uvm_caching", "fused_uvm")
MOST_ADVICE = 4
SPARE = 0.95  # share of the memory that a suggested change may take, since free memory varies


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
                f"{format_bytes(sum(parts.values()))} of {name} per process "
                f"({format_bytes(parts[largest])} of it {largest}), {format_bytes(available)} available"
            )
    fitting = list(itertools.islice(fitting_changes(plan.job, plan.memory, min_len=min_len), MOST_ADVICE))
    advice = f"it fits with {'; or '.join(fitting)}" if fitting else "no change of a single setting makes it fit"
    raise SettingsError(f"this configuration needs {'; and '.join(lacking)}; {advice}")


def few_steps(n_windows: int, batch_size: int, world_size: int, *, unit: str = "window") -> str:
    """Return a warning, with advice, if an epoch of `n_windows` has fewer than `FEW_STEPS` steps; else ""."""
    n_steps = math.ceil(n_windows / (batch_size * world_size))
    if n_steps >= FEW_STEPS:
        return ""
    # The largest global batch with enough steps per epoch: all batches but the last are full.
    enough = max(1, math.ceil(n_windows / (FEW_STEPS - 1)) - 1)
    fewer, smaller = enough // batch_size, enough // world_size
    better = [pluralize(fewer, "process")] if 0 < fewer < world_size else []
    if 0 < smaller < batch_size:
        better.append(f"--training.per_device_train_batch_size={smaller}")
    if not better and world_size > 1:
        better.append(f"1 process with --training.per_device_train_batch_size={enough}")
    advice = f"; better: {' or '.join(better)}" if better else ""
    return (
        f"an epoch has only {pluralize(n_steps, 'step')}: {pluralize(n_windows, unit)} in batches of "
        f"{batch_size * world_size:,} ({pluralize(world_size, 'process')} x {batch_size:,}){advice}"
    )


def few_negatives(job: Job) -> str:
    """Return a warning, with advice, if many positions share each negative of a sampled loss; else ""."""
    n_processes = job.world_size if job.negatives_shared_by == "all" else min(job.negatives_shared_by, job.world_size)
    n_positions = n_processes * job.n_targets
    if not needs_negatives(job.loss) or n_positions <= MOST_SHARING * job.n_train_negatives:
        return ""
    most = job.n_items - 1
    better = [f"--training.n_train_negatives={min(n_positions, most)}"]
    if n_processes > 1:
        n = max(job.n_train_negatives, min(job.n_targets, most))
        better.insert(0, f"--training.negatives_shared_by=1 --training.n_train_negatives={n}")
    return (
        f"{pluralize(job.n_train_negatives, 'negative')} for up to {n_positions:,} positions to predict "
        f"({pluralize(n_processes, 'process')} x {job.n_targets:,}) can take several times as many steps to learn; "
        f"better: {' or '.join(better)}"
    )


def fitting_changes(job: Job, memory: Memory, *, min_len: int = 2) -> Iterator[str]:
    """Yield single changes of `job` that fit into `memory`, as options to type, with the memory of a process.

    Changes of the storage of tables come first, then changes of speed, then changes of the training's result.
    """
    spare = Memory(*(None if limit is None else int(SPARE * limit) for limit in (memory.host, memory.device)))
    for alternatives in _changes(job, spare, min_len):
        for typed, changed in alternatives:
            if typed and (plan := fitting_plan(changed, spare)):
                needs = " and ".join(
                    f"{format_bytes(sum(parts.values()))} of {name}" for name, _, parts, _ in plan.largest()
                )
                yield f"{typed} ({needs})"
                break


def _changes(job: Job, memory: Memory, min_len: int) -> Iterator[list[tuple[str, Job]]]:
    """Yield lists of alternatives (options to type, changed job); the first alternative that fits is suggested."""
    yield [_changed(job, SHARDED)]
    yield [_changed(job, {"sharding_group_size": 0})]
    kernels = [name for name in KERNELS if has_kernel(name, job.mode, job.device_type) and not job.sharding_group_size]
    yield [_changed(job, {"compute_kernel": name}) for name in kernels]
    batch_size = "--training.per_device_train_batch_size" if job.trains else "--evaluation.per_device_eval_batch_size"
    yield [(f"{batch_size}={n}", replace(job, batch_size=n)) for n in _smaller(job.batch_size)]
    yield _more_processes(job, memory)
    if not job.trains:
        return  # the model is given
    if job.prior:
        yield [("--model.prior=none", replace(job, prior=()))]
    if job.loss == "softmax" and job.n_train_negatives < job.n_items:
        yield [_changed(job, {"loss": "sampled_softmax"})]
    optimizers = [
        name for name in SMALLER_OPTIMIZERS if job.mode == "ddp" or supports_column_sharding(name, job.sharding_type)
    ]
    yield [_changed(job, {"sparse_optimizer": name}) for name in optimizers]
    if needs_negatives(job.loss):
        n, fewer = job.n_train_negatives, []
        if job.negatives_shared_by == "all" and job.world_size > 1:  # as many in total, each process draws its own
            fewer = [_changed(job, {"negatives_shared_by": 1, "n_train_negatives": math.ceil(n / job.world_size)})]
        yield fewer + [_changed(job, {"n_train_negatives": n}) for n in _smaller(n)]
    for name, least in (("max_len", min_len), ("embed_dim", 1)):
        multiple = 1 if name == "max_len" else math.lcm(4, job.model.get("n_heads", 1))
        values = [n for n in _smaller(job.model.get(name, 0)) if n >= least and n % multiple == 0]
        yield [(f"--model.{name}={n}", replace(job, model={**job.model, name: n})) for n in values]


def _changed(job: Job, fields: Mapping[str, Any]) -> tuple[str, Job]:
    """Return the options to type for a job with other `fields`, and the job, with an optimizer that it supports."""
    changed = replace(job, **fields)
    name = changed.sparse_optimizer
    is_slow = name == "adam" and changed.mode == "dmp" and job.device_type == "cpu" and needs_negatives(changed.loss)
    if is_slow or not all(has_optimizer(name, updates, job.device_type) for updates in changed.updates.values()):
        changed = replace(changed, sparse_optimizer="rowwise_adagrad")  # Adam on CPU updates all rows at each step
    old, new = ([f"{option}={getattr(each, option.split('.')[-1].strip('-'))}" for option in OPTIONS]
                for each in (job, changed))  # fmt: skip
    return " ".join(typed for typed, before in zip(new, old, strict=True) if typed != before), changed


def _more_processes(job: Job, memory: Memory) -> list[tuple[str, Job]]:
    """Return sharded jobs on more hosts; none if sharding alone suffices, or for a fixed group size."""
    if job.sharding_group_size:
        return []  # the memory of a group does not depend on the number of groups
    typed = ""
    if job.mode == "ddp":
        typed, job = _changed(job, SHARDED)
        if fitting_plan(job, memory):
            return []
        typed += " on "
    text = f"{typed}{{}} processes, {job.local_world_size} a host as large as now"
    numbers = [factor * job.world_size for factor in FACTORS if factor * job.world_size <= MOST_PROCESSES]
    return [(text.format(n), replace(job, world_size=n)) for n in numbers]


def _smaller(value: int) -> list[int]:
    """Return `value` divided by each of `FACTORS`, rounded down, without zeros."""
    return [value // factor for factor in FACTORS if value >= factor]


def load_imbalance(job: Job, popularity: Integers) -> float:
    """Return the load imbalance: rows served by the busiest process in a step over the group's mean; at least 1.

    `popularity` [n_items] counts the training positions of each item. A batch looks up an item at most once, with the
    probability 1 - (1 - p)^n for n positions drawn in proportion to popularity. The same holds for the targets of a
    sampled loss; its negatives are assumed to be evenly distributed. Takes memory for the rows of a process.
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
