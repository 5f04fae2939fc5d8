"""What a long check says of how far it is."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert4rec.__main__ import main
from bert4rec.dataset.check import progress
from bert4rec.dataset.check.progress import Ticker


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_check_says_how_far_it_is(
    sound: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress, "SECONDS_ON_A_TERMINAL", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["check", str(sound["time"])]) == 0
    said = capsys.readouterr().err
    assert re.search(r"read [\d,]+ of [\d,]+ bytes for the checksums \(\d+%, 0 s\)", said)
    assert "checked 24 of 24 users (100%, 0 s)" in said
    assert said.endswith("\r\033[K" if terminal else "\n")


def test_a_line_is_said_when_ten_seconds_have_passed_since_the_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 109.0, 110.0, 119.0, 121.0])  # when it begins, and at each call
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    ticker = Ticker("read", 4000, "rows")
    for done in (900, 1000, 2900, 3000):
        ticker.at(done)
    ticker.close()
    assert capsys.readouterr().err == "read 1,000 of 4,000 rows (25%, 10 s)\nread 3,000 of 4,000 rows (75%, 21 s)\n"
