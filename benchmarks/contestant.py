"""One training of large_catalogue or item_features, for some seconds; the first process writes the figures.

    torchrun --standalone --nproc_per_node=2 -m benchmarks.contestant FIGURES SECONDS --config=FILE

The plan, the model, the optimizers and the steps are those of train.py: the same functions, and the trainer's own loop.
"""

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset, Sizes, open_dataset
from bert4rec.report.log import MetricsLog
from bert4rec.runtime.collectives import gather_objects, on_rank_zero
from bert4rec.runtime.errors import SettingsError
from bert4rec.runtime.memory import Memory, PeakMemory
from bert4rec.runtime.processes import Processes, process_group, seed_everything, this_process
from bert4rec.sharding.plan import Plan, make_plan
from bert4rec.training.build import (
    build,
    checkpoint_manager,
    feature_reader,
    job,
    make_trainer,
    plan_of_all,
    resolved,
    sizes_of,
    training_batches,
)
from bert4rec.training.trainer import WARM_STEPS, Step, Trainer

FEWEST_STEPS = 5  # timed, however long a step takes
INTERFACES = Path("/proc/net/dev")
TRANSMITTED = 8  # the column of an interface's bytes sent


def main() -> None:
    """Write the figures, as JSON."""
    target, seconds, *settings = sys.argv[1:]
    config = load_config(*parse_command_line(settings))
    world = this_process(config.parallelism.device)
    # Not verified: the processes of a benchmark read what it has just written.
    preprocessing = config.preprocessing.recipe
    dataset = open_dataset(config.data.folder, preprocessing=preprocessing, verify=False)
    config = resolved(config, world, dataset)
    with process_group(world), PeakMemory(world.device) as peak_memory:
        figures = measure(config, world, dataset, float(seconds), peak_memory)
        if world.is_rank_zero:
            Path(target).write_text(json.dumps(figures))


def measure(
    config: Config, world: Processes, dataset: Dataset, seconds: float, peak_memory: PeakMemory
) -> dict[str, Any]:
    """What the training took, or what it `needs` (bytes of a process) where the plan refuses it."""
    seed_everything(config.training.seed, world.rank)
    figures = {
        "sparse_optimizer": config.parallelism.sparse_optimizer,
        "mean_length": sizes_of(config, dataset).window_length,
    }
    try:
        plan = plan_of_all(config, world, sizes_of(config, dataset))
    except SettingsError:
        return figures | {"needs": _needed(config, world, sizes_of(config, dataset))}
    figures["planned_memory"] = max(sum(on_host.values()) for _, on_host in plan.needs)
    log = MetricsLog(Path(config.run.dir)) if world.is_rank_zero else None
    trainer = _trainer(config, world, dataset, plan, log)
    figures |= _train(trainer, world, seconds)
    figures["peak_memory"] = max(gather_objects(peak_memory.read()))  # while the trainer still holds the model
    if log:
        log.close()
    return figures


def _trainer(config: Config, world: Processes, dataset: Dataset, plan: Plan, log: MetricsLog | None) -> Trainer:
    """As a run has it, but nobody validates."""
    features = feature_reader(config, dataset)
    model, optimizers = build(config, world, plan, features)
    batches = training_batches(config, world, dataset, features)
    manager = checkpoint_manager(config, world, Path(config.run.dir), about={})
    step = Step(model, optimizers, world, precision=config.training.precision)
    return make_trainer(config, step, batches, manager, measure=lambda _: {}, log=log)


def _needed(config: Config, world: Processes, sizes: Sizes) -> int:
    """Bytes of host memory of the process that needs most, had it all that it wants."""
    to_train = job(
        config, sizes, device_type="cpu", world_size=world.world_size, local_world_size=world.local_world_size
    )
    return max(sum(on_host.values()) for _, on_host in make_plan(to_train, Memory(host=None)).needs)


def _train(trainer: Trainer, world: Processes, seconds: float) -> dict[str, float]:
    """Warm up, then train for about `seconds`, on every process as many steps."""
    # The trainer's loop, without the validations and checkpoints with which `fit` surrounds it.
    batches = trainer._batches.batches()

    def train(n_steps: int) -> float:
        began = time.perf_counter()
        with trainer._progress:
            trainer._train_epoch(itertools.islice(batches, n_steps))
        return (time.perf_counter() - began) / n_steps

    train(WARM_STEPS // 2)  # the first steps allocate, so only the others tell how long one takes
    step_seconds = train(WARM_STEPS - WARM_STEPS // 2)
    n_steps = on_rank_zero(lambda: max(FEWEST_STEPS, round(seconds / step_seconds)))
    dist.barrier()
    before = _transmitted()
    step_seconds = train(n_steps)
    dist.barrier()
    sent = _sent(before, _transmitted()) if world.world_size > 1 else 0
    return {
        "sequences_per_second": trainer.meter.rate,
        "step_seconds": step_seconds,
        "sent_per_step": sent / n_steps,
    }


def _transmitted() -> dict[str, int]:
    """Bytes that each network interface has sent, as Linux counts them: headers included, and of all programs."""
    lines = (line.partition(":") for line in INTERFACES.read_text().splitlines()[2:])
    return {name.strip(): int(counts.split()[TRANSMITTED]) for name, _, counts in lines}


def _sent(before: dict[str, int], after: dict[str, int]) -> int:
    """Bytes that all processes of this host sent each other: over the loopback, or else over any interface."""
    moved = {name: count - before.get(name, 0) for name, count in after.items()}
    return moved["lo"] or sum(moved.values())


if __name__ == "__main__":
    main()
