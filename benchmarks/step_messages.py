"""What a step waits for: milliseconds in messages by kind, and which messages there are.

    torchrun --standalone --nproc_per_node=2 -m benchmarks.step_messages [--table.key=value …]

Trains by the run's own trainer over random windows, and prints for the first process the time that its main thread
spends in each kind of message a step: medians over the steps after the first few. What DistributedDataParallel sends
while backward computes is not among them: that it waits for the rest inside backward cannot be told from outside. CPU.
"""

import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from benchmarks.plan_accuracy import RandomItems
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.resolve import Facts, resolve
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Sizes
from bert4rec.runtime.collectives import StepSync, gather_objects
from bert4rec.runtime.processes import Processes, process_group, this_process
from bert4rec.training.build import (
    build,
    checkpoint_manager,
    make_trainer,
    plan_of_all,
    training_batches,
)
from bert4rec.training.trainer import Step

N_ITEMS, STEPS, WARM = 2000, 60, 10
SMALL = {
    "training.n_epochs": 1, "training.per_device_train_batch_size": 8, "training.n_train_negatives": 20,
    "model.max_len": 20, "model.embed_dim": 32, "model.ffn_dim": 64, "checkpoint.every_minutes": 0.0,
    "checkpoint.every_steps": 0,
}  # fmt: skip


TIMED: list[tuple[Any, str, str]] = [
    (StepSync, "start", "decisions: asked"),
    (StepSync, "wait", "decisions: waited for"),
    (dist.Work, "wait", "of the model: waited for"),
    *((dist, name, f"of the model: {name}") for name in ("all_reduce", "all_gather", "all_to_all_single", "broadcast")),
]


class Clock:
    """The time of each step, and within it that of each kind of message; a message within another one counts once."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._step: dict[str, float] = defaultdict(float)
        self._is_in_one, self._began = False, time.perf_counter()

    def begins_at(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with which a step begins."""

        def begin(*args: Any, **options: Any) -> Any:
            now = time.perf_counter()
            self.steps.append({**self._step, "the whole step": now - self._began})
            self._step, self._began = defaultdict(float), now
            return function(*args, **options)

        return begin

    def of(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose time counts for the `kind`."""

        def timed(*args: Any, **options: Any) -> Any:
            if self._is_in_one:
                return function(*args, **options)
            self._is_in_one, began = True, time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._is_in_one = False
                self._step[kind] += time.perf_counter() - began

        return timed


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    path, overrides = parse_command_line(sys.argv[1:])
    world = this_process("cpu")
    config = resolve(load_config(path, SMALL | overrides), "cpu", Facts(N_ITEMS, typical_length=50))
    with process_group(world):
        clock = Clock()
        _train(config, world, clock)
        if world.is_rank_zero:
            steps = clock.steps[WARM:]
            print(f"{world.world_size} processes, {config.parallelism.mode}, ms a step")
            for kind in sorted({kind for step in steps for kind in step}):
                print(f"{kind:32} {1e3 * statistics.median(step.get(kind, 0.0) for step in steps):8.3f}")


def _train(config: Config, world: Processes, clock: Clock) -> None:
    model, optimizers = build(config, world, plan_of_all(config, world, Sizes(N_ITEMS)))
    n_windows = STEPS * config.training.per_device * world.world_size
    dataset: Any = RandomItems(n_windows, N_ITEMS)
    with tempfile.TemporaryDirectory() as folder:
        folders = gather_objects(folder)
        batches = training_batches(config, world, dataset)
        manager = checkpoint_manager(config, world, Path(folders[0]), about={})
        step = Step(model, optimizers, world, precision=config.training.precision)
        trainer = make_trainer(config, step, batches, manager, measure=lambda _: {}, log=None)
        with ExitStack() as patches:
            for owner, name, kind in TIMED:
                patches.enter_context(mock.patch.object(owner, name, clock.of(kind, getattr(owner, name))))
            patches.enter_context(mock.patch.object(Step, "__call__", clock.begins_at(Step.__call__)))
            trainer.fit()
        gather_objects(None)  # no folder goes before all have read from it


if __name__ == "__main__":
    main()
