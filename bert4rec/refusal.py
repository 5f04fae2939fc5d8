"""A job that cannot fit is refused with one line: the figures, and what would fit by the same formulas."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bert4rec.errors import SettingsError
from bert4rec.footprint import Job
from bert4rec.plan import Memory, Plan, fitting_plan, listed, size

MOST_PROCESSES = 1024  # no cluster larger than this is thought of
SMALLER_OPTIMIZERS = ("rowwise_adagrad", "sgd")


def refuse_unless_it_fits(plan: Plan) -> None:
    """Raises `SettingsError` where a process would need more memory than there is for it."""
    if plan.fits:
        return
    lacking = [
        f"{size(sum(parts.values()))} of {name} where there are {size(there_is)} ({listed(parts)})"
        for name, _, parts, there_is in plan.largest()
        if there_is is not None and sum(parts.values()) > there_is
    ]
    fitting = list(what_fits(plan.job, plan.memory))
    advice = f"what fits: {'; '.join(fitting)}" if fitting else "no change of a single setting makes it fit"
    raise SettingsError(f"the plan does not fit: a process needs {' and '.join(lacking)}; {advice}")


def what_fits(job: Job, memory: Memory) -> Iterator[str]:
    """Single changes of `job` that fit into `memory`, as they are typed, each with what a process then needs."""
    for typed, changed in _changes(job):
        if plan := fitting_plan(changed, memory):
            yield f"{typed} ({_most(plan)})"
    if job.mode == "dmp":
        yield from _more_processes(job, memory)
    elif not fitting_plan(_sharded(job), memory):
        yield from (f"--mode=dmp on {text}" for text in _more_processes(_sharded(job), memory))
    yield from _narrower(job, memory)


def _changes(job: Job) -> Iterator[tuple[str, Job]]:
    """What can be typed, and the job that it makes."""
    if job.mode == "ddp":
        yield "--mode=dmp", _sharded(job)
    elif job.sharding_type != "row_wise":
        yield "--parallelism.sharding_type=row_wise", replace(job, sharding_type="row_wise")
    if job.loss == "softmax":
        yield _sampled(job)
    if job.mode == "dmp" and job.device_type == "cuda":
        for kernel in ("fused_uvm_caching", "fused_uvm"):
            if kernel != job.compute_kernel:
                yield f"--parallelism.compute_kernel={kernel}", replace(job, compute_kernel=kernel)
    for optimizer in SMALLER_OPTIMIZERS:
        another_algorithm = optimizer == "rowwise_adagrad" and job.sharding_type == "column_wise"
        if optimizer != job.sparse_optimizer and not (job.mode == "dmp" and another_algorithm):
            yield f"--parallelism.sparse_optimizer={optimizer}", replace(job, sparse_optimizer=optimizer)


def _sharded(job: Job) -> Job:
    """The job in `dmp`, row-wise."""
    return _with_optimizer_that_is_there(replace(job, mode="dmp", sharding_type="row_wise"))


def _sampled(job: Job) -> tuple[str, Job]:
    """The job with a loss that does not score the whole catalogue, and what is typed for it."""
    typed = "--training.loss=sampled_softmax"
    changed = _with_optimizer_that_is_there(replace(job, loss="sampled_softmax"))
    if changed.sparse_optimizer != job.sparse_optimizer:
        typed += f" --parallelism.sparse_optimizer={changed.sparse_optimizer}"
    return typed, changed


def _with_optimizer_that_is_there(job: Job) -> Job:
    """On CPU there is no fused Adam; the optimizers of replicated tables and of trained shards are ordinary ones."""
    is_fused = job.mode == "dmp" and not job.trains_shards
    if job.device_type == "cpu" and job.sparse_optimizer == "adam" and is_fused:
        return replace(job, sparse_optimizer="rowwise_adagrad")
    return job


def _more_processes(job: Job, memory: Memory) -> Iterator[str]:
    """The smallest number of processes with the same memory that suffices, in whole hosts of as many as now."""
    step = job.local_world_size
    counts = range(job.world_size + step, MOST_PROCESSES + 1, step)
    if plan := _first_that_fits(counts, lambda n: fitting_plan(replace(job, world_size=n), memory)):
        yield f"{plan.job.world_size} processes, {step} a host as large as now ({_most(plan)})"


def _narrower(job: Job, memory: Memory) -> Iterator[str]:
    """The largest embed_dim below the present one that suffices: a multiple of 4 that the heads divide."""
    multiple = math.lcm(4, int(job.model["n_heads"]))
    dims = range((int(job.model["embed_dim"]) - 1) // multiple * multiple, 0, -multiple)

    def planned(dim: int) -> Plan | None:
        return fitting_plan(replace(job, model={**job.model, "embed_dim": dim}), memory)

    if plan := _first_that_fits(dims, planned):
        yield f"--model.embed_dim={plan.job.model['embed_dim']} ({_most(plan)})"


def _first_that_fits(choices: Sequence[int], planned: Callable[[int], Plan | None]) -> Plan | None:
    """The plan of the first of `choices` that fits.

    It is looked for in growing strides and then between two of them: from some number of processes on the need
    grows again, so the last choice says nothing of those before it.
    """
    if not choices:
        return None
    below, above = -1, 0
    while (best := planned(choices[above])) is None:
        if above == len(choices) - 1:
            return None
        below, above = above, min(2 * above + 1, len(choices) - 1)
    while above - below > 1:
        middle = (below + above) // 2
        if plan := planned(choices[middle]):
            above, best = middle, plan
        else:
            below = middle
    return best


def _most(plan: Plan) -> str:
    """What the process that needs most then needs."""
    return " and ".join(f"{size(sum(parts.values()))} of {name}" for name, _, parts, _ in plan.largest())
