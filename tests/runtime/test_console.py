"""Log lines, the progress bar on a real terminal, lines of progress elsewhere, and numbers for people."""

import json
import logging
import os
import sys
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tqdm import tqdm

from bert4rec.runtime import console
from bert4rec.runtime.console import EVENT, EVENTS_VARIABLE, ProgressBar, log_to_terminal
from bert4rec.runtime.errors import format_duration, pluralize, rounded
from bert4rec.runtime.signals import log_interrupted
from tests.checks import Capture, Patch
from tests.terminal import on_terminal, screen

ROOT = Path(__file__).parents[2]
LOGGER = logging.getLogger("bert4rec.somewhere")

PROGRAM = """
import logging, time
from bert4rec.runtime.console import ProgressBar, close_bars, log_to_terminal
log_to_terminal(is_shown=SHOWN)
logger = logging.getLogger("bert4rec.training")
try:
    with ProgressBar(1000, stays=STAYS) as bar:
        for step in (1, 500):
            bar.show(step, f"epoch {step / 25:.1f}/40  loss 6.543  1,390 sequences/s  3:21 left")
        logger.info("above")
        logger.warning("also above")
        print("READY", end="", flush=True)
        for _ in range(600):
            time.sleep(0.1)  # once for all, it would not end where the signal comes just before it begins
except KeyboardInterrupt:
    close_bars()  # as where a second interrupt has kept the block from it
    print("interrupted")
"""


def run(columns: int = 80, *, is_shown: bool = True, stays: bool = True) -> str:
    program = PROGRAM.replace("SHOWN", str(is_shown)).replace("STAYS", str(stays))
    command = [sys.executable, "-c", program]
    written, status = on_terminal(command, folder=ROOT, interrupt_after="READY", columns=columns)
    assert status == 0, written
    return written


def test_what_is_logged_is_lines_shown_once_on_the_stream_that_was_named_last(
    monkeypatch: Patch, capsys: Capture
) -> None:
    """A warning says that it is one. Whatever handler a library has given to the root."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(sys.stderr)])
    log_to_terminal()
    LOGGER.debug("not this")
    LOGGER.info("100 % {done}")
    LOGGER.warning("few steps")
    log_to_terminal(stream="stderr")
    LOGGER.info("there")
    assert capsys.readouterr() == ("100 % {done}\nwarning: few steps\n", "there\n")


def test_a_program_that_uses_the_package_decides_itself_what_it_shows(
    caplog: pytest.LogCaptureFixture, capsys: Capture, monkeypatch: Patch
) -> None:
    package = logging.getLogger("bert4rec")
    monkeypatch.setattr(package, "handlers", [])
    monkeypatch.setattr(package, "propagate", True)
    package.setLevel(logging.NOTSET)  # all as it is before log_to_terminal
    LOGGER.info("a line")
    with caplog.at_level(logging.INFO):
        LOGGER.info("another")
    assert caplog.messages == ["another"]
    assert capsys.readouterr() == ("", "")


def test_where_nobody_reads_any_more_only_a_training_goes_on(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "stdout", Mock(write=Mock(side_effect=BrokenPipeError)))
    with pytest.raises(BrokenPipeError):
        LOGGER.info("a line")
    log_to_terminal(outlives_reader=True)
    LOGGER.info("a line")
    LOGGER.info("another")
    assert sys.stdout.name == os.devnull


def test_a_line_is_due_some_seconds_after_the_one_before(monkeypatch: Patch, capsys: Capture) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    bar = ProgressBar(10, done=2)
    now = 200.0
    with bar:
        assert not bar.is_due()
        now = 200.0 + console.SECONDS_BETWEEN_LINES
        assert bar.is_due()
        bar.show(4, "4 of 10", line="step 4")
        assert not bar.is_due()
        bar.show(4, "4 of 10")
        assert (bar.seconds, bar.seconds_left(4), bar.seconds_left(12)) == (10.0, 30.0, 0.0)
    assert capsys.readouterr() == ("step 4\n4 of 10\n", "")


@pytest.mark.parametrize(("columns", "stays"), [(80, True), (60, True), (120, False)])
def test_the_bar_is_whole_not_wider_than_the_terminal_and_stays_if_it_should(columns: int, stays: bool) -> None:
    written = run(columns, stays=stays)
    above, also, *bars, interrupted, end = screen(written)
    assert (above, also, interrupted, end) == ("above", "warning: also above", "interrupted", "")
    assert len(bars) == stays
    if columns == 80:
        assert bars[0].startswith(" 50 % |█")
        assert {"20.0/40", "6.543", "1,390", "3:21"} <= {*bars[0].split("|")[-1].split()}
    for part in written.replace("\x1b[K", "").replace("\r\n", "\r").split("\r"):
        assert len(part.partition("READY")[0].rstrip()) + len("^C") < columns


def test_of_all_processes_but_the_first_nothing_is_seen() -> None:
    assert screen(run(is_shown=False)) == ["READY^Cinterrupted", ""]


def test_an_interrupt_while_the_bar_is_drawn_for_the_first_time_takes_it_away(monkeypatch: Patch) -> None:
    written = StringIO()
    written.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", written)
    draw = tqdm.refresh

    def draw_and_interrupt(bar: Any, **options: Any) -> None:
        draw(bar, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(tqdm, "refresh", draw_and_interrupt)
    with pytest.raises(KeyboardInterrupt), ProgressBar(10):
        pass
    assert "0 %" in written.getvalue()
    log_interrupted("stopped")
    assert screen(written.getvalue().replace("\n", "\r\n")) == ["stopped", ""]


def test_a_program_that_reads_events_gets_them_and_no_lines(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, "1")
    with ProgressBar(10) as bar:
        bar.show(4, "4 of 10", line="step 4")
    line = capsys.readouterr().out
    assert line.startswith(EVENT)
    assert json.loads(line[1:]) == {"done": 4, "total": 10, "figures": "4 of 10"}


def test_numbers_for_people() -> None:
    numbers = [3.663976944245, 0.41234, 40.0, 0, 99.96, 1390.4]
    assert [*map(rounded, numbers)] == ["3.66", "0.412", "40", "0", "100", "1,390"]
    counts = [(1.0004, "epoch"), (0.5, "epoch"), (8, "process"), (1000, "user"), (3, "history"), (2, "day")]
    texts = ["1 epoch", "0.5 epochs", "8 processes", "1,000 users", "3 histories", "2 days"]
    assert [pluralize(*count) for count in counts] == texts
    assert [*map(format_duration, [0.4, 123, 3723.4])] == ["0:00", "2:03", "1:02:03"]
