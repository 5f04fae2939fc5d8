"""The lines about the stages if stderr is no terminal, by a clock that is set by hand."""

import re

import pytest

from bert4rec.sources.progress import Progress, Stage
from tests.checks import Capture


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, its one element."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_line_every_ten_seconds_shows_how_far_a_stage_is(clock: list[float], capsys: Capture) -> None:
    with Stage("read", 400) as stage:
        for now, done, n_rows in ((109.9, 40, 500), (110.0, 100, 24_000), (119.0, 300, 7), (220.0, 399, 120_000_000)):
            clock[0] = now
            stage.advance(n_rows, done)
    with Stage("fetch", 0) as unknown:
        clock[0] += 10
        unknown.advance(24_000)
    assert stage.n_rows == 120_024_507
    assert [re.findall(r"[\d,:]+(?: %)?", line) for line in capsys.readouterr().out.splitlines()] == [
        ["25 %", "24,500", "2,450", "0:30"], ["99 %", "120,024,507", "1", "0:00"], ["24,000", "2,400"],
    ]  # fmt: skip


def test_a_stage_that_ends_well_is_a_line_with_its_speed(clock: list[float], capsys: Capture) -> None:
    progress = Progress()
    for name, n_rows, seconds in (("order", 3_000_000, 1.5), ("limits", 7, 0.04), ("split", 900, 60.0)):
        clock[0] += 1
        with progress.stage(name, n_rows) as stage:
            clock[0] += seconds
            stage.advance(n_rows)
    with pytest.raises(ValueError, match="broken off"), progress.stage("write", 1):
        raise ValueError("broken off")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert [re.findall(r"[\d,.]+", line) for line in lines] == [
        ["2.5", "3,000,000", "1.5", "2"], ["3.5", "7", "0.0"], ["64.5", "900", "60.0", "15"],
    ]  # fmt: skip
