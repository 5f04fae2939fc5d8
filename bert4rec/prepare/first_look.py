"""Look at the first rows before all rows are read: show their values, and warn of what looks wrong."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from bert4rec.prepare.attributes import ItemValues
from bert4rec.prepare.column_times import is_duration
from bert4rec.prepare.column_words import are_columns_swapped, name_words
from bert4rec.prepare.columns import NEARLY_ALL, find_excel_days, looks_like_time
from bert4rec.prepare.sources import Interactions
from bert4rec.prepare.survey import columns_that_order
from bert4rec.prepare.tables import FIRST_ROWS
from bert4rec.prepare.times import YEAR, moment
from bert4rec.runtime.console import visible
from bert4rec.runtime.errors import DataError, pluralize

SHOWN = ("user", "item", "time", "rating", "event", "title")
SHOWN_ROWS = 3
WIDTH = 40  # characters of a value that are shown


def first_look(interactions: Interactions) -> tuple[list[str], list[str]]:
    """Return lines that show the first rows, and the warnings about them.

    Raises `DataError` for times that are Excel day numbers.
    """
    rows, source = first_rows(interactions), interactions.source
    warnings = [*_skipped_warnings(interactions.skipped)]
    if source.form == "table":
        _refuse_excel_days(interactions)
        warnings += [*_order_warnings(interactions), *_name_warnings(interactions)]
        warnings += _time_warnings(interactions, rows)
    return [*_shown(rows, interactions.columns)], warnings


def first_rows(interactions: Interactions, others: ItemValues | None = None) -> pl.DataFrame:
    """Return the first usable rows, with their `title` if a column has it, and the columns of `others` as read."""
    first = interactions.again(files=interactions.files[:1], only_first=True, others=others or ItemValues())
    parts = [rows for rows, _ in first.usable()]
    rows = pl.concat(parts, how="diagonal_relaxed").head(FIRST_ROWS) if parts else pl.DataFrame()
    names = [pl.col("event").replace_strict(range(len(first.kinds)), first.kinds)] if "event" in rows.columns else []
    return rows.with_columns(names)


def order_options(interactions: Interactions) -> list[str]:
    """Return the options with a column of a table that puts its tied first rows in an order, the likeliest first.

    Returns [] if the settings name such a column.
    """
    if interactions.source.form != "table" or "order" in interactions.columns:
        return []
    present, named = interactions.open(interactions.files[0]).columns, interactions.columns
    others = [name for name, is_field in present.items() if is_field and name not in named.values()]
    others = [name for name in others if not is_duration(name_words(name))]
    fields = {f"{field} as a field": named[field] for field in ("user", "item", "time") if field in named}
    if not others:
        return []
    first = interactions.first_of(fields | {name: name for name in others})
    rows = first.select(pl.col(name).alias(name.partition(" ")[0]) for name in fields)
    columns = columns_that_order(rows, first.select(others))
    options = {name: "order" if "time" in named or not looks_like_time(first[name]) else "time" for name in columns}
    return [shlex.quote(f"--{option}={name}") for name, option in options.items()]


def _skipped_warnings(skipped: Sequence[Path]) -> Iterator[str]:
    if skipped:
        names = ", ".join(str(file) for file in skipped[:SHOWN_ROWS]) + (", …" if len(skipped) > SHOWN_ROWS else "")
        yield f"skipped {pluralize(len(skipped), 'file')} without rows: {names}"


def _order_warnings(interactions: Interactions) -> Iterator[str]:
    options, others = order_options(interactions), interactions.other_times
    advice = f"; {options[0]} orders them" if options else ""
    names, times = " and ".join(others), " or ".join(shlex.quote(f"--time={name}") for name in others)
    if interactions.order["by"] == "file" and others:
        yield f"no time is used: {names} may not be that of an event; if it is: {times}; if there is none: --time="
    elif interactions.order["by"] == "file":
        yield f"the rows have no times: the order of the rows in the file is used{advice}"
    elif options:
        yield f"many of the first rows have the user and time of the row before, and keep the order of the file{advice}"
    if interactions.order["by"] == "time" and others:
        yield f"the times are those of {interactions.columns['time']}; {names} may be times, too: {times}"


def _name_warnings(interactions: Interactions) -> Iterator[str]:
    user, item = interactions.columns["user"], interactions.columns["item"]
    if are_columns_swapped(user, item):
        swapped = shlex.join([f"--user={item}", f"--item={user}"])
        yield f"the user column {user} and the item column {item} look swapped; if they are: {swapped}"


def _refuse_excel_days(interactions: Interactions) -> None:
    column = interactions.columns.get("time", "")
    if not column or interactions.times.time_format:
        return
    days = find_excel_days(interactions.first_of({"time": column})["time"])
    if len(days):
        day = datetime(1899, 12, 30, tzinfo=UTC) + timedelta(days=days[0])
        raise DataError(
            f'{interactions.files[0]}: {column} "{days[0]}" looks like a day as Excel counts them '
            f"({day.strftime('%Y-%m-%d %H:%M')}), which is not read: format the column in Excel as yyyy-mm-dd hh:mm:ss "
            "and save it as CSV again; if these are seconds, add --data.time_format=s"
        )


def _time_warnings(interactions: Interactions, rows: pl.DataFrame) -> Iterator[str]:
    times = rows["time"] if "time" in rows.columns else pl.Series([], dtype=pl.Int64)
    n_early = int((times < YEAR).sum())
    if not n_early or n_early < NEARLY_ALL * len(times):
        return
    first = ", ".join(moment(time) for time in times.head(SHOWN_ROWS))
    column, unit = interactions.columns["time"], interactions.times.unit
    doubt = "" if unit == "auto" else f', or data.time_format = "{unit}" wrong'
    yield (
        f"{n_early:,} of the first {len(times):,} times lie in 1970 ({first}): is {column} really a "
        f"time{doubt}? (a running number also gives the order)"
    )


def _shown(rows: pl.DataFrame, columns: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table of the first rows; its header names each field and its column."""
    names = [name for name in SHOWN if name in rows.columns]
    if not len(rows):
        return
    table = [[name if columns[name] == name else f"{name} ({visible(columns[name], keep='')})" for name in names]]
    for row in rows.select(names).head(SHOWN_ROWS).rows():
        table.append([_cell(name, value) for name, value in zip(names, row, strict=True)])
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    yield "the first rows, as they are understood (other columns: --user, --item, --time, --title, --rating):"
    for line in table:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "time":
        return moment(value)
    text = f"{value:g}" if name == "rating" else visible(" ".join(str(value).split()), keep="")
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
