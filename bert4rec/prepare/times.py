"""Convert times (numbers in any unit, dates, ISO 8601 or text in a given format) to seconds since 1970."""

import re
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import polars as pl

from bert4rec.runtime.errors import DataError

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
SINCE, UNTIL = 788_918_400, 2**31  # seconds: the range of likely times, from 1995 to 2038
DAY, YEAR = 86_400, 365 * 86_400  # seconds
LARGEST_SECONDS = 10**11  # the year 5138; a time from 1973 on, in milliseconds, is larger
DECIDING_ROWS = 1000  # first rows that decide the unit of times that are numbers
WISH = "must be a time: a number from 0, or text like 2024-03-19T10:27:00"
DATES = (
    "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%d/%m/%y",
    "%m/%d/%y", "%d.%m.%y", "%d-%m-%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%d-%b-%Y",
    "%d-%b-%y",
)  # fmt: skip
CLOCKS = (
    "", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", "T%H:%M", "T%H:%MZ", "T%H:%M:%S",
    " %H:%M %z", " %H:%M:%S %z",
)  # fmt: skip
FORMS = (  # formats that a message suggests if they fit
    *[date + clock for date in DATES for clock in CLOCKS], "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y",
    "%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S UTC %Y", "%a, %d %b %Y %H:%M:%S GMT", "%a, %d %b %Y %H:%M:%S %z",
)  # fmt: skip
FRACTION = r":\d{1,2}[.,](\d+)"  # of a second, in ISO 8601
MOST = 0.9  # share of the first times that a suggested format must read
EXAMPLE = "%d/%m/%Y %H:%M"
PROBE = datetime(2011, 12, 13, 14, 15, 16, tzinfo=UTC)


@dataclass
class Times:
    """Convert the times of a source, part by part.

    `time_format` is the unit of times that are numbers ("s", "ms", "us", "ns"), or the strptime format of times that
    are text; "" = ISO 8601 or numbers in the `likely_unit`, which the first part with numbers decides. Raises
    `DataError` for a format that Polars does not support, or without a day.
    """

    time_format: str = ""
    likely_unit: str = field(default="auto", init=False)

    def __post_init__(self) -> None:
        unit = unit_of_numbers(self.time_format)
        self.unit, self.form = unit or "auto", "" if unit else self.time_format
        self._pattern = _checked(self.form) if self.form else ""

    def expected_type(self, dtype: pl.DataType) -> str:
        """Return what a column of times must be instead of `dtype`; "" if `dtype` can be read."""
        if self.form:
            is_text = dtype.is_integer() or dtype == pl.String  # 20240319 may be a number, too
            return "" if is_text else f'data.time_format = "{self.form}" is for text; leave it empty'
        return "" if dtype.is_numeric() or dtype in (pl.String, pl.Datetime, pl.Date) else WISH

    def expected_value(self, value: object, column: pl.Series) -> str:
        """Return what `value`, which is no time, must be instead; `column` has the times of the same part."""
        first = column.drop_nulls().head(DECIDING_ROWS)
        if self.form:
            wish = f'must be a time in the form data.time_format = "{self.form}"'
            if _reads(Times(), first):
                return f"{wish}; these rows are read without it: leave it empty"
            return wish if _reads(self, first) else wish + _offered(first)
        if wish := self._wish_of_unit(value):
            return wish
        return WISH + _offered(first) if isinstance(value, str) else WISH

    def seconds(self, column: pl.Series) -> pl.Series:
        """Return whole seconds, rounded down; null for no time, a time before 1970, or a number in an unusual unit."""
        if self.form:
            seconds = self._by_form(column.cast(pl.String))
        elif column.dtype.is_temporal():
            seconds = column.dt.epoch("s")
        else:
            seconds = self._by_number_or_iso_8601(stripped(column))
        return seconds.set((seconds < 0) | (seconds > LARGEST_SECONDS), None).alias("time")

    def fraction(self, column: pl.Series) -> pl.Series | None:
        """Return the nanoseconds within each second (Int32) of times that `seconds` reads; None if all are 0."""
        ticks = PER_SECOND.get(self._used_unit, 1)
        if column.dtype.is_temporal():
            rest = column.dt.nanosecond() if column.dtype == pl.Datetime else None
        elif column.dtype.is_integer() or column.dtype.is_float():
            rest = None if self.form else _rest(column, ticks)
        else:
            text = stripped(column.cast(pl.String))
            rest = self._fraction_of_text(text, ticks) if ticks > 1 or text.str.contains("[.,]").any() else None
        if rest is None or not ((rest := rest.fill_null(0)) != 0).any():
            return None
        return rest.cast(pl.Int32).alias("fraction")

    def _fraction_of_text(self, text: pl.Series, ticks: int) -> pl.Series:
        """Return the nanoseconds within each second of times that are text, null where there are none."""
        if self.form:
            parsed = (text.str.to_datetime(self._pattern, strict=False, time_unit=unit) for unit in ("ns", "us"))
            fine, coarse = (times.dt.nanosecond() for times in parsed)  # times after 2262 do not fit nanoseconds
            return fine.fill_null(coarse)
        whole = text.cast(pl.Int64, strict=False)
        rest = pl.Series(np.zeros(len(text), np.int64)) if ticks == 1 else _rest(whole, ticks)
        rest = rest.set(whole.is_null(), None)
        if whole.null_count() > text.null_count():
            rest = rest.fill_null(_rest(text.cast(pl.Float64, strict=False), ticks))
            digits = text.str.extract(FRACTION).str.slice(0, 9).str.pad_end(9, "0")
            rest = rest.fill_null(digits.cast(pl.Int64, strict=False))
        return rest

    @property
    def _used_unit(self) -> str:
        return self.likely_unit if self.unit == "auto" else self.unit

    def _wish_of_unit(self, value: object) -> str:
        """Return the advice for a number that is a likely time in another unit; "" for any other value."""
        other, used = _unit_of_moment(value), self._used_unit
        if other is None or used in ("auto", other):
            return ""
        if other == self.likely_unit:
            return f"looks like {UNIT_NAMES[other]}, most times too; name the unit: --data.time_format={other}"
        return f"looks like {UNIT_NAMES[other]}, most times like {UNIT_NAMES[used]}; write all in one unit"

    def _by_form(self, text: pl.Series) -> pl.Series:
        return stripped(text).str.to_datetime(self._pattern, strict=False, time_unit="us").dt.epoch("s")

    def _by_number_or_iso_8601(self, column: pl.Series) -> pl.Series:
        number = column if column.dtype.is_float() else column.cast(pl.Int64, strict=False)
        if self.likely_unit == "auto":
            self.likely_unit = _unit_of(number if number.count() else column.cast(pl.Float64, strict=False))
        ticks = PER_SECOND.get(self._used_unit, 1)
        seconds = _floor(number, ticks)
        if number.null_count() > column.null_count():
            seconds = seconds.fill_null(_floor(column.cast(pl.Float64, strict=False), ticks))
        if self._used_unit == self.likely_unit:
            seconds = _without_larger_units(seconds, PER_SECOND.get(self.likely_unit, 1))
        if column.dtype == pl.String and seconds.null_count() > column.null_count():
            iso = pl.coalesce("seconds", *_iso_8601(pl.col("text")))
            seconds = pl.DataFrame({"text": column, "seconds": seconds}).select(iso).to_series()
        return seconds


def unit_of_numbers(time_format: str) -> str:
    """Return `time_format` if it is a unit of times that are numbers, else ""."""
    return time_format if time_format in PER_SECOND else ""


def moment(seconds: int) -> str:
    """Return the time in UTC in ISO 8601 format.

    >>> moment(1_000_000_000)
    '2001-09-09T01:46:40Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stripped(column: pl.Series) -> pl.Series:
    """Return a text column without blanks around the values; other types unchanged."""
    return column.str.strip_chars() if column.dtype == pl.String else column


def _checked(form: str) -> str:
    """Return `form` in Polars' syntax. Raise `DataError` if a date in that format is not read back as the same day."""
    pattern, name = form.replace(".%f", "%.f"), f'data.time_format = "{form}"'
    if "%Z" in pattern:
        raise DataError(f"{name}: names of time zones are not read; use %z for offsets, or write UTC instead of %Z")
    try:
        written = pl.Series([PROBE]).dt.strftime(pattern)
        day = written.str.to_datetime(pattern, time_unit="us").dt.date()[0]
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0].removeprefix("Invalid format string: ")
        raise DataError(f"{name}: unknown form of times ({reason}); write it like {EXAMPLE}") from None
    if day != PROBE.date():
        raise DataError(f"{name}: must name day, month and year; write it like {EXAMPLE}")
    return pattern


def matching_time_formats(values: pl.Series) -> list[str]:
    """Return the format of `FORMS` that reads nearly all `values`, and one that reads as many but as other times.

    >>> matching_time_formats(pl.Series(["31/12/2020", "1/2/2021"])), matching_time_formats(pl.Series(["1/2/2021"]))
    (['%d/%m/%Y'], ['%d/%m/%Y', '%m/%d/%Y'])
    """
    shapes = {*map(_shape, values.cast(pl.String).drop_nulls().unique())}
    fits = [(form, Times(form).seconds(values)) for form in FORMS if _shape(PROBE.strftime(form)) in shapes]
    most = max((seconds.count() for _, seconds in fits), default=0)
    best = [(form, seconds) for form, seconds in fits if seconds.count() == most]
    if not most or most < MOST * values.count():
        return []
    first, times = best[0]
    return [first, *[form for form, seconds in best if not seconds.equals(times)][:1]]


def _shape(text: str) -> str:
    """Return `text` with 0 for numbers and A for words; only few formats have the shape of a given time.

    >>> _shape("31 Dec 2020 10:27:00 -0700")
    '0 A 0 0:0:0 +0'
    """
    return re.sub(r"[^\W\d_]+", "A", re.sub(r"\d+", "0", re.sub(r" [-+](?=\d)", " +", text.strip())))


def _offered(values: pl.Series) -> str:
    """Return the end of a message that suggests the formats that fit; "" if none does."""
    options = [shlex.quote(f"--data.time_format={form}") for form in matching_time_formats(values)]
    which = ": only you know which" if len(options) > 1 else ""
    return f"; these rows fit {' or '.join(options)}{which}" if options else ""


def _reads(times: Times, values: pl.Series) -> bool:
    return times.seconds(values).count() >= MOST * len(values)


def _unit_of(times: pl.Series) -> str:
    """Return the smallest unit in which the median of `times` is before the year 5138; "auto" without times."""
    middle = times.drop_nulls().head(DECIDING_ROWS).median()
    if not isinstance(middle, int | float):
        return "auto"
    return next((unit for unit, ticks in PER_SECOND.items() if middle < LARGEST_SECONDS * ticks), "ns")


def _unit_of_moment(value: object) -> str | None:
    """Return the unit in which the number `value` is a time from 1995 to 2038; None if there is none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return next((unit for unit, ticks in PER_SECOND.items() if SINCE * ticks <= number < UNTIL * ticks), None)


def _without_larger_units(seconds: pl.Series, ticks: int) -> pl.Series:
    """Return `seconds`, read in a unit of `ticks` per second, with null if a larger unit gives a likely time.

    Seconds among milliseconds, for instance, would be times of January 1970.
    """
    first = seconds.min()
    for larger in (other for other in PER_SECOND.values() if other < ticks):
        low, high = max(1, SINCE * larger // ticks), UNTIL * larger // ticks
        if isinstance(first, int) and first <= high:
            seconds = seconds.set((seconds >= low) & (seconds <= high), None)
    return seconds


def _rest(number: pl.Series, ticks: int) -> pl.Series:
    """Return the nanoseconds within the second of a `number` of `ticks` per second.

    >>> _rest(pl.Series([1500, 2000]), 1000).to_list(), _rest(pl.Series([1.5]), 1).to_list()
    ([500000000, 0], [500000000])
    """
    if not number.dtype.is_float():
        return number % ticks * (PER_SECOND["ns"] // ticks)
    rest = (number - (number / ticks).floor() * ticks) * (PER_SECOND["ns"] / ticks)
    return rest.set(~rest.is_finite(), None).floor().clip(0, PER_SECOND["ns"] - 1).cast(pl.Int64)


def _floor(number: pl.Series, ticks: int) -> pl.Series:
    if number.dtype.is_float():
        return (number / ticks).floor().cast(pl.Int64, strict=False)
    return number if ticks == 1 else number // ticks


def _iso_8601(text: pl.Expr) -> list[pl.Expr]:
    """Return seconds of `2024-03-19` and `2024-03-19T10:27:00`, also with a blank, a fraction, Z, UTC or an offset.

    A time without an offset is in UTC.
    """
    moment = text.str.replace(" ", "T", literal=True).str.strip_suffix("Z").str.strip_suffix(" UTC")
    return [
        moment.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us").dt.epoch("s"),
        moment.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", strict=False, time_unit="us").dt.epoch("s"),
        text.str.to_date("%Y-%m-%d", strict=False).dt.epoch("s"),
    ]
