"""Processes with a GPU each that train together, in turns on their GPUs and on the CPU."""

import itertools
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from contextlib import nullcontext
from typing import Any

IS_STAND_IN = "tests.stand_in.cuda" in sys.modules
SECONDS = 900  # on cores that others use too


class GpuProcesses:
    """`run(n, function, …)` calls `function` on `n` processes, which find each other as torchrun's do.

    The same processes do all jobs of `n`, and no others: TorchRec sends a first message once in the life of a process.
    """

    def __init__(self) -> None:
        self._pools: dict[int, list[ProcessPoolExecutor]] = {}

    def run(
        self, n: int, function: Callable[..., Any], *args: Any, one_each: bool = False, **keywords: Any
    ) -> list[Any]:
        """Return the results by rank. With `one_each`, a process sees its own GPU alone."""
        if n not in self._pools:
            context = multiprocessing.get_context("spawn")
            self._pools[n] = [  # each a process, which keeps its rank
                ProcessPoolExecutor(1, context, initializer=_prepare, initargs=(IS_STAND_IN,)) for _ in range(n)
            ]
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        usual = {"WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_PORT": port, "MASTER_ADDR": "localhost"}
        places = [usual | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(n)]
        n_visible = 1 if one_each else n
        answers = [
            pool.submit(_answer, each, n_visible, function, args, keywords)
            for pool, each in zip(self._pools[n], places, strict=True)
        ]
        done, waiting = wait(answers, SECONDS, FIRST_EXCEPTION)
        if waiting:  # for a process that has failed, perhaps
            for process in multiprocessing.active_children():
                process.kill()
            self._pools.clear()
        for answer in done:
            answer.result()
        assert not waiting, f"only {len(done)} of {n} processes have answered"
        return [answer.result() for answer in answers]

    def close(self) -> None:
        """End the processes."""
        for pool in itertools.chain(*self._pools.values()):
            pool.shutdown()


def _prepare(is_stand_in: bool) -> None:
    if is_stand_in:
        from tests.stand_in import cuda  # noqa: F401
    import torch

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)


def _answer(places: dict[str, Any], n_visible: int, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
    os.environ |= {name: str(value) for name, value in places.items()}
    if "tests.stand_in.cuda" in sys.modules:
        from tests.stand_in import cuda

        cuda.see_gpus(n_visible, name=f"GPU-{places['RANK'] if n_visible == 1 else 'of-all'}")
    return function(*args, **keywords)


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
