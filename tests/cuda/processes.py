"""Processes with a GPU each that train together, in turns on their GPUs and on the CPU."""

import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection, wait
from typing import Any

IS_STAND_IN = "tests.stand_in.cuda" in sys.modules
SECONDS = 900  # on cores that others use too


class GpuProcesses:
    """`run(n, function, …)` calls `function` on `n` processes, which find each other as torchrun's do.

    The same processes do all jobs of `n`, and no others: TorchRec sends a first message once in the life of a process.
    """

    def __init__(self) -> None:
        self._started: dict[int, list[tuple[Any, Any]]] = {}  # n → connections and processes

    def run(
        self, n: int, function: Callable[..., Any], *args: Any, one_each: bool = False, **keywords: Any
    ) -> list[Any]:
        """Return the results by rank. With `one_each`, a process sees its own GPU alone. Raises `AssertionError`."""
        if n not in self._started:
            self._started[n] = [_start() for _ in range(n)]
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        connections = [connection for connection, _ in self._started[n]]
        for rank, connection in enumerate(connections):
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_PORT": port}
            connection.send((places, 1 if one_each else n, function, args, keywords))
        answers: dict[int, Any] = {}
        while len(answers) < n:
            ready = wait([each for rank, each in enumerate(connections) if rank not in answers], SECONDS)
            problem = "" if ready else f"only the ranks {sorted(answers)} have answered"
            for connection in ready:
                rank = connections.index(connection)
                has_succeeded, answers[rank] = connection.recv()
                problem = problem if has_succeeded else f"rank {rank}:\n{answers[rank]}"
            if problem:  # the remaining ranks may wait for it
                self._end(n)
                raise AssertionError(problem)
        return [answers[rank] for rank in range(n)]

    def close(self) -> None:
        """End the processes."""
        for n in list(self._started):
            self._end(n)

    def _end(self, n: int) -> None:
        for connection, process in self._started.pop(n):
            connection.close()
            process.kill()
            process.join()


def _start() -> tuple[Any, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(IS_STAND_IN, theirs))
    process.start()
    return ours, process


def _serve(is_stand_in: bool, connection: Connection) -> None:
    if is_stand_in:
        from tests.stand_in import cuda, lines

        lines.trace()
    import torch

    os.environ |= {"MASTER_ADDR": "localhost", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    while True:
        try:
            places, n_visible, function, args, keywords = connection.recv()
        except EOFError:
            return
        os.environ |= {name: str(value) for name, value in places.items()}
        if is_stand_in:
            cuda.see_gpus(n_visible, name=f"GPU-{places['RANK'] if n_visible == 1 else 'of-all'}")
        try:
            connection.send((True, function(*args, **keywords)))
        except BaseException:  # torch.distributed.checkpoint raises such
            connection.send((False, traceback.format_exc()))


def train(settings: dict[str, Any], *, counts_waits: bool = False) -> dict[str, Any]:
    """Return the folder of a training with `settings`, its waits, and what the stand-in saw of streams and messages."""
    from bert4rec.config.load import load_config
    from bert4rec.report import pages
    from bert4rec.runtime import console
    from bert4rec.runtime.processes import preserve_global_state
    from bert4rec.training.run import run
    from tests.cuda.waits import waits_by_part

    pages.charts = lambda contents: ()  # type: ignore[assignment]  # which take a second
    console.SECONDS_BETWEEN_LINES = -1.0
    with preserve_global_state(), waits_by_part() if counts_waits else nullcontext({}) as parts:
        folder = run(load_config(None, settings), may_exit=False)
    seen: dict[str, Any] = {"faults": [], "collectives": []}
    if "tests.stand_in.cuda" in sys.modules:
        from tests.stand_in import cuda

        seen = {"faults": cuda.device.take_faults(), "collectives": cuda.device.take_collectives()}
    return {"folder": folder, "waits": parts} | seen
