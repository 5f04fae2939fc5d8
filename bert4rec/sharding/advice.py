"""Messages for a job of the wrong size: the figures, and what would be better, tried by the same formulas.

A job that needs more memory than there is is refused; one with too few steps for its processes is warned of.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bert4rec.config.abilities import has_kernel, has_optimizer, keeps_its_arithmetic, needs_negatives
from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.memory import Memory
from bert4rec.runtime.wording import counted
from bert4rec.sharding.footprint import Bytes, Job
from bert4rec.sharding.plan import Plan, fitting_plan, size

OPTIONS = {
    "mode": "--mode", "loss": "--training.loss", "sharding_type": "--parallelism.sharding_type",
    "compute_kernel": "--parallelism.compute_kernel", "sparse_optimizer": "--parallelism.sparse_optimizer",
    "sharding_group_size": "--parallelism.sharding_group_size",
    "sync_every_n_steps": "--parallelism.sync_every_n_steps",
}  # fmt: skip
ONE_GROUP = {"sharding_group_size": 0, "sync_every_n_steps": 1}
SHARDED = {"mode": "dmp", "sharding_type": "row_wise"}
MOST_PROCESSES = 1024  # no larger cluster is considered
SMALLER_OPTIMIZERS = ("rowwise_adagrad", "sgd")
KERNELS = ("fused_uvm_caching", "fused_uvm")
MOST_ADVICE = 4  # suggestions in one line
SPARE = 0.95  # of the memory: what a smaller batch or length may take, since free memory comes and goes
FEW_STEPS = 5  # in an epoch; fewer teach little


def refuse_unless_it_fits(plan: Plan, *, min_len: int = 2) -> None:
    """Raises `SettingsError` where a process would need more memory than is available for it.

    `min_len` is the least that model.max_len may be with the other settings.
    """
    if plan.fits:
        return
    lacking = [
        f"{size(sum(parts.values()))} of {name} per process ({_largest(parts)}), {size(available)} available"
        for name, _, parts, available in plan.largest()
        if available is not None and sum(parts.values()) > available
    ]
    fitting = list(itertools.islice(fitting_changes(plan.job, plan.memory, min_len=min_len), MOST_ADVICE))
    advice = f"it fits with {'; or '.join(fitting)}" if fitting else "no change of a single setting makes it fit"
    raise SettingsError(f"this configuration needs {'; and '.join(lacking)}; {advice}")


def few_steps(n_windows: int, batch_size: int, world_size: int, *, unit: str = "window") -> str:
    """A warning where an epoch of `n_windows` has too few steps of `batch_size` windows a process; else "".

    With what would give it more: fewer processes, or smaller batches, or both.
    """

    def n_steps(batch_size: int, world_size: int) -> int:
        return math.ceil(n_windows / (batch_size * world_size))

    def largest_batch(world_size: int) -> int:
        return next((n for n in _round_numbers(batch_size) if n_steps(n, world_size) >= FEW_STEPS), 0)

    if n_steps(batch_size, world_size) >= FEW_STEPS:
        return ""
    fewer = next((n for n in range(world_size - 1, 0, -1) if n_steps(batch_size, n) >= FEW_STEPS), 0)
    better = [counted(fewer, "process")] if fewer else []
    if smaller := largest_batch(world_size):
        better.append(f"--training.per_device_train_batch_size={smaller}")
    if not better and world_size > 1:
        better.append(f"1 process with --training.per_device_train_batch_size={largest_batch(1) or 1}")
    advice = f"; better: {' or '.join(better)}" if better else ""
    steps, windows = counted(n_steps(batch_size, world_size), "step"), counted(n_windows, unit)
    return (
        f"an epoch has only {steps}: {windows} in batches of {batch_size * world_size:,} "
        f"({counted(world_size, 'process')} x {batch_size:,}){advice}"
    )


def fitting_changes(job: Job, memory: Memory, *, min_len: int = 2) -> Iterator[str]:
    """Single changes of `job` that fit into `memory`, as they are typed, each with what a process then needs.

    Those come first that change least: where the tables are, then how fast it goes, then what is learnt.
    """
    kernels = [{"compute_kernel": name} for name in KERNELS if has_kernel(name, job.mode, job.device_type)]
    kernels = [] if job.sharding_group_size else kernels
    optimizers = [
        {"sparse_optimizer": name}
        for name in SMALLER_OPTIMIZERS
        if job.mode == "ddp" or keeps_its_arithmetic(name, job.sharding_type)
    ]
    has_smaller_loss = job.loss == "softmax" and job.n_train_negatives < job.n_items
    lengths = [n for n in _round_numbers(job.model.get("max_len", 0)) if n >= min_len]
    multiple = math.lcm(4, job.model.get("n_heads", 1))  # of every width
    widths = range((job.model["embed_dim"] - 1) // multiple * multiple, 0, -multiple)
    yield from _fitting(job, memory, [SHARDED, ONE_GROUP])
    yield from itertools.islice(_fitting(job, memory, kernels), 1)
    batch_size = "--training.per_device_train_batch_size" if job.trains else "--evaluation.per_device_eval_batch_size"
    yield from _first_fitting(
        f"{batch_size}={{}}", _round_numbers(job.batch_size),
        lambda n: replace(job, batch_size=n), _most_of(memory),
    )  # fmt: skip
    yield from _more_processes(job, memory)
    if not job.trains:
        return  # what is learnt is learnt
    yield from _fitting(job, memory, [{"loss": "sampled_softmax"}] if has_smaller_loss else [])
    yield from itertools.islice(_fitting(job, memory, optimizers), 1)
    yield from _fewer_negatives(job, memory) if needs_negatives(job.loss) else []
    yield from _first_fitting(
        "--model.max_len={}, the dataset prepared again with it", lengths,
        lambda n: replace(job, model={**job.model, "max_len": n}), _most_of(memory),
    )  # fmt: skip
    yield from _first_fitting(
        "--model.embed_dim={}", widths, lambda n: replace(job, model={**job.model, "embed_dim": n}), memory
    )


def _fitting(job: Job, memory: Memory, changes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Those of the `changes`, by field, that fit."""
    for fields in changes:
        typed, changed = _changed(job, fields)
        if typed and (plan := fitting_plan(changed, memory)):
            yield f"{typed} ({_most(plan)})"


def _changed(job: Job, fields: Mapping[str, Any]) -> tuple[str, Job]:
    """What is typed for a job with other `fields`, and the job; with an optimizer that can update its tables."""
    changed = replace(job, **fields)
    name = changed.sparse_optimizer
    is_slow = name == "adam" and changed.mode == "dmp" and job.device_type == "cpu" and needs_negatives(changed.loss)
    if is_slow or not all(has_optimizer(name, updates, job.device_type) for updates in changed.updates.values()):
        changed = replace(changed, sparse_optimizer="rowwise_adagrad")  # Adam on CPU passes over all rows at each step
    values = ((option, getattr(job, name), getattr(changed, name)) for name, option in OPTIONS.items())
    return " ".join(f"{option}={new}" for option, old, new in values if new != old), changed


def _more_processes(job: Job, memory: Memory) -> Iterator[str]:
    """The smallest number of processes with the same memory that suffices, in whole hosts of as many as now."""
    text = f"{{}} processes, {job.local_world_size} a host as large as now"
    if job.mode == "ddp":
        typed, job = _changed(job, SHARDED)
        if fitting_plan(job, memory):
            return  # with as many as now
        text = f"{typed} on {text}"
    if job.sharding_group_size:
        return  # a group holds what it holds, however many there are
    groups = 1 if job.negatives_shared_by == "all" else job.negatives_shared_by  # none may be left with too few
    step = math.lcm(job.local_world_size, groups)
    counts = range(job.world_size + step, MOST_PROCESSES + 1, step)
    yield from _first_fitting(text, counts, lambda n: replace(job, world_size=n), memory)


def _fewer_negatives(job: Job, memory: Memory) -> Iterator[str]:
    """Fewer negatives for a process: as many in all, where the processes can draw their own; else fewer in all."""
    if job.negatives_shared_by == "all" and job.world_size > 1:
        own = replace(job, n_train_negatives=math.ceil(job.n_train_negatives / job.world_size), negatives_shared_by=1)
        if plan := fitting_plan(own, memory):
            changes = f"--training.negatives_shared_by=1 --training.n_train_negatives={own.n_train_negatives}"
            yield f"{changes} ({_most(plan)})"
            return
    yield from _first_fitting(
        "--training.n_train_negatives={}", _round_numbers(job.n_train_negatives),
        lambda n: replace(job, n_train_negatives=n), _most_of(memory),
    )  # fmt: skip


def _round_numbers(below: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24 and so on, the largest first."""
    numbers = {n for power in range(below.bit_length()) for n in (2**power, 3 * 2**power // 2)}
    return sorted((n for n in numbers if n < below), reverse=True)


def _most_of(memory: Memory) -> Memory:
    """Without what other programs may take until the job is started again."""
    return Memory(*(None if limit is None else int(SPARE * limit) for limit in (memory.host, memory.device)))


def _first_fitting(text: str, numbers: Sequence[int], changed: Callable[[int], Job], memory: Memory) -> Iterator[str]:
    """The first of `numbers` whose job fits, in the place of the {} in `text`.

    The search takes growing strides, then goes between two of them: from some number of processes on the need
    grows again, so the last number says nothing of those before it.
    """
    below, above = -1, 0
    while above < len(numbers) and not (plan := fitting_plan(changed(numbers[above]), memory)):
        below, above = above, max(above + 1, min(2 * above + 1, len(numbers) - 1))
    if above >= len(numbers):
        return
    assert plan is not None
    while above - below > 1:
        middle = (below + above) // 2
        if better := fitting_plan(changed(numbers[middle]), memory):
            above, plan = middle, better
        else:
            below = middle
    yield f"{text.format(numbers[above])} ({_most(plan)})"


def _most(plan: Plan) -> str:
    """What the process that needs most then needs."""
    return " and ".join(f"{size(sum(parts.values()))} of {name}" for name, _, parts, _ in plan.largest())


def _largest(parts: Bytes) -> str:
    """What takes most of it."""
    name, taken = max(parts.items(), key=lambda part: part[1])
    return f"{size(taken)} of it {name}"
