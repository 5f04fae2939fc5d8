"""The scripts as real processes: outside of .venv, and with output that is not read to its end."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec.runtime.errors import (
    DataError,
    DivergenceError,
    Interrupted,
    RunInterruptedError,
    SettingsError,
    UserError,
)
from bert4rec.runtime.startup import exit_for_missing

ROOT = Path(__file__).parents[2]
ENTRIES = [["preprocessing.py"], ["train.py"], ["-m", "bert4rec", "report"]]


def test_the_exit_statuses_of_errors() -> None:
    classes = (UserError, SettingsError, DataError, RunInterruptedError, DivergenceError)
    assert [cls("a line").status for cls in classes] == [2, 2, 2, 1, 1]
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    assert [Interrupted(number, "saved").status for number in signals] == [130, 143, 129]
    assert [number.name in str(Interrupted(number, "saved")) for number in signals] == [True] * 3


def start(*command: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100, env=os.environ | variables)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("entry", ENTRIES, ids=" ".join)
def test_a_python_without_the_packages_names_one(entry: list[str]) -> None:
    status, said = start(sys.executable, "-S", *entry)  # -S: without what is installed
    assert (status, said.count("\n")) == (2, 1)
    assert {sys.executable, "package"} <= {*said.split()}
    assert ".venv/bin/activate" in said


@pytest.mark.parametrize("entry", ENTRIES, ids=" ".join)
def test_an_old_python_is_named(entry: list[str]) -> None:
    run = f"run_module({entry[1]!r}" if entry[0] == "-m" else f"run_path({entry[0]!r}"
    pretending = (
        f"import runpy, sys; sys.path.insert(0, ''); sys.version_info = (3, 10, 4); runpy.{run}, run_name='__main__')"
    )
    status, said = start(sys.executable, "-S", "-c", pretending)
    assert (status, said.count("\n")) == (2, 1)
    assert f"{sys.executable} (Python 3.10.4)" in said


def test_one_of_several_processes_speaks_and_not_of_modules_of_the_package_itself() -> None:
    assert start(sys.executable, "-S", "train.py", LOCAL_RANK="1") == (2, "")
    with pytest.raises(ModuleNotFoundError):
        exit_for_missing(ModuleNotFoundError(name="bert4rec.nothing"))


def in_the_shell_of_torchx(folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    """As torchx starts torchrun: by a shell that reads scripts/torchx_env.sh first."""
    config = (ROOT / ".torchxconfig").read_text()
    assert "BASH_ENV=scripts/torchx_env.sh" in config
    (folder / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts/torchx_env.sh", folder / "scripts")
    variables = {"PATH": path, "BASH_ENV": "scripts/torchx_env.sh"}
    command = ["/bin/bash", "-c", "torchrun; echo BASH_ENV=$BASH_ENV"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables, check=False)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {text}\n")
    path.chmod(0o755)


def test_torchx_finds_the_torchrun_of_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    done = in_the_shell_of_torchx(tmp_path, str(tmp_path))
    assert (done.returncode, done.stdout, "make setup" in done.stderr) == (2, "", True)
    program(tmp_path / ".venv/bin/torchrun", "of .venv")
    assert in_the_shell_of_torchx(tmp_path, "/usr/bin:/bin").stdout == "of .venv\nBASH_ENV=\n"
    program(tmp_path / "bin/torchrun", "of the one that is activated")
    done = in_the_shell_of_torchx(tmp_path, f"{tmp_path}/bin:/usr/bin:/bin")
    assert done.stdout == "of the one that is activated\nBASH_ENV=\n"


WHILE_IMPORTING = """
import gc, sys, types
from bert4rec.runtime.startup import importing

try:
    with importing():
        print(gc.isenabled(), gc.get_freeze_count())
        raise ImportError
except ImportError:
    frozen = gc.get_freeze_count()
    print(gc.isenabled(), frozen > 0)
sys.modules["torchrec"] = types.ModuleType("torchrec")
with importing():
    print(gc.isenabled())
print(gc.get_freeze_count() <= frozen)
"""


def test_no_garbage_is_looked_for_while_large_packages_are_imported() -> None:
    command = [sys.executable, "-c", WHILE_IMPORTING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100, check=False)
    assert (done.stdout, done.stderr) == ("False 0\nTrue True\nTrue\nTrue\n", "")


@pytest.mark.parametrize(
    "command",
    [
        "train.py --help", "-m bert4rec check --help",
        "preprocessing.py --config=/dev/null --data.dataset_dir=FOLDER",
    ],
)  # fmt: skip
def test_a_command_ends_by_sigpipe_and_leaves_nothing(command: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, *command.replace("FOLDER", str(tmp_path / "dataset")).split()]
    streams = {"stdout": writing, "stderr": subprocess.PIPE}
    try:
        done = subprocess.run(words, cwd=ROOT, **streams, text=True, timeout=1100, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_who_stays_gets_all_of_the_help_and_status_0() -> None:
    done = subprocess.run(
        [sys.executable, "train.py", "--help-all"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python train.py ")
    assert "--run.trackers=" in done.stdout.splitlines()[-2]
