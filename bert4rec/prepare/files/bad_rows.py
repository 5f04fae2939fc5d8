"""The rows that cannot be used: counted by kind, the first of them kept to be shown."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

LINE = "line\n"  # column with the line or row of the file that a message names; a header has no name with a line end
SHOWN = 10  # rows that are named; the others are only counted


def line_numbers(first: int) -> pl.Expr:
    """Return `LINE` of rows that follow each other, from `first` on."""
    return pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias(LINE)


@dataclass
class BadRows:
    """Hold the unusable rows: `counts` by kind of problem, and in `shown` the place and problem of the first ones."""

    counts: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Return how many there are."""
        return self.counts.total()

    @property
    def room(self) -> int:
        """Return how many more will be shown."""
        return SHOWN - len(self.shown)

    def add(self, kind: str, n: int = 1) -> None:
        """Count `n` rows with a problem of this `kind`, such as "rating is not a number"."""
        self.counts[kind] += n

    def add_line(self, path: Path, number: int, kind: str, problem: str) -> None:
        """Count a line with a problem of this `kind`, and keep its place and the problem while there is room."""
        self.add(kind)
        self.show(path, "line", number, problem)

    def show(self, path: Path, unit: str, number: int, problem: str) -> None:
        """Keep the place and the problem of a row that was counted, while there is room; `unit`: "line" or "row"."""
        if self.room > 0:
            self.shown.append(f"{path}, {unit} {number}: {problem}")
