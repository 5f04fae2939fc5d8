"""How long a training waits for a checkpoint: between two steps, beyond what a step takes, at once and from a copy.

    torchrun --standalone --nproc_per_node=2 -m benchmarks.save_pause [--items=3900000] [--rounds=5] [--table.key=…]

Two processes train on random batches with an item table of about 1 GB, 64 wide, row-wise Adagrad, against sampled
negatives. In turn a checkpoint is written while they wait (`checkpoint.async = false`), and by a thread from a copy
(`true`). Printed are medians over the rounds: seconds of a step without a save; how much longer the gap between two
steps is with one; how much longer all steps took in sum until the checkpoint was whole, and when it was.
"""

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.plan_accuracy import RandomItems
from bert4rec.checkpoint.contents import CheckpointManager
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.resolve import Facts, resolve
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Sizes
from bert4rec.runtime.collectives import gather_objects
from bert4rec.runtime.processes import Processes, process_group, this_process
from bert4rec.sharding.torchrec_internals import local_bytes
from bert4rec.training.build import (
    build,
    checkpoint_manager,
    make_trainer,
    plan_of_all,
    training_batches,
)
from bert4rec.training.trainer import Step, Trainer

USUAL = {
    "model.max_len": 16, "training.loss": "sampled_softmax", "training.per_device_train_batch_size": 64,
    "parallelism.device": "cpu", "parallelism.mode": "dmp", "checkpoint.keep": 1,
}  # fmt: skip
STEPS = 20  # before each save, for the normal step


def main() -> None:
    """Measure and print."""
    own = {"items": 3_900_000, "rounds": 5}
    words = [word for word in sys.argv[1:] if not _take(word, own)]
    _, overrides = parse_command_line(words)
    world = this_process("cpu")
    config = resolve(load_config(None, USUAL | overrides), "cpu", Facts(own["items"], typical_length=50))
    with process_group(world):
        figures = measure(config, world, own["items"], own["rounds"])
        if world.is_rank_zero:
            for name, rounds in figures.items():
                step, gap, delay, whole = (statistics.median(values) for values in zip(*rounds, strict=True))
                print(f"{name:12} step {step:.3f} s, gap {gap:.3f} s, in all {delay:.2f} s, whole after {whole:.2f} s")


def _take(word: str, own: dict[str, int]) -> bool:
    name, _, value = word.removeprefix("--").partition("=")
    if name in own:
        own[name] = int(value)
    return name in own


def measure(config: Config, world: Processes, n_items: int, n_rounds: int) -> dict[str, list[list[float]]]:
    """For saves at once and from a copy: the four figures of each round."""
    model, optimizers = build(config, world, plan_of_all(config, world, Sizes(n_items)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(gather_objects(folder)[0])
        writer = checkpoint_manager(config, world, place, about={})
        dataset: Any = RandomItems(10**6, n_items)
        source = training_batches(config, world, dataset)
        one_step = Step(model, optimizers, world, precision=config.training.precision)
        trainer = make_trainer(config, one_step, source, writer, measure=lambda _: {}, log=None)
        batches = source.batches()

        def step() -> float:
            began = time.perf_counter()
            with trainer._progress:
                trainer._train_epoch(itertools.islice(batches, 1))
            return time.perf_counter() - began

        if world.is_rank_zero:
            print(f"{local_bytes(trainer.checkpoints.tensors().values()) / 1e6:,.0f} MB a process", flush=True)
        figures: dict[str, list[list[float]]] = {"at once": [], "from a copy": []}
        for number in range(n_rounds):
            for name, rounds in figures.items():
                writer._asynchronous = name == "from a copy"
                rounds.append(_round(trainer, writer, step, 2 * number + writer._asynchronous + 1))
        dist.barrier()
    return figures


def _round(trainer: Trainer, writer: CheckpointManager, step: Callable[[], float], number: int) -> list[float]:
    """Seconds: of a step, the gap of a save, the delay of all steps until it was whole, how long that took."""
    normal = statistics.median(step() for _ in range(STEPS))
    dist.barrier()
    began = time.perf_counter()
    trainer.state.step = number  # each save has a folder of its own
    trainer.checkpoints.save()
    gap, n_steps = time.perf_counter() - began, 0
    while _is_writing(writer):
        step()
        n_steps += 1
    whole = time.perf_counter() - began
    writer.wait()
    return [normal, gap, whole - n_steps * normal, whole]


def _is_writing(writer: CheckpointManager) -> bool:
    """On some process."""
    lives = torch.tensor(int(writer._writing is not None and not writer._writing.done()))
    dist.all_reduce(lives)
    return bool(lives)


if __name__ == "__main__":
    main()
