"""A command as a process of its own: what it shows, and how signals reach it."""

import os
import signal
import subprocess
import textwrap
from typing import Any

import pytest

from bert4rec import __version__
from bert4rec.launch import child
from bert4rec.launch.child import StoppedError, run_child


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """In place of the package: some lines of Python; of torchrun, too."""

    def use(text: str) -> None:
        monkeypatch.setattr(child, "MODULE", ["-c", textwrap.dedent(text)])
        monkeypatch.setattr(child, "LAUNCHER", [])

    original = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda words, **options: original([word for word in words if "nproc" not in word], **options),
    )
    return use


def test_what_it_says_is_shown_but_for_what_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_child(["--version"]) == 0
    assert run_child(["nothing"], hidden=("bert",)) == 2
    assert run_child(["--version"], hidden=("bert",)) == 0
    out, err = capfd.readouterr()
    assert out == f"bert4rec {__version__}\n"
    assert err == "error: nothing: no such command; python -m bert4rec --help\n"


def test_what_the_launcher_says_of_itself_is_not_shown(program: Any, capfd: pytest.CaptureFixture[str]) -> None:
    program(
        """
        import sys
        print("error: no room", file=sys.stderr)
        print("E1122 15:20:11.123 elastic failed", file=sys.stderr)
        print("Traceback (most recent call last):", file=sys.stderr)
        sys.exit(1)
        """
    )
    assert run_child([], n_processes=2) == 1
    assert capfd.readouterr().err == "error: no room\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_child_first(program: Any, capfd: pytest.CaptureFixture[str], number: int) -> None:
    """It gets the signal once, from its parent: it is in no group that the terminal sends one to."""
    program(
        f"""
        import os, signal, sys, time
        assert os.environ["BERT4REC_PARENT"] and os.getsid(0) == os.getpid()
        signal.signal({int(number)}, lambda *_: (print("saved", flush=True), sys.exit(128 + {int(number)})))
        os.kill(os.getppid(), {int(number)})
        time.sleep(60)
        """
    )
    heeded = signal.signal(number, signal.default_int_handler)  # where the tests run in the background it is ignored
    try:
        with pytest.raises(StoppedError) as caught:
            run_child([])
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, heeded)
    assert caught.value.number == number
    assert capfd.readouterr() == ("saved\n", "")
    assert "BERT4REC_PARENT" not in os.environ
