"""Cores as the system grants them, and the threads of processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec.runtime import cores
from bert4rec.runtime.cores import _limits, threads_of_process, usable_cores


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_limits_of_control_groups_count(tmp_path: Path) -> None:
    write(tmp_path / "job", cpu__max="150000 100000\n")
    write(tmp_path / "job" / "step", cpu__max="max 100000\n")
    assert list(_limits("0::/job/step\n", tmp_path)) == [1.5]
    write(tmp_path / "cpu" / "old", cpu__cfs_quota_us="400000\n", cpu__cfs_period_us="100000\n")
    write(tmp_path / "cpu", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert list(_limits("5:cpu,cpuacct:/old\n4:memory:/old\n", tmp_path)) == [4.0]
    write(tmp_path / "job", cpu__max="something else")
    assert list(_limits("0::/job/step\n", tmp_path)) == []


@pytest.mark.parametrize(("limits", "expected"), [([], 8), ([1.5], 2), ([0.5], 1), ([16.0, 3.0], 3)])
def test_usable_cores(monkeypatch: pytest.MonkeyPatch, limits: list[float], expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "_limits", lambda: iter(limits))
    assert usable_cores() == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 4),
        ({"OMP_NUM_THREADS": "1"}, None),  # somebody's choice
        ({"OMP_NUM_THREADS": "1", "RANK": "0"}, 4),  # the default of torchrun
        ({"OMP_NUM_THREADS": "3", "RANK": "0"}, None),
    ],
)
def test_threads_of_a_process(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: int | None) -> None:
    for name in ("OMP_NUM_THREADS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    assert threads_of_process(2) == expected
    assert threads_of_process(100) == (None if expected is None else 1)


SPINS = "import bert4rec, os; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, cores.SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None")],
)
def test_threads_do_not_spin_for_long_unless_somebody_wants_it(variables: dict[str, str], expected: str) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    others = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", SPINS]
    done = subprocess.run(command, env=others | variables, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == expected
