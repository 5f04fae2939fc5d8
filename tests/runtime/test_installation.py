"""The scripts, started outside of .venv: one line that says what to type, never a traceback."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec.runtime.installation import exit_for_missing

ROOT = Path(__file__).parents[2]
ENTRIES = [["preprocessing.py"], ["train.py"], ["-m", "bert4rec", "report"]]
ADVICE = "type `source .venv/bin/activate` first (`make setup` makes .venv), then the same command again"
VERSION = ".".join(map(str, sys.version_info[:3]))


def start(*command: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, env=os.environ | variables)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("entry", ENTRIES, ids=" ".join)
def test_a_python_without_the_packages_says_what_to_type(entry: list[str]) -> None:
    status, said = start(sys.executable, "-S", *entry)  # -S: without what is installed
    line = f"error: {sys.executable} (Python {VERSION}) does not have the package NAME: {ADVICE}\n"
    assert (status, re.sub(r"(?<=package )\w+", "NAME", said)) == (2, line)


@pytest.mark.parametrize("entry", ENTRIES, ids=" ".join)
def test_an_old_python_is_named(entry: list[str]) -> None:
    run = f"run_module({entry[1]!r}" if entry[0] == "-m" else f"run_path({entry[0]!r}"
    pretending = (
        f"import runpy, sys; sys.path.insert(0, ''); sys.version_info = (3, 10, 4); runpy.{run}, run_name='__main__')"
    )
    status, said = start(sys.executable, "-S", "-c", pretending)
    assert (status, said) == (
        2, f"error: {sys.executable} (Python 3.10.4) is too old, 3.11 to 3.13 are supported: {ADVICE}\n"
    )  # fmt: skip


def test_of_several_processes_one_speaks() -> None:
    assert start(sys.executable, "-S", "train.py", LOCAL_RANK="1") == (2, "")


def test_a_module_of_the_package_itself_is_no_matter_of_installing() -> None:
    with pytest.raises(ModuleNotFoundError, match="no such module"):
        exit_for_missing(ModuleNotFoundError("no such module", name="bert4rec.nothing"))


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
    program(tmp_path / ".venv/bin/torchrun", "of .venv")
    assert in_the_shell_of_torchx(tmp_path, "/usr/bin:/bin").stdout == "of .venv\nBASH_ENV=\n"
    program(tmp_path / "bin/torchrun", "of the one that is activated")
    done = in_the_shell_of_torchx(tmp_path, f"{tmp_path}/bin:/usr/bin:/bin")
    assert done.stdout == "of the one that is activated\nBASH_ENV=\n"


def test_torchx_without_any_torchrun_says_what_to_type(tmp_path: Path) -> None:
    done = in_the_shell_of_torchx(tmp_path, str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: torchrun is not on PATH: type 'make setup', then 'source .venv/bin/activate', then the same again\n"
    )


WHILE_IMPORTING = """
import gc, sys, types
from bert4rec.runtime.installation import importing

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
    done = subprocess.run(
        [sys.executable, "-c", WHILE_IMPORTING], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert (done.stdout, done.stderr) == ("False 0\nTrue True\nTrue\nTrue\n", "")
