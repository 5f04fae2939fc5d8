"""Whole runs in this process, interrupted and damaged."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from bert4rec.checkpoint.growth import read_grown
from bert4rec.checkpoint.run_folder import found
from bert4rec.config.tables import Config
from bert4rec.evaluation import ranker
from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.runtime import files
from bert4rec.runtime.errors import Interrupted
from bert4rec.runtime.processes import group_of_one
from bert4rec.runtime.signals import Interruption
from bert4rec.training.run import run
from tests.conftest import leave_group

Make = Callable[..., Config]


def assert_same_results(one: Path, other: Path) -> None:
    first, second = report_of(one), report_of(other)
    for name in ("validation", "test"):
        assert first[name] == second[name]
    for name in ("epochs", "steps", "best_epoch", "stopped_by"):
        assert first["training"][name] == second["training"][name]


def interrupted(config: Config) -> str:
    """What a run says that a signal ends."""
    with pytest.raises(Interrupted) as caught:
        run(config)
    leave_group()
    assert caught.value.status == 143
    return str(caught.value)


def in_step(
    monkeypatch: pytest.MonkeyPatch, target: Any, name: str, number: int, *, sent: int = signal.SIGTERM
) -> None:
    """Send this process the signal `sent` at call `number` of `target.name`, and wait until it is noticed.

    A thread notices it, which on a busy machine may come too late for a short run.
    """
    original, enter, calls = getattr(target, name), Interruption.__enter__, 0
    entered: list[Interruption] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), sent)
            while not entered[-1].number:
                time.sleep(0.001)
        return original(*args, **kwargs)

    def remembered(self: Interruption) -> Interruption:
        entered.append(self)
        return enter(self)

    monkeypatch.setattr(Interruption, "__enter__", remembered)
    monkeypatch.setattr(target, name, wrapped)


FORWARD, EVALUATION = (Bert4Rec, "forward"), (ranker.Ranker, "_encode_batch")


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def edit_facts(checkpoint_folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change what a checkpoint says, and make it whole again."""
    path = checkpoint_folder / "facts.json"
    facts = json.loads(path.read_text())
    edit(facts)
    path.write_text(json.dumps(facts))
    names = [file.name for file in checkpoint_folder.iterdir() if file.name != files.MANIFEST]
    files.write_manifest(checkpoint_folder, files.describe(checkpoint_folder, names))


def tensors_of(checkpoint_folder: Path) -> dict[str, Tensor]:
    with group_of_one():
        return read_grown(checkpoint_folder, 0)


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in found(folder / "checkpoints")]
