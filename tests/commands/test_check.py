"""What `bert4rec check` does with its arguments, when it is stopped, and while it takes long."""

import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from bert4rec.__main__ import main
from bert4rec.runtime import console
from tests.fixture_types import Capture, Patch


def test_a_check_that_is_stopped_shows_nothing(small_folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("bert4rec.dataset.check.check_dataset", Mock(side_effect=KeyboardInterrupt))
    assert main(["check", str(small_folder)]) == 130
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_check_says_how_far_it_is(
    small_folder: Path, monkeypatch: Patch, capsys: Capture, terminal: bool
) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(console, "SECONDS_BETWEEN_BARS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["check", str(small_folder)]) == 0
    shown = capsys.readouterr().err
    assert shown.count("(100%") == 2
    assert "60 of 60" in shown
    assert ("\n" in shown) is not terminal
