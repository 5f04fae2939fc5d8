"""Look at the first rows before all rows are read: show their values, and warn of what looks wrong."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from bert4rec.runtime.console import visible
from bert4rec.runtime.errors import join_names, pluralize
from bert4rec.sources.attributes import ItemValues
from bert4rec.sources.column_times import date_parts, is_duration, is_of_item, is_time_of_day, why_coarse
from bert4rec.sources.column_words import ITEM_WORDS, USER_WORDS, are_columns_swapped, name_words
from bert4rec.sources.columns import is_named_like_time, looks_like_time, why_no_time
from bert4rec.sources.interactions import Interactions
from bert4rec.sources.order_values import columns_that_order
from bert4rec.sources.tables import FIRST_ROWS
from bert4rec.sources.text_rows import shortened
from bert4rec.sources.times import (
    EXAMPLE,
    READ_SHARE,
    SHORT,
    SINCE,
    UNTIL,
    YEAR,
    Times,
    fits,
    moment,
    option_of,
    without_missing,
)

SHOWN_FIELDS = ("user", "item", "time", "rating", "event", "title")
SHOWN_ROWS = 3
PRICES = {"price", "amount", "revenue", "value", "cost", "total", "discount"}
EXACT_FLOAT32 = 2**24  # from which on Float32 does not hold all whole numbers


def first_look(interactions: Interactions) -> tuple[list[str], list[str]]:
    """Return lines that show the first rows and how their times are read, and the warnings about them."""
    rows, source, skipped = first_rows(interactions), interactions.source, interactions.skipped
    warnings = [f"skipped {pluralize(len(skipped), 'file')} without rows: {join_names(skipped)}"] if skipped else []
    warnings += interactions.header_warnings()
    if source.form == "table":
        warnings += [*(_order_warnings(interactions) if len(rows) else ()), *_name_warnings(interactions)]
        warnings += _time_warnings(interactions, rows)
    notes = [f"times: {interactions.times.note}"] if interactions.times.note else []
    if interactions.order["by"] == "time" and interactions.newest_first:
        notes.append(
            "order: the file is sorted newest first: rows of one time are taken in reverse; if it is not: "
            "--preprocessing.reverse_file_order=false"
        )
    return [*_shown(rows, interactions.columns), *notes], warnings


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
    named, others = interactions.columns, _free(interactions)
    others = others.select(column for column in others if not is_duration(name_words(column.name)))
    if "time" not in named:  # an order by the clock, or by the day of a month, is wrong across days
        parts = date_parts(others)
        others = others.select(column for column in others if column.name not in parts and not is_time_of_day(column))
    if not others.width:
        return []
    rows = interactions.first_of({field: named[field] for field in ("user", "item", "time") if field in named})
    columns = columns_that_order(rows, others)
    options = {name: "order" if "time" in named or not looks_like_time(others[name]) else "time" for name in columns}
    return [shlex.quote(f"--{option}={name}") for name, option in options.items()]


def _order_warnings(interactions: Interactions) -> Iterator[str]:
    options, others = order_options(interactions), interactions.other_times
    advice = f"; {options[0]} orders them" if options else ""
    names, times = " and ".join(others), " or ".join(shlex.quote(f"--time={name}") for name in others)
    if interactions.order["by"] != "file":
        if options:
            kept = "are taken in reverse" if interactions.newest_first else "keep the file's order"
            yield f"many of the first rows have the user and time of the row before, and {kept}{advice}"
        if interactions.order["by"] == "time" and others:
            yield f"the times are those of {interactions.columns['time']}; {names} may be times, too: {times}"
    elif parts := date_parts(_free(interactions)):
        year = "" if len(parts) > 2 else " with a year"
        yield (
            f"the date is in {len(parts)} columns, {', '.join(parts)}: join them into one column{year}, such as "
            "2026-01-31; the order of the rows in the file is used"
        )
    elif others:
        yield f"no time is used: {names} may not be that of an event; if it is: {times}; if there is none: --time="
    else:
        unread, coarse = [*_unread_times(interactions)], [*_coarse_times(interactions)]
        reasons = f"{'; '.join([*unread, *coarse])};" if unread or coarse else "the rows have no times:"
        forms = (
            f": write it as 2024-03-19T10:27:00, name its form with {option_of(EXAMPLE)}, or name another column with "
            "--time=…"
        )
        yield f"{reasons} the order of the rows in the file is used{forms if unread else ''}{advice}"


def _free(interactions: Interactions) -> pl.DataFrame:
    """Return the first rows of the columns that no field has."""
    present, named = interactions.open(interactions.files[0]).columns, interactions.columns.values()
    free = {name: name for name in present if present[name] and name not in named}
    return interactions.first_of(free) if free else pl.DataFrame()


def _unread_times(interactions: Interactions) -> Iterator[str]:
    """Yield why each column that is named like a time, and that no field has, is not read as one."""
    present, named = interactions.open(interactions.files[0]).columns, interactions.columns.values()
    nested = [name for name in present if not present[name] and is_named_like_time(name) and name not in named]
    yield from (f"{name} is not read as the time: it has lists, objects or bytes" for name in nested)
    for column in _free(interactions):
        if is_named_like_time(column.name) and not looks_like_time(column) and (reason := why_no_time(column)):
            yield f"{column.name} is not read as the time: {reason}"


def _coarse_times(interactions: Interactions) -> Iterator[str]:
    """Yield why each column of months, weeks, years or hours, that no field has, is not read as the time."""
    items = interactions.first_of({"item": interactions.columns["item"]})["item"].alias("\nitem")
    for column in _free(interactions):
        reason = "" if is_named_like_time(column.name) else why_coarse(column)
        if reason and not is_of_item(pl.DataFrame([items, column]), column.name, items.name):
            order = shlex.quote(f"--order={column.name}")
            also = f", or put the rows in its order with {order}" if "no day" in reason else ""
            yield f"{column.name} is not read as the time: {reason}{also}"


def _name_warnings(interactions: Interactions) -> Iterator[str]:
    user, item = interactions.columns["user"], interactions.columns["item"]
    if are_columns_swapped(user, item):
        swapped = shlex.join([f"--user={item}", f"--item={user}"])
        yield f"the user column {user} and the item column {item} look swapped; if they are: {swapped}"
    for field, column, words in (("user", user, USER_WORDS), ("item", item, ITEM_WORDS)):
        if name_words(column) & PRICES and not name_words(column) & words:
            yield f"is {column} really the {field}? it is named like a price or an amount; another column: --{field}=…"


def _time_warnings(interactions: Interactions, rows: pl.DataFrame) -> Iterator[str]:
    times = rows["time"] if "time" in rows.columns else pl.Series([], dtype=pl.Int64)
    if not len(times):
        return
    raw = interactions.first_of({"time": interactions.columns["time"]})["time"]
    largest = float(raw.cast(pl.Float64).fill_nan(None).abs().max() or 0) if raw.dtype == pl.Float32 else 0  # type: ignore[arg-type]
    if largest > EXACT_FLOAT32:
        step = 2 ** (int(largest).bit_length() - 24)
        yield (
            f"{interactions.columns['time']} has type Float32, which keeps numbers such as {largest:.0f} only as "
            f"multiples of {step}: times that are closer are equal; write it as Int64"
        )
    n_early = int((times < YEAR).sum())
    if n_early < READ_SHARE * len(times):
        return
    first = ", ".join(moment(time) for time in times.head(SHOWN_ROWS))
    column, unit = interactions.columns["time"], interactions.times.unit
    doubt = "" if unit == "auto" else f', or data.time_format = "{unit}" wrong'
    n_likely = {form: int(Times(form).seconds(raw).is_between(SINCE, UNTIL).sum()) for form in SHORT}
    fitting = [form for form, n in n_likely.items() if fits(n, len(without_missing(raw)))]
    reason = why_coarse(raw.rename("month"))
    dates = f"; dates fit {' or '.join(map(option_of, fitting))}" if fitting else ""
    options = f"; {reason}" if "no day" in reason else dates
    yield (
        f"{n_early:,} of the first {len(times):,} times lie in 1970 ({first}): is {column} really a "
        f"time{doubt}? (a running number also gives the order{options})"
    )


def _shown(rows: pl.DataFrame, columns: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table of the first rows; its header names each field and its column."""
    names = [name for name in SHOWN_FIELDS if name in rows.columns]
    if not len(rows):
        return
    table = [[name if columns[name] == name else f"{name} ({visible(columns[name], keep='')})" for name in names]]
    for row in rows.select(names).head(SHOWN_ROWS).rows():
        table.append([_cell(name, value) for name, value in zip(names, row, strict=True)])
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    yield "first rows as read (other columns: --user, --item, --time, --title, --rating):"
    for line in table:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "time":
        return moment(value)
    text = f"{value:g}" if name == "rating" else visible(" ".join(str(value).split()), keep="")
    return shortened(text)
