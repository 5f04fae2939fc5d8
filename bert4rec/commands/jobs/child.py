"""A command of this program as a process of its own, so that its memory is freed when it ends."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from bert4rec.runtime.signals import PARENT, SIGNALS

MODULE = ["-m", "bert4rec"]
LAUNCHER = ["-m", "torch.distributed.run", "--standalone"]
OF_LAUNCHER = re.compile(r"[WE]\d{4} \d\d:")  # how the lines of torchrun's own log begin


class StoppedError(Exception):
    """The signal `number` has ended a child, as this process has passed it on."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def run_child(words: Sequence[str], *, n_processes: int = 1, hidden: tuple[str, ...] = ()) -> int:
    """Run `bert4rec` with these `words`, on as many processes; its exit status.

    Lines on its stdout that begin with one of `hidden` are not shown; nor is what torchrun says of itself. Signals are
    passed on: raises `StoppedError` when the child has ended after one.
    """
    launcher = [*LAUNCHER, f"--nproc_per_node={n_processes}"] if n_processes > 1 else []
    child = subprocess.Popen(
        [sys.executable, *launcher, *MODULE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if launcher else None,
        text=True,
        start_new_session=True,  # so that Ctrl-C comes once, from here
        env=os.environ | {PARENT: "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
    )
    with _passing_on(child) as received:
        readers = [threading.Thread(target=_show, args=(child.stdout, hidden))]
        if launcher:
            readers.append(threading.Thread(target=_show_workers, args=(child.stderr, received)))
        for reader in readers:
            reader.start()
        status = child.wait()
        for reader in readers:
            reader.join()
    if received:
        raise StoppedError(received[0])
    return status


@contextmanager
def _passing_on(child: "subprocess.Popen[str]") -> Iterator[list[int]]:
    """Within: the signals that this process gets go to `child`; which they were."""
    received: list[int] = []

    def pass_on(number: int, _: Any) -> None:
        received.append(number)
        with suppress(ProcessLookupError):
            child.send_signal(number)

    heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # not so under nohup
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(lines: IO[str], hidden: tuple[str, ...]) -> None:
    for line in lines:
        if not line.startswith(hidden):
            with suppress(OSError):  # of a reader that has gone: the work goes on
                print(line, end="", flush=True)


def _show_workers(lines: IO[str], received: list[int]) -> None:
    """What the workers write to stderr; torchrun follows with a traceback of its own, which says nothing more."""
    is_over = False
    for line in lines:
        is_over = is_over or bool(received) or bool(OF_LAUNCHER.match(line))
        if not is_over:
            print(line, end="", file=sys.stderr, flush=True)
