"""What is said of the stages where stderr is no terminal, by a clock that is set by hand."""

import pytest

from bert4rec.prepare.progress import Progress, Stage


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, its one element."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_line_every_ten_seconds_says_how_far_a_stage_is(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Stage("read", 400) as stage:
        for now, done, n_rows in ((109.9, 40, 500), (110.0, 100, 24_000), (119.0, 300, 7), (220.0, 399, 120_000_000)):
            clock[0] = now
            stage.advance(done, n_rows)
    assert stage.n_rows == 120_024_507
    assert capsys.readouterr().out.splitlines() == [
        "  read  25 %  24,500 rows  2,450 rows/s  0:30 left",
        "  read  99 %  120,024,507 rows  1 million rows/s  0:00 left",
    ]


def test_a_stage_of_which_nobody_knows_the_end_says_how_much_is_done(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Stage("fetch", 0) as stage:
        clock[0] = 110.0
        stage.advance(0, 24_000)
    assert capsys.readouterr().out == "  fetch  24,000 rows  2,400 rows/s\n"


def test_a_stage_that_ends_well_is_a_line_with_its_speed(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    said = Progress()
    for name, n_rows, seconds in (("order", 3_000_000, 1.5), ("limits, round 1", 7, 0.04), ("split", 900, 60.0)):
        clock[0] += 1
        with said.stage(name, n_rows) as stage:
            clock[0] += seconds
            stage.advance(n_rows, n_rows)
    with pytest.raises(ValueError, match="broken off"), said.stage("write", 1):
        raise ValueError("broken off")
    said.log("done")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert lines == [
        "[   2.5 s] order                3,000,000 rows     1.5 s  2 million rows/s",
        "[   3.5 s] limits, round 1              7 rows     0.0 s",
        "[  64.5 s] split                      900 rows    60.0 s  15 rows/s",
        "[  64.5 s] done",
    ]
