"""Commands whose output nobody reads any more, as real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_without_reader(command: list[str]) -> subprocess.CompletedProcess[str]:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=280,
            check=False,
        )  # fmt: skip
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    "command",
    [
        ["preprocessing.py", "--help"],
        ["train.py", "--help"],
        ["-m", "bert4rec", "--help"],
        ["-m", "bert4rec"],
        ["-m", "bert4rec", "check", "--help"],
    ],
    ids=" ".join,
)
def test_help_ends_as_other_tools_do(command: list[str]) -> None:
    done = run_without_reader(command)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_preparation_ends_without_a_dataset(tmp_path: Path) -> None:
    target = f"--data.dataset_dir={tmp_path / 'dataset'}"
    done = run_without_reader(["preprocessing.py", "--config=/dev/null", target])
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_who_stays_gets_all_and_status_0() -> None:
    done = subprocess.run([sys.executable, "train.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python train.py ")
    assert "--run.trackers=" in done.stdout.splitlines()[-1]
