"""Processes that form a gloo group and run one function after another, all of them at once."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

SECONDS_PER_JOB = 240
RESAMPLES = 40  # draws of an interval


class ProcessPool:
    """`run(function, …)` calls `function` on every process; it must be importable by name."""

    def __init__(self, world_size: int) -> None:
        # Forked from one process that has imported TorchRec, which takes seconds, and has done nothing else.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bert4rec.feed.preloaded", "tests.evaluation.jobs"])
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        pipes = [context.Pipe() for _ in range(world_size)]
        self._connections = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(rank, world_size, port, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """What each rank returns, by rank; raises `AssertionError` with the traceback of a rank that fails."""
        for connection in self._connections:
            connection.send((function, args, kwargs))
        for rank, connection in enumerate(self._connections):
            assert connection.poll(SECONDS_PER_JOB), f"rank {rank} did not answer: {function.__name__}"
        answers = [connection.recv() for connection in self._connections]
        for rank, (succeeded, result) in enumerate(answers):
            assert succeeded, f"rank {rank}:\n{result}"
        return [result for _, result in answers]

    def close(self) -> None:
        for connection, process in zip(self._connections, self._processes, strict=True):
            connection.close()
            process.terminate()
            process.join()


def _serve(rank: int, world_size: int, port: int, connection: Connection) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in variables.items()}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    import torch
    import torch.distributed as dist

    from bert4rec.evaluation import intervals

    intervals.RESAMPLES = RESAMPLES
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, function(*args, **kwargs)))
        except BaseException:  # torch.distributed.checkpoint raises such
            connection.send((False, traceback.format_exc()))
        for group in set(dist.distributed_c10d._world.pg_map) - {dist.group.WORLD}:
            dist.destroy_process_group(group)  # gloo has a thread for each that wakes up a hundred times a second
