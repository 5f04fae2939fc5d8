"""A training on processes of its own, from a running program: the same figures, errors as exceptions, nothing left."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

import bert4rec
from bert4rec import launch
from bert4rec.config.load import Overrides
from bert4rec.launch import CellView, View, make_view, train_on
from bert4rec.runtime.errors import SettingsError, UserError
from tests.conftest import SMALL
from tests.fixture_types import Capture, Patch, Settings
from tests.runs import assert_same_results


class Shown(View):
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


def processes_of(folder: Path) -> list[str]:
    """Of this machine those that train into `folder`."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if "bert4rec train" in line and f"--run.name={folder.name}" in line]


@pytest.fixture
def settings(make: Settings, small_folder: Path, tmp_path: Path) -> dict[str, Any]:
    return SMALL | {"data.dataset_dir": str(small_folder), "run.dir": str(tmp_path / "runs"), "training.n_epochs": 2}


@pytest.fixture
def program(monkeypatch: Patch) -> Callable[[str], None]:
    """Run some lines of Python in place of the training."""

    def use(text: str) -> None:
        script = ["-c", f"import os, signal, sys, time\n{textwrap.dedent(text)}"]
        monkeypatch.setattr(launch, "TORCHRUN", script)
        monkeypatch.setattr(launch, "TRAIN", script)

    return use


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT is `KeyboardInterrupt`, also where the shell that has started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_lines_are_shown_and_events_are_progress_and_the_folder(program: Callable[[str], None]) -> None:
    event = '{"done": %d, "total": 9, "figures": "epoch 1"}'
    lines = ["run folder: x", f"\x1e{event % 3}", f"\x1e{event % 9}", '\x1e{"run": "runs/x"}', "HR@10 0.5"]
    program(f"for line in {lines}: print(line)")
    shown = Shown()
    assert train_on([], n_processes=1, view=shown) == Path("runs/x")
    assert (shown.lines, shown.done) == (["run folder: x", "HR@10 0.5"], [3, 9])


@pytest.mark.long
def test_what_a_training_says_is_shown_line_by_line_and_its_progress_as_numbers(settings: dict[str, Any]) -> None:
    shown = Shown()
    folder = train_on(words(settings), n_processes=1, view=shown)
    assert all(any(part in line for line in shown.lines) for part in (str(folder), "HR@10"))
    assert (shown.done, shown.done[-1]) == (sorted(shown.done), 14)


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
    assert f"step {step};" in str(caught.value)
    assert f'train({{"run.resume": "{folder}"}}, processes=2)' in str(caught.value)
    run = bert4rec.train({"run.resume": str(folder), "training.n_epochs": 3 + step // 4}, processes=2)
    assert run.report["training"]["resumed"] == [[step, 2]]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_child_first(program: Callable[[str], None], number: signal.Signals) -> None:
    """It gets the signal once, from its parent: it is in no group that the terminal sends one to."""
    program(
        f"""
        assert os.environ["BERT4REC_PARENT"] and os.getsid(0) == os.getpid()
        def stop(*_):
            print('\\x1e{{"run": "runs/x"}}\\nsaved', flush=True)
            sys.exit(1)
        signal.signal({int(number)}, stop)
        os.kill(os.getppid(), {int(number)})
        time.sleep(60)
        """
    )
    shown, before = Shown(), signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=f"{number.name}.*runs/x"):
        train_on([], n_processes=1, view=shown)
    assert signal.getsignal(number) == before
    assert shown.lines == ["saved"]
    assert "BERT4REC_PARENT" not in os.environ


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_before_the_first_step_names_no_run(program: Callable[[str], None]) -> None:
    program("os.kill(os.getppid(), signal.SIGINT); signal.pause()")
    with pytest.raises(KeyboardInterrupt) as caught:
        train_on([], n_processes=1, view=Shown())
    assert "resume" not in str(caught.value)


def test_a_view_that_fails_ends_the_child(program: Callable[[str], None]) -> None:
    program("print(os.getpid(), flush=True); time.sleep(600)")
    failing = Mock(line=Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        train_on([], n_processes=1, view=failing)
    with pytest.raises(ProcessLookupError):
        os.kill(int(failing.line.call_args.args[0]), 0)


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_what_ends_it_otherwise_is_raised(settings: dict[str, Any], processes: int) -> None:
    with pytest.raises(UserError, match=r"^nowhere: "):
        train_on(words({**settings, "data.dataset_dir": "nowhere"}), n_processes=processes, view=Shown())


def test_the_error_is_that_of_a_process_and_not_of_torchrun(
    program: Callable[[str], None], settings: dict[str, Any]
) -> None:
    """Of wrong settings it comes before any process starts."""
    elastic = "E1122 15:20:11.123 elastic failed"
    program(f"sys.exit('error: no room\\n{elastic}\\nerror: of torchrun')")
    with pytest.raises(UserError, match=r"^no room$"):
        train_on([], n_processes=2, view=Shown())
    program("sys.exit('Traceback: boom')")
    with pytest.raises(RuntimeError, match=r"status 1\nTraceback: boom$"):
        train_on([], n_processes=1, view=Shown())
    with pytest.raises(SettingsError, match=r"^processes=0: "):
        bert4rec.train(settings, processes=0)
    with pytest.raises(SettingsError, match=r"^training\.learning_rate = -1: "):
        bert4rec.train({**settings, "training.learning_rate": -1}, processes=2)


def test_a_notebook_cell_has_one_output_that_changes(monkeypatch: Patch) -> None:
    pages: list[str] = []

    def display(page: str, *, display_id: bool) -> Any:
        assert display_id
        pages.append(page)
        return type("Handle", (), {"update": staticmethod(pages.append)})

    package, display_module = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = type("ZMQInteractiveShell", (), {})  # type: ignore[attr-defined]
    display_module.HTML, display_module.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)
    view = make_view()
    assert isinstance(view, CellView)
    view.line("epoch 2  <b>")
    view.line("")
    view.progress(1, 4, "loss 1.5")
    assert len(pages) == 3
    assert all(part in pages[-1] for part in ('value="1" max="4"', "25 % loss 1.5", "epoch 2  &lt;b&gt;"))
    for number in range(20):
        view.line(f"line {number}")
    assert "line 18\nline 19" in pages[-1]
    assert "line 7" not in pages[-1]


def test_elsewhere_it_is_logged(capsys: Capture, monkeypatch: Patch) -> None:
    shell: Any = ModuleType("IPython")
    shell.get_ipython = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", shell)
    view = make_view()
    assert not isinstance(view, CellView)
    view.line("run folder: x")
    view.progress(1000, 2000, "loss 1.5")
    assert capsys.readouterr().out == "run folder: x\n1,000/2,000  loss 1.5\n"
