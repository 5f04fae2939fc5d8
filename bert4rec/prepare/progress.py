"""Progress of the preparation for a person: a bar on a terminal, else a line now and then; a line a finished stage."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bert4rec.runtime.console import Bar
from bert4rec.runtime.wording import clock, rounded

SECONDS_BETWEEN_LINES = 10.0
SHORTEST = 0.05  # seconds for which a speed means something


class Stage:
    """One stage of the work: of `total` units (bytes, rows, users) some are done, and with them some rows."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self._total, self.n_rows = name, max(1, total), 0
        self._started = self._last_line = time.monotonic()
        self._bar = Bar(self._total, name=name) if sys.stderr.isatty() else None

    def advance(self, done: int, n_rows: int) -> None:
        """So far `done` of the total; `n_rows` more rows than at the last call."""
        self.n_rows += n_rows
        now = time.monotonic()
        if now - self._last_line < (0.2 if self._bar is not None else SECONDS_BETWEEN_LINES):
            return
        self._last_line = now
        left = (now - self._started) * (self._total - done) / max(1, done)
        figures = f"{self.n_rows:,} rows  {_rate(self.n_rows, self.seconds)}  {clock(left)} left"
        if self._bar is not None:
            self._bar.show(done, figures)
        else:
            print(f"  {self.name} {100 * done // self._total:3} %  {figures}", flush=True)

    @property
    def seconds(self) -> float:
        """Since the stage began."""
        return time.monotonic() - self._started

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close(stays=False)


class Progress:
    """The stages one after another, with the time since all began."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Stage]:
        """A stage, whose line is printed when the block ends well."""
        stage = Stage(name, total)
        try:
            yield stage
        finally:
            stage.close()
        rate = f"  {_rate(stage.n_rows, stage.seconds)}" if stage.seconds >= SHORTEST else ""
        self.say(f"{name:16} {stage.n_rows:>13,} rows {stage.seconds:>7.1f} s{rate}")

    def say(self, line: str) -> None:
        """One line, with the time since the beginning."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {line}", flush=True)


def _rate(n_rows: int, seconds: float) -> str:
    per_second = n_rows / max(seconds, 1e-3)
    return f"{rounded(per_second / 1e6)} million rows/s" if per_second >= 1e6 else f"{per_second:,.0f} rows/s"
