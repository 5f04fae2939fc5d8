"""Runs interrupted on a terminal, and gone on with by the commands that they print themselves."""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from bert4rec.__main__ import main
from tests.fixture_types import Capture, Patch, Settings
from tests.launch import ALONE, BIN, ROOT, settings_file
from tests.terminal import on_terminal, screen

BAR = re.compile(r" *\d+ % \|(.+)\| epoch \d+\.\d/\d+  loss \d+\.\d{3}(  \S+ sequences/s)?  \d+:\d\d left(\^C)?")


@pytest.fixture(autouse=True)
def commands_of_this_environment(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def training_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "report.json").read_text())["training"]


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_an_interrupt_leaves_the_bar_whole_and_a_command_that_resumes(
    make: Settings, tmp_path: Path, capsys: Capture
) -> None:
    short = {"training.n_epochs": 6, "training.eval_every_n_epochs": 6, "checkpoint.every_steps": 0}
    file = settings_file(make(**short, **{"run.dir": str(tmp_path / "my runs")}), tmp_path)
    written, status = on_terminal([*ALONE, file], folder=ROOT, interrupt_after=" left")
    assert status == 130
    *_, bar, last, nothing = screen(written)
    assert nothing == ""
    found = BAR.fullmatch(bar)
    assert found is not None, bar
    assert len(found[1]) >= 10
    run = tmp_path / "my runs" / "small"
    message, command = last.split("; continue with: ")
    assert re.fullmatch(r"stopped by SIGINT: saved after step \d+", message)
    assert command == f"bert4rec train '--resume={run}'"
    assert main(shlex.split(command)[1:]) == 0
    assert f"resumed after step {message.split()[-1]}, " in capsys.readouterr().out
    assert (training_of(run)["epochs"], training_of(run)["stopped_by"]) == (6, "n_epochs")


@pytest.mark.long
def test_an_interrupt_of_the_preparation_takes_its_bar_away(tmp_path: Path) -> None:
    data = {"source": "random", "n_rows": 4_000_000, "n_users": 100_000, "n_items": 100_000,
            "dataset_dir": tmp_path / "dataset"}  # fmt: skip
    command = [sys.executable, "preprocessing.py", *(f"--data.{key}={value}" for key, value in data.items())]
    written, status = on_terminal(command, folder=ROOT, interrupt_after="order ")
    assert status == 130
    assert [line for line in screen(written) if "%" in line or "^C" in line] == []
    assert screen(written)[-2].startswith("stopped: ")
