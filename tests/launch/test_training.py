"""A training on processes of its own, from a running program: the same figures, errors as exceptions, nothing left."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bert4rec
from bert4rec.config.load import Overrides
from bert4rec.config.tables import Config
from bert4rec.launch.training import train_on
from bert4rec.runtime.errors import SettingsError, UserError
from tests.conftest import SMALL
from tests.runs import assert_same_results


class Shown:
    """What a person would have seen; `then` is called at the first progress."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.lines: list[str] = []
        self.done: list[int] = []
        self._then = then

    def line(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, done: int, total: int, figures: str) -> None:
        assert done <= total
        assert figures.startswith("epoch ")
        if not self.done:
            self._then()
        self.done.append(done)


def words(settings: dict[str, Any]) -> list[str]:
    return ["--config=", *Overrides(settings).options]


@pytest.fixture
def settings(make: Callable[..., Config], small_folder: Path, tmp_path: Path) -> dict[str, Any]:
    return SMALL | {"data.dataset_dir": str(small_folder), "run.dir": str(tmp_path / "runs"), "training.n_epochs": 2}


@pytest.mark.long
def test_two_processes_find_what_those_of_torchrun_find(settings: dict[str, Any], tmp_path: Path) -> None:
    """From Python, with nothing of the training in this process."""
    before = threading.enumerate(), [signal.getsignal(number) for number in (1, 2, 15)]
    run = bert4rec.train({**settings, "run.name": "python"}, processes=2)
    assert (threading.enumerate(), [signal.getsignal(number) for number in (1, 2, 15)]) == before
    options = Overrides({**settings, "run.name": "torchrun"}).options
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run([*torchrun, "-m", "bert4rec", "train", *options], check=True, capture_output=True)
    assert run.report["world_size"] == 2
    assert_same_results(run.folder, tmp_path / "runs" / "torchrun")


def test_what_it_says_is_shown_line_by_line_and_its_progress_as_numbers(settings: dict[str, Any]) -> None:
    shown = Shown()
    folder = train_on(words(settings), n_processes=1, view=shown)
    assert f"run folder: {folder}" in shown.lines
    assert any(line.startswith("epoch 2  validation, full catalogue  HR@10 ") for line in shown.lines)
    assert not any(line.startswith(("step", "\x1e")) for line in shown.lines)
    assert shown.done == sorted(shown.done)
    assert shown.done[-1] == 14


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT is `KeyboardInterrupt`, also where the shell that has started the tests ignores it."""
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, heeded)


@pytest.mark.long
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_saves_says_how_to_go_on_and_leaves_no_process(settings: dict[str, Any]) -> None:
    long = settings | {"training.n_epochs": 100_000, "training.patience": 0, "run.name": "long"}
    shown = Shown(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as caught:
        train_on(words(long), n_processes=2, view=shown)
    folder = Path(settings["run.dir"]) / "long"
    assert not processes_of(folder)
    step = int(max(path.name.removeprefix("step-") for path in (folder / "checkpoints").glob("step-*")))
    assert str(caught.value) == (
        f'stopped by SIGINT: saved after step {step}; continue with: train({{"run.resume": "{folder}"}}, processes=2)'
    )
    run = bert4rec.train({"run.resume": str(folder), "training.n_epochs": 3 + step // 4}, processes=2)
    assert run.report["training"]["resumed"] == [[step, 2]]


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_saves_nothing_does_not_say_that_it_did(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training is stuck, and leaves."""
    stuck = """import signal; print('\\x1e{"run": "runs/stuck"}\\nstuck', flush=True); signal.pause()"""
    monkeypatch.setattr("bert4rec.launch.child.MODULE", ["-c", stuck])
    shown = Shown()
    shown.line = lambda _: os.kill(os.getpid(), signal.SIGINT)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt) as caught:
        train_on(words(settings), n_processes=1, view=shown)
    assert str(caught.value) == (
        "stopped by SIGINT: left without saving, the last checkpoint counts; continue with: "
        'train({"run.resume": "runs/stuck"}, processes=1)'
    )


@pytest.mark.long
def test_a_training_ends_with_the_program_that_has_started_it(settings: dict[str, Any], tmp_path: Path) -> None:
    """Killed, as the kernel of a notebook is when it is restarted: the training saves, and stops."""
    long = settings | {"training.n_epochs": 100_000, "training.patience": 0, "run.name": "orphan"}
    program = f"import bert4rec; bert4rec.train({long!r}, processes=2)"
    parent = subprocess.Popen([sys.executable, "-c", program])
    folder = tmp_path / "runs" / "orphan"
    metrics = folder / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
    parent.kill()
    parent.wait()
    wait_until(lambda: not processes_of(folder))
    assert list((folder / "checkpoints").glob("step-*"))


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_what_ends_it_otherwise_is_raised(settings: dict[str, Any], processes: int) -> None:
    with pytest.raises(UserError, match=r"^nowhere: no dataset folder"):
        train_on(words({**settings, "data.dataset_dir": "nowhere"}), n_processes=processes, view=Shown())


def test_a_crash_is_raised_with_all_that_was_said(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert4rec.launch.child.MODULE", ["-c", "import sys; sys.exit('Traceback: boom')"])
    with pytest.raises(RuntimeError, match=r"^the training has ended with status 1\nTraceback: boom$"):
        train_on(words(settings), n_processes=1, view=Shown())


def test_wrong_settings_are_found_before_any_process_starts(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"^processes=0: must be at least 1$"):
        bert4rec.train(settings, processes=0)
    with pytest.raises(SettingsError, match=r"^training\.learning_rate = -1: must be greater than 0"):
        bert4rec.train({**settings, "training.learning_rate": -1}, processes=2)


def processes_of(folder: Path) -> list[str]:
    """Of this machine those that train into `folder`."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if "bert4rec train" in line and f"--run.name={folder.name}" in line]


def wait_until(is_so: Callable[[], bool], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)
