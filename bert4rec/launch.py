"""Run a training in new processes, started from a running program; only the settings are passed."""

import html
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from bert4rec.runtime.console import EVENT, EVENTS_VARIABLE, SECONDS_BETWEEN_LINES
from bert4rec.runtime.errors import UserError
from bert4rec.runtime.signals import PARENT, SIGNALS

TRAIN = ["-m", "bert4rec", "train"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
TORCHRUN_LOG = re.compile(r"[WE]\d{4} \d\d:")  # the start of a line of torchrun's own log
ERROR = "error: "  # the start of the last line of a failed command
CELL_LINES = 12  # number of last lines that a cell shows

logger = logging.getLogger(__name__)


class View:
    """Log the lines of a training and, at intervals, its progress; `log_to_terminal` shows them."""

    _shown_at = float("-inf")

    def line(self, text: str) -> None:
        """Show a line that the training prints."""
        logger.info(text)

    def progress(self, done: int, total: int, figures: str) -> None:
        """Show that `done` of `total` steps or batches are done, and `figures`, unless it was shown just before."""
        if time.monotonic() - self._shown_at >= SECONDS_BETWEEN_LINES:
            self._shown_at = time.monotonic()
            logger.info(f"{done:,}/{total:,}  {figures}")


class CellView(View):
    """Show a bar, its figures and the last lines in the output of a notebook cell, updated in place."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._lines = HTML, list[str]()
        self._progress = (0, 1, "starting")
        self._handle = display(self._page(), display_id=True)

    def line(self, text: str) -> None:
        """Show a line below the bar."""
        if text.strip():
            self._lines.append(text)
            self._handle.update(self._page())

    def progress(self, done: int, total: int, figures: str) -> None:
        """Move the bar."""
        self._progress = (done, total, figures)
        self._handle.update(self._page())

    def _page(self) -> object:
        (done, total, figures), lines = self._progress, "\n".join(self._lines[-CELL_LINES:])
        return self._html(
            f'<progress value="{done}" max="{total}" style="width: 20em"></progress> '
            f"{100 * done / total:.0f} % {html.escape(figures)}"
            f'<pre style="white-space: pre-wrap">{html.escape(lines)}</pre>'
        )


def make_view() -> View:
    """Return a `CellView` if this process is the kernel of a notebook, else a `View`."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return CellView() if type(shell).__name__ == "ZMQInteractiveShell" else View()


def train_on(words: Sequence[str], *, n_processes: int, view: View) -> Path:
    """Run `bert4rec train` with these `words` on `n_processes` of this host, and return the run folder.

    Signals are passed on. The processes end before this function returns, and stop as after SIGTERM if this process
    dies. Raises `UserError` for an error of the training, `RuntimeError` with its error output for a crash, and
    `KeyboardInterrupt` with advice on how to continue after a signal.
    """
    launcher = [*TORCHRUN, f"--nproc_per_node={n_processes}"] if n_processes > 1 else []
    variables = {PARENT: "1", EVENTS_VARIABLE: "1"}
    if launcher:  # avoids torchrun's warning that it sets this variable
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    events: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        child = subprocess.Popen(
            [sys.executable, *launcher, *TRAIN, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8",
            start_new_session=True,  # so that the child gets Ctrl-C only once, from this process
            env=os.environ | variables,
        )  # fmt: skip
        with _signals_passed_to(child) as received:
            assert child.stdout is not None
            for line in child.stdout:
                if not line.startswith(EVENT):
                    view.line(line.rstrip("\n"))
                elif "total" in (event := json.loads(line.removeprefix(EVENT))):
                    view.progress(**event)
                else:
                    events |= event
            status = child.wait()
        errors.seek(0)
        error_lines = [line.rstrip("\n") for line in takewhile(lambda line: not TORCHRUN_LOG.match(line), errors)]
    if received:
        raise KeyboardInterrupt(_how_to_continue(signal.Signals(received[0]).name, events, n_processes))
    if status:
        messages = [line.removeprefix(ERROR) for line in error_lines if line.startswith(ERROR)]
        if messages:
            raise UserError(messages[-1])
        raise RuntimeError("\n".join([f"the training has ended with status {status}", *error_lines]))
    return Path(events["run"])


def _how_to_continue(name: str, events: dict[str, Any], n_processes: int) -> str:
    if "run" not in events:
        return f"stopped by {name} before the first step: nothing has changed"
    state = events.get("stopped", f"stopped by {name}: left without saving, the last checkpoint counts")
    return f'{state}; continue with: train({{"run.resume": "{events["run"]}"}}, processes={n_processes})'


@contextmanager
def _signals_passed_to(child: "subprocess.Popen[str]") -> Iterator[list[int]]:
    """Pass the signals of this process on to `child`, and yield a list of those received; `child` ends on exit."""
    received: list[int] = []

    def pass_on(number: int, _: Any) -> None:
        received.append(number)
        with suppress(ProcessLookupError):
            child.send_signal(number)

    is_main = threading.current_thread() is threading.main_thread()  # only this thread can set handlers
    # A signal that is ignored, as under nohup, stays ignored.
    handled = [number for number in SIGNALS if is_main and signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in handled}
    try:
        yield received
    finally:
        assert child.stdout is not None
        child.stdout.close()  # first: a child that writes to a full pipe would not end
        if child.poll() is None:
            child.terminate()
            child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
