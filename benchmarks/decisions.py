"""CPU time that the processes of a training spend on their decisions: one to each other, or in rounds.

    python -m benchmarks.decisions [--processes=2,8,32] [--steps=100]

Each process decides with the others as in a training, sleeping in place of the step: microseconds of CPU a step and
process, messages of gloo included, in the mean over the processes. All run on this host.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bert4rec.runtime import collectives
from bert4rec.runtime.collectives import StepSync
from bert4rec.runtime.signals import Interruption

WARM, SECONDS_OF_A_STEP = 10, 0.02
WAYS = {"one to each other": 2**20, "in rounds": 1}  # up to how many processes send one to each other


def main() -> None:
    """Print a line for each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", default="2,8,32")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a fork must not inherit threads
    for n in map(int, options.processes.split(",")):
        times = {way: _microseconds(n, few, options.steps) for way, few in WAYS.items()}
        print(f"{n:4} processes: " + ", ".join(f"{way} {value:,.0f} µs" for way, value in times.items()), flush=True)


def _microseconds(n: int, few: int, steps: int) -> float:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        found = context.Array("d", n)
        arguments = (n, few, steps, Path(folder) / "store", found)
        processes = [context.Process(target=_decide, args=(rank, *arguments)) for rank in range(n)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes), "a process failed"
    return statistics.mean(found)


def _decide(rank: int, n: int, few: int, steps: int, store: Path, found: Any) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(store), n), rank=rank, world_size=n)
    collectives.DIRECT_PROCESSES = few
    sync, began = StepSync(Interruption()), 0.0
    for step in range(WARM + steps):
        if step == WARM:
            began = time.process_time()
        sync.start(step, count=rank + 1)
        time.sleep(SECONDS_OF_A_STEP)
        assert sync.wait().counts == tuple(range(1, n + 1))
    found[rank] = 1e6 * (time.process_time() - began) / steps
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
