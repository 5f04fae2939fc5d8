"""Lines of the log on a terminal, and the bar on a real one of 80 columns."""

import logging
import os
import sys
from io import StringIO
from pathlib import Path

import pytest

from bert4rec.runtime import console
from bert4rec.runtime.console import ProgressBar, log_to_terminal
from tests.terminal import on_terminal, screen

ROOT = Path(__file__).parents[2]
LOGGER = logging.getLogger("bert4rec.somewhere")

TRAINING = """
import logging, time
from bert4rec.runtime.console import log_to_terminal
from bert4rec.training.loop.progress import Progress
log_to_terminal(is_shown=SHOWN)
logger = logging.getLogger("bert4rec.training")
try:
    with Progress(1000, n_epochs=40, done=0) as bar:
        for step in (1, 500):
            bar.update(step, epoch=step / 25, loss=6.54321, learning_rate=1e-3, rate=1390.4 * (step > 1), left=201.0)
        logger.info("above")
        logger.warning("also above")
        print("READY", end="", flush=True)
        for _ in range(600):
            time.sleep(0.1)  # once for all, it would not end where the signal comes just before it begins
except KeyboardInterrupt:
    print("interrupted")
"""

PREPARING = """
import time
from bert4rec.runtime.console import close_bars, log_to_terminal
from bert4rec.prepare.progress import Progress
log_to_terminal()
progress = Progress()
with progress.stage("read", 10) as stage:
    time.sleep(0.6)
    stage.advance(4, 24_500)
    try:
        print("READY", end="", flush=True)
        for _ in range(600):
            time.sleep(0.1)
    except KeyboardInterrupt:
        close_bars()  # as where a second interrupt has kept the stage from it
        print("interrupted")
"""


def run(program: str, columns: int = 80) -> str:
    written, status = on_terminal(
        [sys.executable, "-c", program], folder=ROOT, interrupt_after="READY", columns=columns
    )
    assert status == 0, written
    return written


def test_what_is_logged_is_lines_and_a_warning_says_that_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    LOGGER.debug("not this")
    LOGGER.info("100 % {done}")
    LOGGER.warning("few steps")
    assert capsys.readouterr() == ("100 % {done}\nwarning: few steps\n", "")


def test_lines_are_shown_once_on_the_stream_that_was_named_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever handler a library has given to the root."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(sys.stderr)])
    log_to_terminal()
    LOGGER.info("here")
    log_to_terminal(stream="stderr")
    LOGGER.info("there")
    assert capsys.readouterr() == ("here\n", "there\n")


def test_of_all_processes_but_the_first_nothing_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_terminal(is_shown=False)
    LOGGER.info("a line")
    LOGGER.warning("a warning")
    with ProgressBar(10, seconds=0.0) as bar:
        bar.show(1, "a line")
    assert capsys.readouterr() == ("", "")
    shown = run(TRAINING.replace("SHOWN", "False"))
    assert screen(shown) == ["READY^Cinterrupted", ""]


def test_a_program_that_uses_the_package_decides_itself_what_it_shows(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


class Nobody(StringIO):
    """Stands where a terminal was that is closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_where_nobody_reads_any_more_only_a_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Nobody())
    with pytest.raises(BrokenPipeError):
        LOGGER.info("a line")
    log_to_terminal(outlives_reader=True)
    LOGGER.info("a line")
    LOGGER.info("another")
    assert sys.stdout.name == os.devnull


def test_a_line_is_due_some_seconds_after_the_one_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    usual, often = ProgressBar(10, done=2), ProgressBar(10, seconds=3.0)
    now = 200.0
    with usual, often:
        assert not usual.is_due()
        now = 203.0
        assert often.is_due()
        assert not usual.is_due()
        now = 200.0 + console.SECONDS_BETWEEN_LINES
        assert usual.is_due()
        usual.show(4, "4 of 10", line="step 4")
        often.show(4, "4 of 10")
        assert not usual.is_due()
        assert (usual.seconds, usual.seconds_left(4), usual.seconds_left(12)) == (10.0, 30.0, 0.0)
    assert capsys.readouterr() == ("step 4\n4 of 10\n", "")


def test_the_bar_of_a_training_is_whole_and_stays() -> None:
    lines = screen(run(TRAINING.replace("SHOWN", "True")))
    bar = "█" * 6 + "▌" + " " * 6
    assert lines == [
        "above",
        "warning: also above",
        f" 50 % |{bar}| epoch 20.0/40  loss 6.543  1,390 sequences/s  3:21 left",
        "interrupted",
        "",
    ]


def test_nothing_is_wider_than_the_terminal_with_what_it_adds_itself() -> None:
    for columns in (60, 80, 120):
        written = run(TRAINING.replace("SHOWN", "True"), columns)
        for part in written.replace("\x1b[K", "").replace("\r\n", "\r").split("\r"):
            assert len(part.partition("READY")[0].rstrip()) + len("^C") < columns


def test_the_bar_of_a_stage_has_no_stray_comma_and_goes() -> None:
    written = run(PREPARING)
    (drawn,) = [part for part in written.split("\r") if " 40 %" in part]
    figures = drawn.partition("READY")[0].split("| ")[1]
    assert figures.startswith("24,500 rows  ")
    assert ", " not in figures
    assert figures.endswith(" left")
    assert screen(written)[0] == "interrupted"
