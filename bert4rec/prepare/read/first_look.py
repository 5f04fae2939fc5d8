"""What is said before all rows are read: their order, what looks wrong, and the first rows as they are understood."""

import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import polars as pl

from bert4rec.dataset.statistics import order_line
from bert4rec.prepare.read.guesses import look_swapped, looks_like_time, needs_format
from bert4rec.prepare.read.sources import Interactions

SHOWN = ("user", "item", "time", "rating", "title")
SHOWN_ROWS = 3
UNNAMED = ("ml-100k", "ml-1m", "sequences")  # sources whose files do not name their columns
WIDTH = 40  # characters of a value that are shown
NEARLY_ALL = 0.9
YEAR = 365 * 86_400  # seconds


def order_of(source: Interactions, *, newest_first: bool) -> dict[str, Any]:
    """What gives the order of a user's items, as `metadata.json` has it: the `column` of the times, or the file."""
    column = source.columns.get("time")
    if column is None:
        return {"by": "file", "column": None, "newest_first": newest_first}
    return {"by": "time", "column": column if source.source not in UNNAMED else None, "newest_first": False}


def first_look(source: Interactions, order: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Lines that show the `order` and the first rows, and the warnings that follow from a look at them."""
    rows = source.first()
    warnings: list[str] = []
    if source.source == "table":
        warnings += [*_of_the_order(source, order), *_of_the_names(source), *_of_the_times(source, rows)]
    return [order_line(source.source, order), *_shown(source, rows)], warnings


def _of_the_order(source: Interactions, order: Mapping[str, Any]) -> Iterator[str]:
    if order["by"] == "time":
        return
    text = "no time column is named: the order of the file's rows is taken for the order of time"
    others = source.first_of_other_columns()
    found = [column.name for column in others if looks_like_time(column)]
    if found:
        verb = "looks like a time" if len(found) == 1 else "look like times"
        text += f"; {', '.join(found)} {verb}: {shlex.quote(f'--data.time_column={found[0]}')}"
        if needs_format(others[found[0]]):
            text += " with --data.time_format=…, such as %d/%m/%Y"
    yield text


def _of_the_names(source: Interactions) -> Iterator[str]:
    user, item = source.columns["user"], source.columns["item"]
    if look_swapped(user, item):
        swapped = shlex.join([f"--data.user_column={item}", f"--data.item_column={user}"])
        yield f"{user} as the column of the users and {item} as that of the items look swapped; if they are: {swapped}"


def _of_the_times(source: Interactions, rows: pl.DataFrame) -> Iterator[str]:
    times = rows["time"] if "time" in rows.columns else pl.Series([], dtype=pl.Int64)
    n_early = int((times < YEAR).sum())
    if not n_early or n_early < NEARLY_ALL * len(times):
        return
    first = ", ".join(_moment(time) for time in times.head(SHOWN_ROWS))
    unit = "" if source.time_unit == "auto" else f', or data.time_unit = "{source.time_unit}" wrong'
    yield (
        f"{n_early:,} of the first {len(times):,} times lie in 1970 ({first}): is {source.columns['time']} really a "
        f"time{unit}? (a number that only counts up gives the order as well)"
    )


def _shown(source: Interactions, rows: pl.DataFrame) -> Iterator[str]:
    """The first rows as a table, the name of each field above, with that of its column where it has another."""
    names = [name for name in SHOWN if name in rows.columns]
    if not len(rows):
        return
    columns = {} if source.source in UNNAMED else source.columns
    table = [[_heading(name, columns.get(name, name)) for name in names]]
    table += [[_cell(name, value) for name, value in zip(names, row, strict=True)] for row in _first(rows, names)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    yield "the first rows, as they are understood:"
    for line in table:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _first(rows: pl.DataFrame, names: list[str]) -> list[tuple[Any, ...]]:
    return rows.select(names).head(SHOWN_ROWS).rows()


def _heading(name: str, column: str) -> str:
    return name if column == name else f"{name} ({column})"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "time":
        return _moment(value)
    text = f"{value:g}" if name == "rating" else " ".join(str(value).split())
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
