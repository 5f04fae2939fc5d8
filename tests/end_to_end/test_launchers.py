"""Launchers that are killed cannot tell the processes that they have started: those save and end by themselves."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.checkpoint.store import verify
from bert4rec.config.tables import Config
from bert4rec.runtime.processes import group_of_one
from tests.conftest import long
from tests.fixture_types import Settings
from tests.launch import ALONE, TORCHRUN, TORCHX, Launched, report_of, settings_file, start

SECONDS = 10.0  # from the end of a launcher to that of the last process
MARK = "LAUNCHED_BY_TEST"  # environment variable that all processes of a launch inherit
LOADED = {"training.num_workers": 1}


def processes_of(mark: Path) -> dict[int, str]:
    """Return the command lines of the processes with this mark, those of their loaders and fork servers included."""
    living = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                living[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended meanwhile
            continue
    return living


def assert_all_end(mark: Path, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while (living := processes_of(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not living


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for pid in processes_of(tmp_path):  # of a test that has failed
        os.kill(pid, signal.SIGKILL)


def by_torchrun(config: Config, folder: Path) -> list[str]:
    return [*TORCHRUN, settings_file(config, folder)]


def one_by_torchrun(config: Config, folder: Path) -> list[str]:
    return [word.replace("node=2", "node=1") for word in by_torchrun(config, folder)]


def by_torchx(config: Config, folder: Path) -> list[str]:
    where = ["--scheduler_args", f"log_dir={folder / 'logs'}"]
    return [*TORCHX[:4], *where, *TORCHX[4:], settings_file(config, folder)]


def program(config: Config, folder: Path, n_processes: int | None) -> str:
    file = settings_file(config, folder).removeprefix("--config=")
    train = f"bert4rec.train(config={file!r}, processes={n_processes})"
    return f"import bert4rec\nif __name__ == '__main__':\n    {train}"  # the loader processes import it, too


def by_program(config: Config, folder: Path) -> list[str]:
    return [sys.executable, "-c", program(config, folder, 2)]


def by_program_alone(config: Config, folder: Path) -> list[str]:
    return [sys.executable, "-c", program(config, folder, 1)]


def programs_by_torchrun(config: Config, folder: Path) -> list[str]:
    (folder / "program.py").write_text(program(config, folder, None))
    return [*TORCHRUN[:-1], str(folder / "program.py")]


@pytest.mark.parametrize(
    ("command", "killed", "goes_on"),
    [
        long(one_by_torchrun, "torchrun", False),
        long(by_torchrun, "torchrun", True),
        long(by_torchx, "torchx run", True),
        long(by_torchx, "torchrun", True),
        long(by_program, "import bert4rec", True),
        long(by_program, "torch.distributed.run", True),
        long(programs_by_torchrun, "torchrun", True),
        long(by_program_alone, "import bert4rec", True),
    ],
)
def test_a_training_saves_and_ends_with_a_launcher_that_is_killed(
    make: Settings, mark: Path, command: Callable[[Config, Path], list[str]], killed: str, goes_on: bool
) -> None:
    """And it goes on from there to the figures of a training without a break."""
    run = mark / "runs" / "broken"
    endless = make(**LOADED, **{"training.n_epochs": 100_000, "run.name": "broken"})
    started = Launched(command(endless, mark), **{MARK: f"{mark}"})
    while not found(run / "checkpoints"):
        assert started.process.poll() is None, started.output
        time.sleep(0.05)
    (pid,) = [pid for pid, line in processes_of(mark).items() if killed in line and "bash" not in line]
    os.kill(pid, signal.SIGKILL)
    assert_all_end(mark, 60 if command is programs_by_torchrun else SECONDS)  # programs get an exception
    started.end()
    with group_of_one():
        verify(found(run / "checkpoints")[-1])
    if not goes_on:
        return
    step = int(found(run / "checkpoints")[-1].name.removeprefix("step-"))
    n_epochs = 10 * (step // 130 + 1)
    launcher = ALONE if command is by_program_alone else TORCHRUN
    resumed = start([*launcher, f"--resume={run}", f"--training.n_epochs={n_epochs}"])
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed after step {step}," in resumed.stdout
    whole = make(**LOADED, **{"training.n_epochs": n_epochs, "run.name": "whole"})
    done = start([*launcher, settings_file(whole, mark)])
    assert done.returncode == 0, done.stderr
    assert report_of(run) == report_of(mark / "runs" / "whole")


def test_a_process_that_waits_for_the_others_ends_with_its_launcher(make: Settings, mark: Path) -> None:
    """Before the first step, when nothing is to be saved: the process waits for an answer of the first one."""
    with socket.create_server(("localhost", 0)) as first:
        variables = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", MARK: f"{mark}"}
        variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": f"{first.getsockname()[1]}"}
        words = ["train.py", settings_file(make(), mark)]
        program = f"import subprocess, sys; subprocess.run([sys.executable, *{words}], start_new_session=True)"
        launcher = Launched([sys.executable, "-c", program], TORCHELASTIC_RUN_ID="films", **variables)
        with first.accept()[0]:
            launcher.process.kill()
            assert_all_end(mark)
