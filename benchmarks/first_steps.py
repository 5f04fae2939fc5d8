"""One contestant of start_up: every process of a torchrun trains as train.py does, until it has looked at its memory.

    torchrun --standalone --nproc_per_node=2 -m benchmarks.first_steps FIGURES BEGAN --config=FILE

Each process writes what it saw to FIGURES-RANK; BEGAN is the time from which on the start is counted. As in train.py,
nothing large is imported by the module itself: loader processes import it, too.
"""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

STEPS = 200  # before the look at the memory


def main(target: str, began: float, settings: list[str]) -> None:
    """Train until step `STEPS`, and end there."""
    figures = {"to_start": time.time() - began}
    from bert4rec.config.load import load_config, parse_command_line
    from bert4rec.feed.fork_server import start_ahead
    from bert4rec.runtime.startup import importing

    config = load_config(*parse_command_line(settings))
    figures["to_settings"] = time.time() - began
    if config.training.num_workers:
        start_ahead()
    with importing():
        import torch.distributed as dist

        figures["to_torch"] = time.time() - began
        from bert4rec.training import trainer
        from bert4rec.training.run import run
    figures["to_imports"] = time.time() - began

    class Looking(trainer.Meter):
        """Looks at the clock after the first step, and at the memory after the last."""

        n_steps = 0

        def add(self, *args: object) -> None:
            self.n_steps += 1
            if self.n_steps == 1:
                figures["to_step_1"] = time.time() - began
            if self.n_steps == STEPS:
                dist.barrier()  # all of them still live, and share what they share
                figures.update(memory(os.getpid()))
                Path(f"{target}-{dist.get_rank()}").write_text(json.dumps(figures))
                dist.barrier()
                os._exit(0)
            super().add(*args)  # type: ignore[arg-type]

    trainer.Meter = Looking  # type: ignore[misc]
    run(config)


def memory(pid: int) -> dict[str, float]:
    """MB of the process, and of the largest of the loader workers that it has started."""
    own = _sizes(pid)
    figures = {"process_pss": own["Pss"], "process_private": own["Private"]}
    if workers := [_sizes(worker) for child in _children(pid) for worker in _children(child)]:
        figures["worker_pss"] = max(sizes["Pss"] for sizes in workers)
        figures["worker_private"] = max(sizes["Private"] for sizes in workers)
    return figures


def _children(pid: int) -> Iterator[int]:
    for task in os.listdir(f"/proc/{pid}/task"):
        yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def _sizes(pid: int) -> dict[str, float]:
    """MB: `Pss` and `Private`."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.findall(r"^(Pss|Private_Clean|Private_Dirty): +(\d+) kB", rollup, re.MULTILINE)
    sizes = {name: int(kilobytes) * 1024 / 1e6 for name, kilobytes in found}
    return {"Pss": sizes["Pss"], "Private": sizes["Private_Clean"] + sizes["Private_Dirty"]}


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
