"""The lines about the stages if stderr is no terminal, by a clock that is set by hand."""

import re

import pytest

from bert4rec.sources.progress import Progress, Stage
from tests.checks import Capture


def test_stages_show_how_far_they_are_and_their_speed(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with Stage("read", 400) as stage:
        for now, done, n_rows in ((109.9, 40, 500), (110.0, 100, 24_000), (119.0, 300, 7), (220.0, 399, 120_000_000)):
            clock[0] = now
            stage.advance(n_rows, done)
    with Stage("fetch", 0) as unknown:
        clock[0] += 10
        unknown.advance(24_000)
    assert stage.n_rows == 120_024_507
    progress = Progress()
    for name, n_rows, seconds in (("order", 3_000_000, 1.5), ("limits", 7, 0.04), ("split", 900, 9.0)):
        clock[0] += 1
        with progress.stage(name, n_rows) as stage:
            clock[0] += seconds
            stage.advance(n_rows)
    with pytest.raises(ValueError, match="broken off"), progress.stage("write", 1):
        raise ValueError("broken off")
    assert [re.findall(r"[\d,.:]+(?: %)?", line) for line in capsys.readouterr().out.splitlines()] == [
        ["25 %", "24,500", "2,450", "0:30"], ["99 %", "120,024,507", "1", "0:00"], ["24,000", "2,400"],
        ["2.5", "3,000,000", "1.5", "2"], ["3.5", "7", "0.0"], ["13.5", "900", "9.0", "100"],
    ]  # fmt: skip
