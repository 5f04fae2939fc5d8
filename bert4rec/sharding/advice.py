"""What is said of a job of the wrong size: the figures, and what would be better, tried by the same formulas.

A job that needs more memory than there is is refused; one with too few steps for its processes is warned of.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bert4rec.config.abilities import has_kernel, has_optimizer, keeps_its_arithmetic, needs_negatives
from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.memory import Memory
from bert4rec.runtime.wording import counted
from bert4rec.sharding.footprint import Bytes, Job
from bert4rec.sharding.plan import Plan, fitting_plan, size

MOST_PROCESSES = 1024  # no cluster larger than this is thought of
SMALLER_OPTIMIZERS = ("rowwise_adagrad", "sgd")
KERNELS = ("fused_uvm_caching", "fused_uvm")
MOST_ADVICE = 4  # suggestions in one line
SPARE = 0.95  # of the memory there is: what a smaller batch or length may take, since free memory comes and goes
FEW_STEPS = 5  # in an epoch; fewer teach little


def refuse_unless_it_fits(plan: Plan, *, min_len: int = 2) -> None:
    """Raises `SettingsError` where a process would need more memory than there is for it.

    `min_len` is the least that model.max_len may be with the other settings.
    """
    if plan.fits:
        return
    lacking = [
        f"{size(sum(parts.values()))} of {name} per process ({_largest(parts)}), {size(there_is)} available"
        for name, _, parts, there_is in plan.largest()
        if there_is is not None and sum(parts.values()) > there_is
    ]
    fitting = list(itertools.islice(what_fits(plan.job, plan.memory, min_len=min_len), MOST_ADVICE))
    advice = f"it fits with {'; or '.join(fitting)}" if fitting else "no change of a single setting makes it fit"
    raise SettingsError(f"this configuration needs {'; and '.join(lacking)}; {advice}")


def few_steps(n_windows: int, batch_size: int, world_size: int) -> str:
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
    steps, windows = counted(n_steps(batch_size, world_size), "step"), counted(n_windows, "window")
    return (
        f"an epoch has only {steps}: {windows} in batches of {batch_size * world_size:,} "
        f"({counted(world_size, 'process')} x {batch_size:,}){advice}"
    )


def what_fits(job: Job, memory: Memory, *, min_len: int = 2) -> Iterator[str]:
    """Single changes of `job` that fit into `memory`, as they are typed, each with what a process then needs.

    Those come first that change least: where things stand, then how fast it goes, then what is learnt.
    """
    lengths = [n for n in _round_numbers(job.model["max_len"]) if n >= min_len]
    multiple = math.lcm(4, job.model["n_heads"])  # of every width
    widths = range((job.model["embed_dim"] - 1) // multiple * multiple, 0, -multiple)
    yield from _fitting(_other_shards(job), memory)
    yield from itertools.islice(_fitting(_other_kernels(job), memory), 1)
    yield from _first_fitting(
        "--training.per_device_train_batch_size={}", _round_numbers(job.batch_size),
        lambda n: replace(job, batch_size=n), _most_of(memory),
    )  # fmt: skip
    if job.mode == "dmp":
        yield from _more_processes(job, memory)
    else:
        typed, sharded = _sharded(job)
        if not fitting_plan(sharded, memory):
            yield from (f"{typed} on {text}" for text in _more_processes(sharded, memory))
    yield from _fitting(_sampled(job), memory)
    yield from itertools.islice(_fitting(_other_optimizers(job), memory), 1)
    yield from _first_fitting(
        "--model.max_len={}, the dataset prepared again with it", lengths,
        lambda n: replace(job, model={**job.model, "max_len": n}), _most_of(memory),
    )  # fmt: skip
    yield from _first_fitting(
        "--model.embed_dim={}", widths, lambda n: replace(job, model={**job.model, "embed_dim": n}), memory
    )


def _fitting(changes: Iterator[tuple[str, Job]], memory: Memory) -> Iterator[str]:
    for typed, changed in changes:
        if plan := fitting_plan(changed, memory):
            yield f"{typed} ({_most(plan)})"


def _other_shards(job: Job) -> Iterator[tuple[str, Job]]:
    """What can be typed for another layout of the item table, and the job that it makes."""
    if job.mode == "ddp":
        yield _sharded(job)
    elif job.sharding_type != "row_wise":
        yield "--parallelism.sharding_type=row_wise", replace(job, sharding_type="row_wise")


def _other_kernels(job: Job) -> Iterator[tuple[str, Job]]:
    for kernel in KERNELS:
        if has_kernel(kernel, job.mode, job.device_type) and kernel != job.compute_kernel:
            yield f"--parallelism.compute_kernel={kernel}", replace(job, compute_kernel=kernel)


def _other_optimizers(job: Job) -> Iterator[tuple[str, Job]]:
    for optimizer in SMALLER_OPTIMIZERS:
        is_the_same = job.mode == "ddp" or keeps_its_arithmetic(optimizer, job.sharding_type)
        if optimizer != job.sparse_optimizer and is_the_same:
            yield f"--parallelism.sparse_optimizer={optimizer}", replace(job, sparse_optimizer=optimizer)


def _sharded(job: Job) -> tuple[str, Job]:
    """The job in `dmp`, row-wise, and what is typed for it."""
    return _typed("--mode=dmp", job, replace(job, mode="dmp", sharding_type="row_wise"))


def _sampled(job: Job) -> Iterator[tuple[str, Job]]:
    """The job with a loss that does not score the whole catalogue, and what is typed for it."""
    if not needs_negatives(job.loss) and job.n_train_negatives < job.n_items:
        yield _typed("--training.loss=sampled_softmax", job, replace(job, loss="sampled_softmax"))


def _typed(option: str, job: Job, changed: Job) -> tuple[str, Job]:
    """The `changed` job with an optimizer that is there, and the `option` with what else is typed for that."""
    changed = _with_optimizer_that_is_there(changed)
    if changed.sharding_type != job.sharding_type:
        option += f" --parallelism.sharding_type={changed.sharding_type}"
    if changed.sparse_optimizer != job.sparse_optimizer:
        option += f" --parallelism.sparse_optimizer={changed.sparse_optimizer}"
    return option, changed


def _with_optimizer_that_is_there(job: Job) -> Job:
    """On CPU there is no fused Adam; the optimizers of replicated tables and of trained shards are ordinary ones."""
    is_there = all(has_optimizer(job.sparse_optimizer, way, job.device_type) for way in job.updates.values())
    return job if is_there else replace(job, sparse_optimizer="rowwise_adagrad")


def _more_processes(job: Job, memory: Memory) -> Iterator[str]:
    """The smallest number of processes with the same memory that suffices, in whole hosts of as many as now."""
    step = job.local_world_size
    counts = range(job.world_size + step, MOST_PROCESSES + 1, step)
    text = f"{{}} processes, {step} a host as large as now"
    yield from _first_fitting(text, counts, lambda n: replace(job, world_size=n), memory)


def _round_numbers(below: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24 and so on, the largest first."""
    numbers = {n for power in range(below.bit_length()) for n in (2**power, 3 * 2**power // 2)}
    return sorted((n for n in numbers if n < below), reverse=True)


def _most_of(memory: Memory) -> Memory:
    """Without what other programs may take until the job is started again."""
    host, device = (None if there_is is None else int(SPARE * there_is) for there_is in (memory.host, memory.device))
    return Memory(host=host, device=device)


def _first_fitting(text: str, numbers: Sequence[int], changed: Callable[[int], Job], memory: Memory) -> Iterator[str]:
    """The first of `numbers` whose job fits, in the place of the {} in `text`.

    It is looked for in growing strides and then between two of them: from some number of processes on the need
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
