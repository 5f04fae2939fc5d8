"""SIGTERM, SIGINT and SIGHUP: recorded until all processes of a run act on them together, or no longer can."""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from bert4rec.runtime.console import close_bars

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PARENT = "BERT4REC_PARENT"  # environment variable: set if a command of this program started this process and reports it
PATIENCE = 8.0  # seconds; torchx kills a process ten seconds after SIGTERM


def log_interrupted(text: str) -> None:
    """Print the last line of a command that a signal has ended, unless its parent process prints it.

    Closes the progress bar first.
    """
    close_bars()
    if PARENT not in os.environ:
        with suppress(OSError):  # the terminal is closed
            print(text, file=sys.stderr, flush=True)


@cache
def stop_with_launchers() -> None:
    """Stop as after SIGTERM as soon as a launcher of this process has ended, for any reason."""

    def stop() -> None:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            with suppress(OSError):  # the launcher may have been the reader
                print("the launcher of this run has ended: stopping as after SIGTERM", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    call_when_ended(_launchers(), stop)


def _launchers() -> list[int]:
    """Return the processes with which this one ends: torchrun, and torchx or a command of this program around it.

    Each launcher starts a session for its child: it is the parent of the first process of that session.
    """
    is_local = PARENT in os.environ or os.environ.get("TORCHX_JOB_ID", "").startswith("local_cwd:")
    launchers, pid = list[int](), os.getpid()
    for _ in range(is_local + ("TORCHELASTIC_RUN_ID" in os.environ)):
        try:
            leader = os.getsid(pid)
            pid = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1]) if leader else 0
        except (ProcessLookupError, FileNotFoundError):
            pid = leader  # has ended
        if not pid:  # outside of the container of this process, and not visible from here
            break
        launchers.append(pid)
    return launchers


def call_when_ended(pids: Sequence[int], function: Callable[[], None]) -> None:
    """Call `function`, in a thread, as soon as one of the processes `pids` of this host has ended."""

    def watch() -> None:
        with suppress(ProcessLookupError):  # has ended before
            select.select([os.pidfd_open(pid) for pid in pids], [], [])
        function()

    if pids:
        threading.Thread(target=watch, name="watch", daemon=True).start()


class Interruption:
    """Records the first of `SIGNALS` as `number` while the context is open, instead of ending the process.

    All processes exchange their signals at every step, and then call `answered`. Without this call within `patience`
    seconds of a signal, other processes are dead or stuck, and the process ends with the status of the signal. With
    `patience` None, the context never ends the process.
    """

    def __init__(self, patience: float | None = PATIENCE) -> None:
        self.number = 0
        self._patience, self._is_busy, self._is_over = patience, False, False
        self._answered = threading.Event()
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python sets signal handlers in the main thread only
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        # Through a pipe: Python calls handlers in the main thread only, which may be waiting for a message.
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
        self._before = {number: signal.signal(number, lambda *_: None) for number in heeded}
        threading.Thread(target=self._watch, name="signals", daemon=True).start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            signal.set_wakeup_fd(self._wakeup_before)  # may belong to an event loop
            os.close(self._write)
            if self._patience is None or error is None:  # no answer is needed any more
                self._is_over = True
                self._answered.set()  # wake the thread that may be waiting

    def answered(self) -> None:
        """Record that all processes have exchanged their signals."""
        self._answered.set()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Do not end the process after a signal while the block runs, such as saving a checkpoint."""
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    def _watch(self) -> None:
        """Wait for one of `SIGNALS` until the context ends and closes the pipe; ignore other signals."""
        for received in iter(lambda: os.read(self._read, 1), b""):
            if received[0] in SIGNALS and not self.number:
                self._handle_signal(received[0])
        os.close(self._read)

    def _handle_signal(self, number: int) -> None:
        self._answered.clear()
        self.number = number
        while not self._is_over and not self._answered.wait(self._patience):
            if not self._is_busy:
                name = signal.Signals(number).name
                print(f"{name}: no answer from the other processes, ended without saving", file=sys.stderr, flush=True)
                os._exit(128 + number)


@contextmanager
def ending_on_broken_pipe() -> Iterator[None]:
    """End this process silently by SIGPIPE, as `ls` and `cat` do, if the reader of its output has closed the pipe.

    Python ignores that signal, and would end with a traceback, or with a message when the interpreter shuts down.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
