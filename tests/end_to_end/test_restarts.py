"""Restarts by the launchers' own means: torchrun's, and those of the script that torchx hands to Slurm."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from torchx.runner import get_runner

from bert4rec.checkpoint.run_folder import found
from tests.end_to_end.test_faults import launch
from tests.fixture_types import Patch, Settings
from tests.launch import BIN, ROOT, TORCHRUN, report_of, settings_file, start

pytestmark = pytest.mark.long

# What the script needs of Slurm: `srun OPTIONS bash -c COMMAND` as a step of its own, with the variables that it is
# given, and to be put back.
SRUN = """#!/bin/bash
echo $$ > "$STAND_IN/step"
while [[ "$1" == --* ]]; do
    [[ "$1" != --export=ALL,* ]] || { given=${1#--export=ALL,} && export ${given//,/ }; }
    shift
done
exec setsid "$@"
"""
SCONTROL = """#!/bin/bash
[[ "$1 $2" == "requeue 7" ]] && touch "$STAND_IN/requeued"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with stand-ins for Slurm's commands, on PATH."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(folder))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return folder


def slurm_script(*arguments: str) -> str:
    """What torchx would hand to sbatch."""
    with get_runner() as runner:
        component = ["-j", "1x2", "--max_retries", "3", "--script", "train.py", "--", *arguments]
        return runner.dryrun_component("dist.ddp", component, "slurm", {}).request.materialize()


def test_slurm_puts_a_run_back_that_was_asked_to_end(
    make: Settings, tmp_path: Path, slurm: Path, monkeypatch: Patch
) -> None:
    """A SIGTERM to the step, as before the end of the time limit: saved, put back, gone on with, done."""
    whole = start([*TORCHRUN, settings_file(make(**{"run.name": "whole"}), tmp_path)])
    assert whole.returncode == 0, whole.stderr
    script = slurm_script(settings_file(make(**{"run.name": "broken"}), tmp_path), "--resume=auto")
    run = tmp_path / "runs" / "broken"

    def stop() -> None:
        while not found(run / "checkpoints"):
            time.sleep(0.05)
        os.killpg(int((slurm / "step").read_text()), signal.SIGTERM)

    statuses, output = [], ""
    for restart in range(2):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        if not restart:
            threading.Thread(target=stop, daemon=True).start()
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        statuses.append((done.returncode != 0, (slurm / "requeued").exists()))
        (slurm / "requeued").unlink(missing_ok=True)
        output += done.stdout + done.stderr
    assert statuses == [(True, True), (False, False)], output
    saved = r"stopped by SIGTERM: saved after step (\d+); continue with: torchx run -s slurm dist\.ddp -j 1x2 "
    (step,) = re.findall(saved, output)
    assert f"resumed after step {step}," in output
    assert report_of(run) == report_of(tmp_path / "runs" / "whole")


def test_torchrun_starts_all_processes_anew_after_one_has_died(
    make: Settings, tmp_path: Path, monkeypatch: Patch
) -> None:
    whole = start([*TORCHRUN, settings_file(make(**{"run.name": "whole"}), tmp_path)])
    assert whole.returncode == 0, whole.stderr
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    file = settings_file(make(**{"run.name": "broken"}), tmp_path)
    run = tmp_path / "runs" / "broken"
    started = launch(file, "--max_restarts=1")
    started.wait_for(" epochs of ")
    while not found(run / "checkpoints"):
        time.sleep(0.05)
    os.kill(started.ranks()[1], signal.SIGKILL)
    assert started.end(240) == 0, started.output
    assert re.search(r"resumed after step \d+,", started.output)
    assert report_of(run) == report_of(tmp_path / "runs" / "whole")
