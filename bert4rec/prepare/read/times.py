"""Times as they are written, numbers of any unit, dates, ISO 8601 or any other text → whole seconds since 1970."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import polars as pl

from bert4rec.runtime.errors import DataError

TimeUnit: TypeAlias = Literal["auto", "s", "ms", "us", "ns"]
PER_SECOND: dict[TimeUnit, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LARGEST_SECONDS = 10**11  # the year 5138; a time from 1973 on, in milliseconds, is larger
DECIDING_ROWS = 1000  # the first ones, which show the unit of times that are numbers
WISH = "must be a time: a number from 0, or text like 2024-03-19T10:27:00"
OTHER_DATE = re.compile(r"\d.*[-/. ].*\d")  # a date in an order of its own
EXAMPLE = "%d/%m/%Y %H:%M"
PROBE = datetime(2011, 12, 13, 14, 15, 16, tzinfo=UTC)


@dataclass
class Times:
    """Reads the times of a source, part by part.

    `unit`: of times that are numbers; "auto" until the first part shows it. `form`: as strptime has it, of times that
    are text; "" = ISO 8601 or numbers. Raises `DataError` for a form that Polars does not know, or without a day.
    """

    unit: TimeUnit = "auto"
    form: str = ""

    def __post_init__(self) -> None:
        if self.form:
            self._pattern = _checked(self.form)

    def wish_of_type(self, dtype: pl.DataType) -> str:
        """What a column of times must be instead of `dtype`; "" where it can be read."""
        if self.form:
            is_text = dtype.is_integer() or dtype == pl.String  # 20240319 may be a number, too
            return "" if is_text else f'data.time_format = "{self.form}" is for text; leave it empty'
        return "" if dtype.is_numeric() or dtype in (pl.String, pl.Datetime, pl.Date) else WISH

    def wish_of_value(self, value: object) -> str:
        """What `value`, which is no time, must be instead."""
        if self.form:
            return f'must be a time in the form data.time_format = "{self.form}"'
        is_date = isinstance(value, str) and OTHER_DATE.search(value) and _is_no_number(value)
        return f"{WISH}; name another form in data.time_format, such as {EXAMPLE}" if is_date else WISH

    def seconds(self, column: pl.Series) -> pl.Series:
        """Whole seconds, rounded down; null where it is no time, or one before 1970."""
        if self.form:
            seconds = self._by_form(column.cast(pl.String))
        elif column.dtype.is_temporal():
            seconds = column.dt.epoch("s")
        else:
            seconds = self._by_number_or_iso_8601(stripped(column))
        return seconds.set((seconds < 0) | (seconds > LARGEST_SECONDS), None).alias("time")

    def _by_form(self, text: pl.Series) -> pl.Series:
        return stripped(text).str.to_datetime(self._pattern, strict=False, time_unit="us").dt.epoch("s")

    def _by_number_or_iso_8601(self, column: pl.Series) -> pl.Series:
        number = column if column.dtype.is_float() else column.cast(pl.Int64, strict=False)
        if number.null_count() > column.null_count():
            number = column.cast(pl.Float64, strict=False)
        if self.unit == "auto":
            self.unit = _unit_of(number)
        seconds = _floor(number, PER_SECOND.get(self.unit, 1))
        if column.dtype == pl.String and seconds.null_count() > column.null_count():
            iso = pl.coalesce("seconds", *_iso_8601(pl.col("text")))
            seconds = pl.DataFrame({"text": column, "seconds": seconds}).select(iso).to_series()
        return seconds


def stripped(column: pl.Series) -> pl.Series:
    """Text without blanks around it, in which numbers may stand; other types as they are."""
    return column.str.strip_chars() if column.dtype == pl.String else column


def _checked(form: str) -> str:
    """`form` as Polars writes it. `DataError` where what is written by it cannot be read back as the same day."""
    pattern, name = form.replace(".%f", "%.f"), f'data.time_format = "{form}"'
    if "%Z" in pattern:
        raise DataError(f"{name}: names of time zones are not read; use %z for offsets, or write UTC in place of %Z")
    try:
        written = pl.Series([PROBE]).dt.strftime(pattern)
        day = written.str.to_datetime(pattern, time_unit="us").dt.date()[0]
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0].removeprefix("Invalid format string: ")
        raise DataError(f"{name}: no such form of times ({reason}); write it like {EXAMPLE}") from None
    if day != PROBE.date():
        raise DataError(f"{name}: must name day, month and year; write it like {EXAMPLE}")
    return pattern


def _is_no_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


def _unit_of(times: pl.Series) -> TimeUnit:
    """The unit in which the middle one of `times` is a moment before the year 5138."""
    middle = times.drop_nulls().head(DECIDING_ROWS).median()
    if not isinstance(middle, int | float):
        return "auto"
    return next((unit for unit, ticks in PER_SECOND.items() if middle < LARGEST_SECONDS * ticks), "ns")


def _floor(number: pl.Series, ticks: int) -> pl.Series:
    if number.dtype.is_float():
        return (number / ticks).floor().cast(pl.Int64, strict=False)
    return number if ticks == 1 else number // ticks


def _iso_8601(text: pl.Expr) -> list[pl.Expr]:
    """Return seconds of `2024-03-19` and `2024-03-19T10:27:00`, also with a blank, a fraction, Z, UTC or an offset.

    Without an offset a time is in UTC.
    """
    moment = text.str.replace(" ", "T", literal=True).str.strip_suffix("Z").str.strip_suffix(" UTC")
    return [
        moment.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us").dt.epoch("s"),
        moment.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", strict=False, time_unit="us").dt.epoch("s"),
        text.str.to_date("%Y-%m-%d", strict=False).dt.epoch("s"),
    ]
