"""Whole runs for the tests of checkpoints: one without a break, and settings for more of them.

torch is imported where it is needed, as in the conftest.py above.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from tests.conftest import SMALL

Make = Callable[..., Config]
USUAL = {"training.n_epochs": 3, "training.eval_every_n_epochs": 1, "checkpoint.keep": 9}


@pytest.fixture
def make(small_config: Make) -> Make:
    """Settings of short runs that are validated after every epoch."""

    def settings(**changes: Any) -> Config:
        return small_config(**USUAL | changes)

    return settings


@pytest.fixture(scope="session")
def made(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a break: 3 epochs of 7 steps."""
    from bert4rec.training.run import run

    places = {"data.dataset_dir": str(small_folder), "run.dir": str(tmp_path_factory.mktemp("runs"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.device_count", lambda: 0)
        return run(load_config(None, SMALL | USUAL | places | {"run.name": "whole"}))


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be gone on with."""
    return Path(shutil.copytree(made, tmp_path / "runs" / "whole", symlinks=True))


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in found(folder / "checkpoints")]
