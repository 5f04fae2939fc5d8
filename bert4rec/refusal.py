"""A job that cannot fit is refused with one line: the figures, and what would fit by the same formulas."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from bert4rec.errors import SettingsError
from bert4rec.footprint import Job
from bert4rec.plan import Memory, Plan, listed, make_plan, size

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
        plan = make_plan(changed, memory)
        if plan.fits:
            yield f"{typed} ({_most(plan)})"
    if job.mode == "dmp":
        yield from _more_processes(job, memory)
    elif not make_plan(_sharded(job), memory).fits:
        yield from (f"--mode=dmp on {text}" for text in _more_processes(_sharded(job), memory))
    yield from _narrower(job, memory)


def _changes(job: Job) -> Iterator[tuple[str, Job]]:
    """What can be typed, and the job that it makes."""
    if job.mode == "ddp":
        yield "--mode=dmp", _sharded(job)
    elif job.sharding_type != "row_wise":
        yield "--parallelism.sharding_type=row_wise", replace(job, sharding_type="row_wise")
    if job.mode == "dmp" and job.device_type == "cuda":
        for kernel in ("fused_uvm_caching", "fused_uvm"):
            if kernel != job.compute_kernel:
                yield f"--parallelism.compute_kernel={kernel}", replace(job, compute_kernel=kernel)
    for optimizer in SMALLER_OPTIMIZERS:
        another_algorithm = optimizer == "rowwise_adagrad" and job.sharding_type == "column_wise"
        if optimizer != job.sparse_optimizer and not (job.mode == "dmp" and another_algorithm):
            yield f"--parallelism.sparse_optimizer={optimizer}", replace(job, sparse_optimizer=optimizer)


def _sharded(job: Job) -> Job:
    """The job in `dmp`, row-wise, with an optimizer that is there fused."""
    optimizer = job.sparse_optimizer
    if job.device_type == "cpu" and optimizer == "adam":
        optimizer = "rowwise_adagrad"
    return replace(job, mode="dmp", sharding_type="row_wise", sparse_optimizer=optimizer)


def _more_processes(job: Job, memory: Memory) -> Iterator[str]:
    """The smallest number of processes with the same memory that suffices, in whole hosts of as many as now."""
    step = job.local_world_size
    counts = range(-(-(job.world_size + 1) // step) * step, MOST_PROCESSES + 1, step)
    n_processes = _first_that_fits(list(counts), lambda n: make_plan(replace(job, world_size=n), memory))
    if n_processes is not None:
        plan = make_plan(replace(job, world_size=n_processes), memory)
        yield f"{n_processes} processes, {step} a host as large as now ({_most(plan)})"


def _narrower(job: Job, memory: Memory) -> Iterator[str]:
    """The largest embed_dim below the present one that suffices: a multiple of 4 that the heads divide."""
    heads = int(job.model["n_heads"])
    dims = [d for d in range(int(job.model["embed_dim"]) - 4, 0, -4) if d % heads == 0]

    def planned(dim: int) -> Plan:
        return make_plan(replace(job, model={**job.model, "embed_dim": dim}), memory)

    dim = _first_that_fits(dims, planned)
    if dim is not None:
        yield f"--model.embed_dim={dim} ({_most(planned(dim))})"


def _first_that_fits(choices: list[int], planned: Callable[[int], Plan]) -> int | None:
    """The first of `choices`, which need less and less, whose plan fits."""
    if not choices or not planned(choices[-1]).fits:
        return None
    first, last = 0, len(choices) - 1
    while first < last:
        middle = (first + last) // 2
        if planned(choices[middle]).fits:
            last = middle
        else:
            first = middle + 1
    return choices[first]


def _most(plan: Plan) -> str:
    """What the process that needs most then needs."""
    return " and ".join(f"{size(sum(parts.values()))} of {name}" for name, _, parts, _ in plan.largest())
