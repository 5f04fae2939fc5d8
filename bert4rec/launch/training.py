"""A training on several processes, started from a running program: nothing but its settings crosses."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bert4rec.launch.child import StoppedError, run_child
from bert4rec.runtime.console import EVENT, EVENTS
from bert4rec.runtime.errors import UserError

ERROR = "error: "  # how the line begins that a command ends with


class View(Protocol):
    """What shows a training to a person."""

    def line(self, text: str) -> None:
        """A line of what the training says."""

    def progress(self, done: int, total: int, figures: str) -> None:
        """`done` of `total` steps, or batches; the `figures` stand beside."""


def train_on(words: Sequence[str], *, n_processes: int, view: View) -> Path:
    """`bert4rec train` with these `words` on as many processes of this host, by torch's elastic launcher; the run.

    Raises what has ended it otherwise: `UserError`, or `KeyboardInterrupt` with what to do; then no process is left.
    """
    folder: list[Path] = []
    saved: list[str] = []
    errors: list[str] = []

    def show(line: str) -> None:
        if not line.startswith(EVENT):
            view.line(line)
            return
        event: dict[str, Any] = json.loads(line.removeprefix(EVENT))
        if "run" in event:
            folder.append(Path(event["run"]))
        elif "stopped" in event:
            saved.append(event["stopped"])
        else:
            view.progress(**event)

    try:
        status = run_child(
            ["train", *words], n_processes=n_processes, show=show, show_error=errors.append, variables={EVENTS: "1"}
        )
    except StoppedError as stop:
        raise KeyboardInterrupt(_how_to_go_on(stop, folder, saved, n_processes)) from None
    if status:
        raise _error(status, errors)
    return folder[-1]


def _how_to_go_on(stop: StoppedError, folder: Sequence[Path], saved: Sequence[str], n_processes: int) -> str:
    if not folder:
        return f"stopped by {stop} before the first step: nothing has changed"
    what = saved[-1] if saved else f"stopped by {stop}: left without saving, the last checkpoint counts"
    settings = f'{{"run.resume": "{folder[-1]}"}}'
    return f"{what}; continue with: train({settings}, processes={n_processes})"


def _error(status: int, lines: Sequence[str]) -> Exception:
    """What the processes have said, as the functions for Python raise it; of a crash all, as a `RuntimeError`."""
    said = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    if not said:
        return RuntimeError("\n".join([f"the training has ended with status {status}", *lines]))
    return UserError(said[-1])
