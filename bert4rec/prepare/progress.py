"""The stages of the preparation for a person: how far each is, and a line with the time when it has ended."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bert4rec.runtime.console import BAR, NO_BAR, ProgressBar
from bert4rec.runtime.wording import clock, rounded

SHORTEST = 0.05  # seconds for which a speed means something

logger = logging.getLogger(__name__)


class Stage(ProgressBar):
    """A stage of the work: of `total` units (bytes, rows, users) some are done, and with them some rows.

    `total` = 0: nobody knows of how many.
    """

    def __init__(self, name: str, total: int) -> None:
        super().__init__(total, form=f"{name:8} {BAR if total else NO_BAR}")
        self._name, self._is_measured, self.n_rows = name, total > 0, 0

    def advance(self, done: int, n_rows: int) -> None:
        """Show that `done` of the total are done; `n_rows` more rows than at the last call."""
        self.n_rows += n_rows
        if self.is_due():
            left = f"  {clock(self.seconds_left(done))} left" if self._is_measured else ""
            share = f" {100 * done // self._total:3} %" if self._is_measured else ""
            figures = f"{self.n_rows:,} rows  {self.rate()}{left}"
            self.show(done, figures, line=f"  {self._name}{share}  {figures}")

    def rate(self) -> str:
        """Return the rows per second, for people."""
        per_second = self.n_rows / max(self.seconds, 1e-3)
        return f"{rounded(per_second / 1e6)} million rows/s" if per_second >= 1e6 else f"{per_second:,.0f} rows/s"


class Progress:
    """Hold the time since all began, and show the stages one after another."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Stage]:
        """A stage, whose line is logged when the block ends well."""
        with Stage(name, total) as stage:
            yield stage
        rate = f"  {stage.rate()}" if stage.seconds >= SHORTEST else ""
        self.log(f"{name:16} {stage.n_rows:>13,} rows {stage.seconds:>7.1f} s{rate}")

    def log(self, line: str) -> None:
        """Log one line, with the time since the beginning."""
        logger.info(f"[{time.monotonic() - self._began:6.1f} s] {line}")
