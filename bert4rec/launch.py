"""The processes of a run: who am I, on which device, and a process group that begins and ends cleanly."""

import gc
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bert4rec.errors import SettingsError


@dataclass(frozen=True)
class Processes:
    """This process among those of the run; `rank` counts over all hosts, `local_rank` over this one."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def agree(self, value: Any) -> Any:
        """The first process's `value`, on every process."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """Every process's `value`, by rank, on every process."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def choose_device(wanted: str, *, local_rank: int, local_world_size: int) -> torch.device:
    """The device of this process.

    Raises `SettingsError` where `wanted` is "cuda", or "auto" finds GPUs, and there are fewer than processes.
    """
    n_gpus = torch.cuda.device_count()
    if wanted == "cpu" or (wanted == "auto" and n_gpus == 0):
        return torch.device("cpu")
    if n_gpus < local_world_size:
        raise SettingsError(
            f'parallelism.device = "{wanted}": {local_world_size} processes on this host but {n_gpus} GPUs; start at '
            'most one process per GPU, or set parallelism.device = "cpu"'
        )
    return torch.device("cuda", local_rank)


def seed_everything(seed: int) -> None:
    """Seed every global generator; only dropout draws from them, all else has streams of its own."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def processes(wanted_device: str, *, deterministic: bool = False) -> Iterator[Processes]:
    """Join the processes that the launcher started (torchrun's variables), or be the only one.

    Uses NCCL on GPUs and gloo on CPU; with `deterministic`, only algorithms that give the same bits every time. On
    leaving, garbage is collected before the group is destroyed: shards that outlive it can abort a process that has
    finished its work.
    """
    alone = "RANK" not in os.environ
    rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
    world_size, local_world_size = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = choose_device(wanted_device, local_rank=local_rank, local_world_size=local_world_size)
    _use_cores(local_world_size)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    torch.use_deterministic_algorithms(deterministic)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://localhost:{_free_port()}" if alone else "env://",
        rank=rank,
        world_size=world_size,
        device_id=device if device.type == "cuda" else None,
    )
    yield Processes(rank, local_rank, world_size, local_world_size, device)
    # After a failure nothing of this: the launcher ends the other processes, which would wait at the barrier.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def _use_cores(local_world_size: int) -> None:
    """Share this host's cores among its processes, unless OMP_NUM_THREADS is more than torchrun's own default of 1."""
    if int(os.environ.get("OMP_NUM_THREADS", 1)) == 1:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world_size))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
