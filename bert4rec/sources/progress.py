"""Show the progress of a preparation, and count the unusable rows."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from bert4rec.runtime.console import BAR, NO_BAR, ProgressBar
from bert4rec.runtime.errors import format_duration, rounded

SHORTEST = 0.05  # seconds; shorter stages are logged without a speed

logger = logging.getLogger(__name__)
LINE = "line\n"  # column with the line or row number for messages; no header has a name with a line end
BAD_ROWS_SHOWN = 10  # number of bad rows to show; the rest is counted


class Stage(ProgressBar):
    """Show the progress of a stage with `total` units of work (bytes or rows), and count its rows.

    `total` = 0: the amount of work is unknown.
    """

    def __init__(self, name: str, total: int) -> None:
        super().__init__(total, form=f"{name:8} {BAR if total else NO_BAR}")
        self._name, self._is_measured, self.n_rows = name, total > 0, 0

    def advance(self, n_rows: int, done: int | None = None, *, tasks: tuple[int, int] = (1, 1)) -> None:
        """Show that `done` units (default: all rows so far) are done, with `n_rows` more rows than at the last call.

        `tasks`: how many are done, and how many there are.
        """
        self.n_rows += n_rows
        done = self.n_rows if done is None else done
        if self.is_due():
            left = f"  {format_duration(self.seconds_left(done))} left" if self._is_measured else ""
            share = f" {100 * done // self._total:3} %" if self._is_measured else ""
            n_done, n_tasks = tasks
            count = f"{n_done:,} of {n_tasks:,} tasks  " if n_tasks > 1 else ""
            figures = f"{count}{self.n_rows:,} rows  {self.rate()}{left}"
            self.show(done, figures, line=f"  {self._name}{share}  {figures}")

    def rate(self) -> str:
        """Return the rows per second as text."""
        per_second = self.n_rows / max(self.seconds, 1e-3)
        return f"{rounded(per_second / 1e6)} million rows/s" if per_second >= 1e6 else f"{per_second:,.0f} rows/s"


class Progress:
    """Measure the time since the start, show the stages one after another, and keep the warnings."""

    def __init__(self) -> None:
        self._began, self._warnings = time.monotonic(), list[str]()

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Stage]:
        """Yield a stage, and log its line when the block ends without an error."""
        with Stage(name, total) as stage:
            yield stage
        rate = f"  {stage.rate()}" if stage.seconds >= SHORTEST else ""
        self.log(f"{name:16} {stage.n_rows:>13,} rows {stage.seconds:>7.1f} s{rate}")

    def warn(self, *warnings: str) -> None:
        """Log the warnings that are not empty."""
        present = [warning for warning in warnings if warning]
        for warning in present:
            logger.warning(warning)
        self._warnings += present

    def repeat_warnings(self) -> None:
        """Log all warnings again, since the stages have scrolled them away."""
        self.warn(*self._warnings)

    def log(self, line: str) -> None:
        """Log a line with the time since the start."""
        logger.info(f"[{time.monotonic() - self._began:6.1f} s] {line}")


def line_numbers(first: int) -> pl.Expr:
    """Return the column `LINE` with consecutive numbers from `first` on."""
    return pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias(LINE)


@dataclass
class BadRows:
    """The `counts` of unusable rows by kind of problem, and in `shown` the messages of the first ones.

    `guests` is the number of rows that lack nothing but a user; they are no bad rows. Lines with the `ignored` kind of
    problem are neither counted nor shown. Rows are numbered within a piece of a file: `n_before` returns the number of
    those before it.
    """

    counts: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)
    guests: int = 0
    ignored: str = ""
    n_before: Callable[[], int] = int

    @property
    def total(self) -> int:
        """Return the number of unusable rows."""
        return self.counts.total()

    @property
    def room(self) -> int:
        """Return how many more rows can be shown."""
        return BAD_ROWS_SHOWN - len(self.shown)

    def add(self, kind: str, n: int = 1) -> None:
        """Count `n` rows with a problem of this `kind`, such as "rating is not a number"."""
        self.counts[kind] += n

    def add_line(self, path: Path, number: int, kind: str, problem: str) -> None:
        """Count a line with a problem of this `kind`, and keep its message while there is room."""
        if kind != self.ignored:
            self.add(kind)
            self.show(path, "line", number, problem)

    def show(self, path: Path, unit: str, number: int, problem: str) -> None:
        """Keep the message of a counted row while there is room; `unit`: "line" or "row"."""
        if self.room > 0:
            self.shown.append(f"{path}, {unit} {self.n_before() + number}: {problem}")
