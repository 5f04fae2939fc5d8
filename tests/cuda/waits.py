"""Where the host waits for a GPU: places of the project, found by torch's own warnings of synchronizing operations."""

import functools
import operator
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).parents[2] / "bert4rec"
MESSAGE = "called a synchronizing CUDA operation"
PACKAGES = ("torchrec", "fbgemm_gpu")


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """Count the waits of the block by place: `file:function` of the project, and what it calls of TorchRec.

    Autograd's own thread has no Python where C++ runs; torch then reports the wait where `backward` was called.
    """
    found: Counter[str] = Counter()
    synchronize = torch.cuda.Event.synchronize

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if MESSAGE in str(message):
            found[place()] += 1

    def noted(event: Any) -> None:  # torch does not report it
        found[place()] += 1
        with reporting("default"):
            synchronize(event)

    with warnings.catch_warnings(), mock.patch.object(torch.cuda.Event, "synchronize", noted), reporting("warn"):
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield found


@contextmanager
def reporting(mode: str) -> Iterator[None]:
    """Let torch report waits in the block as `mode` says."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def place() -> str:
    """Return the innermost function of the project that runs, and the innermost one of TorchRec that it calls."""
    within = ""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):  # from the innermost on
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            return f"{path.relative_to(ROOT)}:{frame.f_code.co_qualname}" + (f" > {within}" if within else "")
        if not within and any(package in path.parts for package in PACKAGES):
            within = frame.f_code.co_qualname
    return "elsewhere"


WARM_STEPS = 2  # much is made only in the first steps
PARTS = {"_start_sync": "", "_report": "report", "_validate": "evaluation", "_save": "save"}  # methods of the trainer


@contextmanager
def waits_by_part() -> Iterator[dict[str, list[Counter[str]]]]:
    """Count the waits of the trainings in the block by part: of each step, report, evaluation and save.

    A step is what happens from a batch to the next one, without the other parts. An evaluation has several tiles of
    items and several groups of users in each.
    """
    from bert4rec.evaluation import tiles
    from bert4rec.training.trainer import Trainer

    parts: dict[str, list[Counter[str]]] = {name: [] for name in ("step", "report", "evaluation", "save")}

    with waits() as found, ExitStack() as patches:

        def take(part: str) -> None:
            if found and part:
                parts[part].append(Counter(found))
                found.clear()

        def counted(original: Any, part: str) -> Any:
            def call(self: Trainer, *args: Any) -> Any:
                take("step")
                try:
                    return original(self, *args)
                finally:
                    take(part)

            return call

        patches.enter_context(mock.patch.multiple(tiles, MIN_TILE=16, MAX_TILE=16, USERS_AT_ONCE=8))
        for method, part in PARTS.items():
            patches.enter_context(mock.patch.object(Trainer, method, counted(getattr(Trainer, method), part)))
        yield parts


def places(parts: Sequence[Counter[str]], first: int = 0) -> Counter[str]:
    """Return the most waits at each place in one of the `parts` from number `first` on."""
    return functools.reduce(operator.or_, parts[first:], Counter())
