"""A command of this program as a process of its own, so that its memory is freed when it ends."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import IO, Any

from bert4rec.runtime.signals import PARENT, SIGNALS

MODULE = ["-m", "bert4rec"]
LAUNCHER = ["-m", "torch.distributed.run", "--standalone"]
OF_LAUNCHER = re.compile(r"[WE]\d{4} \d\d:")  # how the lines of torchrun's own log begin

Show = Callable[[str], None]
"""What becomes of a line, which it gets without its end."""


class StoppedError(Exception):
    """The signal `number` has ended a child, as this process has passed it on."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def print_line(line: str) -> None:
    """To stdout; that nobody reads any more is no reason to end."""
    with suppress(OSError):
        print(line, flush=True)


def print_error(line: str) -> None:
    """To stderr."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def run_child(
    words: Sequence[str], *, n_processes: int = 1, hidden: tuple[str, ...] = (), show: Show = print_line,
    show_error: Show = print_error, variables: Mapping[str, str] | None = None,
) -> int:  # fmt: skip
    """Run `bert4rec` with these `words`, on as many processes; its exit status.

    Lines on its stdout go to `show` unless they begin with one of `hidden`, those on its stderr to `show_error`, but
    for what torchrun says of itself; both are called in this thread. `variables` of the environment are added. Signals
    are passed on: raises `StoppedError` when the child has ended after one. Where this process dies the child stops
    as after a signal.
    """
    launcher = [*LAUNCHER, f"--nproc_per_node={n_processes}"] if n_processes > 1 else []
    own = {PARENT: "1"}
    if launcher:  # which sets this itself, with a warning, and only where it is not set
        own["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    child = subprocess.Popen(
        [sys.executable, *launcher, *MODULE, *words],
        stdin=subprocess.PIPE,  # nothing comes: that it ends tells the child of the end of this process
        stdout=subprocess.PIPE,
        # Else on the same terminal, with its bar.
        stderr=subprocess.PIPE if launcher or show_error is not print_error else None,
        text=True,
        start_new_session=True,  # so that Ctrl-C comes once, from here
        env=os.environ | own | dict(variables or {}),
    )
    with _passing_on(child) as received:
        for line, is_error in _lines(child):
            if is_error:
                if not received or not launcher:
                    show_error(line)
            elif not line.startswith(hidden):
                show(line)
        status = child.wait()
    if received:
        raise StoppedError(received[0])
    return status


@contextmanager
def _passing_on(child: "subprocess.Popen[str]") -> Iterator[list[int]]:
    """Within: the signals that this process gets go to `child`; which they were. The child does not outlive it."""
    received: list[int] = []

    def pass_on(number: int, _: Any) -> None:
        received.append(number)
        with suppress(ProcessLookupError):
            child.send_signal(number)

    is_main = threading.current_thread() is threading.main_thread()  # others can handle no signals
    heeded = [number for number in SIGNALS if is_main and signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        yield received
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def _lines(child: "subprocess.Popen[str]") -> Iterator[tuple[str, bool]]:
    """What the child writes, until it closes both: lines, and whether they are of its stderr."""
    found: SimpleQueue[tuple[str, bool] | None] = SimpleQueue()
    pipes = [(pipe, is_error) for pipe, is_error in ((child.stdout, False), (child.stderr, True)) if pipe is not None]
    readers = [threading.Thread(target=_read, args=(*pipe, found), daemon=True) for pipe in pipes]
    for reader in readers:
        reader.start()
    for _ in readers:
        yield from iter(found.get, None)
    for reader in readers:
        reader.join()


def _read(pipe: IO[str], is_error: bool, found: "SimpleQueue[tuple[str, bool] | None]") -> None:
    """After its workers' last lines torchrun follows with a traceback of its own, which says nothing more."""
    is_over = False
    with suppress(ValueError):  # closed, since this process ends
        for line in pipe:
            is_over = is_over or (is_error and bool(OF_LAUNCHER.match(line)))
            if not is_over:
                found.put((line.rstrip("\n"), is_error))
    found.put(None)
