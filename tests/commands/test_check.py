"""`bert4rec check` while it takes long."""

import sys
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from bert4rec.runtime import console
from tests.fixture_types import Capture, Patch


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
