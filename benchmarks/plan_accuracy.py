"""The plan beside what really happens: bytes of weights and optimizer state, and the peak of each process.

    torchrun --standalone --nproc_per_node=2 -m benchmarks.plan_accuracy --items=20000 [--steps=6] [--table.key=value …]

Plans, builds and trains with the run's own functions for a few steps over random windows of full length, saves the
weights and reads them back as a run does, and prints for every process what was planned and what was measured. The
peak is the PSS that a process has on a host with nothing else on it: other programs that use the same libraries would
take a part of them upon themselves. CPU only.
"""

import re
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from bert4rec.config.load import load_config, parse_command_line
from bert4rec.config.resolve import Facts, resolve
from bert4rec.config.tables import Config
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Sizes
from bert4rec.runtime.collectives import gather_objects
from bert4rec.runtime.console import log_to_terminal
from bert4rec.runtime.processes import Processes, process_group, this_process
from bert4rec.sharding.parallelize import held_bytes
from bert4rec.sharding.plan import Plan
from bert4rec.training.build import (
    build,
    checkpoint_manager,
    make_trainer,
    plan_of_all,
    training_batches,
)
from bert4rec.training.trainer import Step


class RandomItems:
    """A dataset, and its training windows: `n` of random items, of the greatest length."""

    typical_length = 50
    placement = None
    first_number = 0
    histories = SimpleNamespace(kinds=(), target_kinds=())

    def __init__(self, n: int, n_items: int) -> None:
        self._n, self.n_items = n, n_items
        self.popularity = np.ones(n_items, np.int32)  # a run holds these counts

    def windows(self, *, max_len: int, step: int) -> Self:
        self._max_len = max_len
        return self

    def __len__(self) -> int:
        return self._n

    def lengths(self, indices: Any) -> Any:
        return np.full(len(indices), self._max_len, np.int64)

    def read(self, indices: Any) -> Rows:
        drawn = np.random.default_rng(int(indices[0])).integers(0, self.n_items, len(indices) * self._max_len)
        return Rows(drawn.astype(np.int32), self.lengths(indices))


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    own = {name: int(text) for name, text in (re.findall(r"^--(items|steps)=(\d+)$", a)[0] for a in _own(sys.argv))}
    path, overrides = parse_command_line([a for a in sys.argv[1:] if a not in _own(sys.argv)])
    world = this_process("cpu")
    n_items = own.get("items", 20_000)
    config = resolve(load_config(path, {"training.n_epochs": 1} | overrides), "cpu", Facts(n_items, typical_length=50))
    with process_group(world):
        lines = _measure(config, world, n_items, own.get("steps", 6))
        if world.is_rank_zero:
            print("\n".join(lines))


def _own(argv: list[str]) -> list[str]:
    return [word for word in argv if word.startswith(("--items=", "--steps="))]


def _measure(config: Config, world: Processes, n_items: int, n_steps: int) -> list[str]:
    """The rows of the table, by rank."""
    settings = config.training
    plan = plan_of_all(config, world, Sizes(n_items))
    model, optimizers = build(config, world, plan)
    n_windows = n_steps * settings.per_device * world.world_size
    with tempfile.TemporaryDirectory() as folder:
        folders = gather_objects(folder)
        dataset: Any = RandomItems(n_windows, n_items)
        batches = training_batches(config, world, dataset)
        manager = checkpoint_manager(config, world, Path(folders[0]), about={})
        step = Step(model, optimizers, world, precision=settings.precision)
        trainer = make_trainer(config, step, batches, manager, measure=lambda _: {}, log=None)
        log_to_terminal(is_shown=world.is_rank_zero)
        trainer.fit()
        gather_objects(None)  # no folder goes before all have read from it
    measured = held_bytes(model, optimizers.states()) | {"peak": _peak(world.world_size)}
    return [line for rank, found in enumerate(gather_objects(measured)) for line in _rows(plan, rank, found)]


def _rows(plan: Plan, rank: int, measured: dict[str, int]) -> list[str]:
    planned = plan.resident_bytes(rank) | {"peak": sum(plan.needs[rank][1].values())}
    heading = ["| process | | planned | measured | planned / measured |", "|---|---|---:|---:|---:|"]
    return (heading if rank == 0 else []) + [
        f"| {rank} | {name} | {planned[name]:,} | {measured[name]:,} | {planned[name] / measured[name]:.3f} |"
        for name in ("weights", "optimizer_state", "peak")
        if measured[name]
    ]


def _peak(world_size: int) -> int:
    """The largest resident set so far; pages of files, which the processes share, count once among them."""
    status = Path("/proc/self/status").read_text()
    found = dict(re.findall(r"^(VmHWM|VmRSS|RssFile|RssShmem):\s+(\d+) kB", status, re.MULTILINE))
    file_bytes = int(found["RssFile"]) + int(found["RssShmem"])
    return (int(found["VmHWM"]) - file_bytes + file_bytes // world_size) * 1024


if __name__ == "__main__":
    main()
