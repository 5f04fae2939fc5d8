"""The scripts as real processes: outside of .venv, and with output that is not read to its end."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec.runtime.errors import Interrupted
from bert4rec.runtime.startup import exit_for_missing, importing
from tests.checks import Patch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interruption_names_its_signal_and_has_its_status(number: signal.Signals, status: int) -> None:
    error = Interrupted(number, "saved")
    assert (error.status, number.name in str(error)) == (status, True)


def start(*command: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100, env=os.environ | variables)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("entry", ["preprocessing.py", "train.py", "-m bert4rec report"])
def test_a_python_that_is_old_or_lacks_the_packages_is_named(entry: str) -> None:
    name = entry.split()[-1 if entry.endswith(".py") else 1]
    run = f"run_path({name!r}" if entry.endswith(".py") else f"run_module({name!r}"
    pretending = (
        f"import runpy, sys; sys.path.insert(0, ''); sys.version_info = (3, 10, 4); runpy.{run}, run_name='__main__')"
    )
    for command, word in ((entry.split(), "package"), (["-c", pretending], "3.10.4)")):
        status, said = start(sys.executable, "-S", *command)  # -S: without what is installed
        assert (status, said.count("\n")) == (2, 1)
        assert {sys.executable, word} <= {*said.split()}
        assert ".venv/bin/activate" in said


def test_one_of_several_processes_speaks_and_not_of_modules_of_the_package_itself() -> None:
    assert start(sys.executable, "-S", "train.py", LOCAL_RANK="1") == (2, "")
    with pytest.raises(ModuleNotFoundError):
        exit_for_missing(ModuleNotFoundError(name="bert4rec.nothing"))


def in_the_shell_of_torchx(folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    """As torchx starts torchrun: by a shell that reads scripts/torchx_env.sh first."""
    assert "BASH_ENV=scripts/torchx_env.sh" in (ROOT / ".torchxconfig").read_text()
    (folder / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts/torchx_env.sh", folder / "scripts")
    variables = {"PATH": path, "BASH_ENV": "scripts/torchx_env.sh"}
    command = ["/bin/bash", "-c", "torchrun; echo BASH_ENV=$BASH_ENV"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables, check=False)


def test_torchx_finds_the_torchrun_of_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    done = in_the_shell_of_torchx(tmp_path, str(tmp_path))
    assert (done.returncode, done.stdout, "make setup" in done.stderr) == (2, "", True)
    for place, path in ((".venv/bin", "/usr/bin:/bin"), ("bin", f"{tmp_path}/bin:/usr/bin:/bin")):
        program = tmp_path / place / "torchrun"  # an environment that is activated goes before .venv
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho of {place}\n")
        program.chmod(0o755)
        assert in_the_shell_of_torchx(tmp_path, path).stdout == f"of {place}\nBASH_ENV=\n"


def test_no_garbage_is_looked_for_while_large_packages_are_imported(monkeypatch: Patch) -> None:
    frozen = list[bool]()
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.delitem(sys.modules, "torchrec", raising=False)
    with pytest.raises(ImportError, match="False"), importing():
        raise ImportError(str(gc.isenabled()))
    assert (gc.isenabled(), frozen) == (True, [False])
    monkeypatch.setitem(sys.modules, "torchrec", gc)
    with importing():
        assert gc.isenabled()
    assert frozen == [False]


@pytest.mark.parametrize(
    "command", ["-m bert4rec check --help", "preprocessing.py --config=/dev/null --data.dataset_dir=FOLDER"]
)
def test_a_command_ends_by_sigpipe_and_leaves_nothing(command: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, *command.replace("FOLDER", str(tmp_path / "dataset")).split()]
    try:
        done = subprocess.run(
            words, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=1100, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
    assert list(tmp_path.iterdir()) == []
