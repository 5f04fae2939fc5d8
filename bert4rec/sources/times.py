"""Convert times (numbers in any unit, dates, ISO 8601 or text in a given format) to seconds since 1970."""

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Literal

import numpy as np
import polars as pl

from bert4rec.dataset.ids import NO_IDS
from bert4rec.runtime.errors import DataError

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
SINCE, UNTIL = 788_918_400, 2**31  # seconds: the range of likely times, from 1995 to 2038
DAY, YEAR = 86_400, 365 * 86_400  # seconds
LARGEST_SECONDS = 10**11  # the year 5138; a time from 1973 on, in milliseconds, is larger
DECIDING_ROWS = 1000  # first rows that decide the unit of times that are numbers
EXCEL = "excel"  # the unit of days since 1899-12-30, as spreadsheets count them
EXCEL_SINCE, EXCEL_UNTIL = 34_700, 50_424  # such days: from 1995 to 2038
DAYS_TO_1970 = 25_569
NO_VALUE = (  # what programs write for a missing time or rating, in lower case
    *sorted(NO_IDS), "?", "nat", "0000-00-00", "0000-00-00 00:00:00", "0000-00-00t00:00:00", "00.00.0000", "00/00/0000",
)  # fmt: skip
WISH = "must be a time: a number from 0, text like 2024-03-19T10:27:00, or in a form that --data.time_format names"
ONE_FORM = "write all times in one form"
DATES = (
    "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%d/%m/%y",
    "%m/%d/%y", "%d.%m.%y", "%d-%m-%y", "%m-%d-%y", "%m.%d.%Y", "%m.%d.%y", "%d %B %Y", "%d. %B %Y", "%B %d, %Y",
    "%B %d %Y", "%d-%B-%Y", "%d-%B-%y", "%d/%B/%Y", "%d %B %y", "%Y-%B-%d", "%Y %B %d", "%A, %d %B %Y", "%A %d %B %Y",
    "%A, %B %d, %Y", "%A %B %d %Y", "%Y%m%d",
)  # fmt: skip
CLOCKS = (
    "", *[f"{gap}{clock}{zone}" for gap in (" ", ", ", "T") for clock in ("%H:%M", "%H:%M:%S", "%H:%M:%S,%f")
          for zone in ("", "Z", " UTC", " GMT", " %z")],
    *[f"{gap}{clock}{half}" for gap in (" ", ", ") for clock in ("%I:%M", "%I:%M:%S") for half in (" %p", "%p")],
)  # fmt: skip
DIGIT_FORMS = ("%Y%m%d", "%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H", "%d%m%Y", "%m%d%Y")  # may be whole numbers
SHORT = ("%y%m%d", "%d%m%y", "%m%d%y")  # such forms that are offered, but not recognized: they may be counts
PADDED = {"%d%m%Y": 8, "%m%d%Y": 8, **dict.fromkeys(SHORT, 6)}  # number of digits; a number lacks a leading 0
TIME_FORMS = (  # forms of text that are recognized; fractions of a second and short names of months are read, too
    *[date + clock for date in DATES for clock in CLOCKS], *DIGIT_FORMS[1:], "%d/%B/%Y:%H:%M:%S %z",
    "[%d/%B/%Y:%H:%M:%S %z]", "%d-%B-%y %I.%M.%S.%f %p", "%d-%B-%y %H.%M.%S.%f",
    *[f"%A %B %d %H:%M:%S{zone} %Y" for zone in ("", " %z", " UTC", " GMT")], "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%SZ",
    "%Y%m%dT%H%M%S %z", "%Y%m%d %H%M%S", "%Y%m%dT%H%M", "%Y%m%dT%H%MZ", "%H:%M %d.%m.%Y", "%H:%M:%S %d.%m.%Y",
)  # fmt: skip
FRACTION = r"(?::\d{1,2}|T\d{6}|^\d{14})[.,](\d+)|^\d{17}$"  # of a second
READ_SHARE = 0.9  # share of the first times that a form must read
EXAMPLE = "%d/%m/%Y %H:%M"
PROBE = datetime(2011, 12, 13, 14, 15, 16, tzinfo=UTC)


@dataclass
class Times:
    """Convert the times of a source, part by part.

    `time_format` is the unit of times that are numbers ("s", "ms", "us", "ns", "excel"), or the strptime format of
    times that are text; "" = ISO 8601 or numbers in the `likely_unit`, which the first part with numbers decides.
    `note`: how a format that no setting names was recognized. Raises `DataError` for a format that Polars does not
    support, or without a day.
    """

    time_format: str = ""
    note: str = ""
    likely_unit: str = field(default="auto", init=False)
    _has_moments: bool | None = field(default=None, init=False)  # which the first part with times decides

    def __post_init__(self) -> None:
        unit = unit_of_numbers(self.time_format)
        self.unit, self.form = unit or "auto", "" if unit else self.time_format
        self._pattern = _checked(self.form) if self.form else ""

    def expected_type(self, dtype: pl.DataType) -> str:
        """Return what a column of times must be instead of `dtype`; "" if `dtype` can be read."""
        if self.form and not self.note:
            is_text = dtype.is_numeric() or dtype == pl.String  # 20240319 may be a number, too
            return "" if is_text else f'data.time_format = "{self.form}" is for text; leave it empty'
        return "" if dtype.is_numeric() or dtype in (pl.String, pl.Datetime, pl.Date) else WISH

    def expected_value(self, value: object, column: pl.Series) -> str:
        """Return what `value`, which is no time, must be instead; `column` has the times of the same part."""
        if self.form and not self.note:
            first = without_missing(column).head(DECIDING_ROWS)
            wish = f'must be a time in the form data.time_format = "{self.form}"'
            if fits(Times().seconds(first).count(), len(first)):
                return f"{wish}; these rows are read without it: leave it empty"
            return wish if fits(self.seconds(first).count(), len(first)) else wish + _offered(first)
        if wish := self._wish_of_unit(value):
            return wish
        expected = f"must be a time in the form of the first rows, {self.time_format}" if self.note else WISH
        form = form_of(pl.Series([value])) if isinstance(value, str) else ""
        if self.note and isinstance(value, str) and Times().seconds(pl.Series([value])).count():
            form = "of ISO 8601 or of numbers"
        return f"{expected}; it has the form {form}: {ONE_FORM}" if form else expected

    def seconds(self, column: pl.Series) -> pl.Series:
        """Return whole seconds, rounded down; null for no time, a time before 1970, or a number in an unusual unit.

        If most times are from 1995 to 2038, the begin of 1970, in UTC or any zone, is none.
        """
        seconds = self._seconds(column)
        if self._has_moments is None and len(later := seconds.filter(seconds >= DAY)):
            is_most = 2 * len(later) > seconds.count()
            self._has_moments = is_most and fits(int(later.is_between(SINCE, UNTIL).sum()), len(later))
        has_early = self._has_moments and (seconds < DAY).any()
        return seconds.set(_is_start(seconds), None) if has_early else seconds

    def mean_none(self, column: pl.Series) -> pl.Series:
        """Return which values, such as 0, are the begin of 1970: programs write it for a missing time."""
        return _is_start(self._seconds(column)).fill_null(value=False) & bool(self._has_moments)

    def _seconds(self, column: pl.Series) -> pl.Series:
        if column.dtype.is_temporal():
            seconds = column.dt.epoch("s")
        elif self.form:
            seconds = self._parsed(as_text(column)).dt.epoch("s")
        elif self.unit == EXCEL:
            seconds = ((excel_days(column) - DAYS_TO_1970) * DAY).round().cast(pl.Int64, strict=False)
        else:
            seconds = self._by_number_or_iso_8601(stripped(column))
        return seconds.set((seconds < 0) | (seconds > LARGEST_SECONDS), None).alias("time")

    def fraction(self, column: pl.Series) -> pl.Series | None:
        """Return the nanoseconds within each second (Int32) of times that `seconds` reads; None if all are 0."""
        ticks = PER_SECOND.get(self._used_unit, 1)
        if column.dtype.is_temporal():
            rest = column.dt.nanosecond() if column.dtype == pl.Datetime else None
        elif self.unit == EXCEL or (self.form and column.dtype.is_float()):
            rest = None
        elif column.dtype.is_numeric() and not self.form:
            rest = _rest(column, ticks)
        else:
            text = stripped(column.cast(pl.String))
            may_have = ticks > 1 or text.str.contains(FRACTION if self.form else "[.,]").any()
            rest = self._fraction_of_text(text, ticks) if may_have else None
        if rest is None or not ((rest := rest.fill_null(0)) != 0).any():
            return None
        return rest.cast(pl.Int32).alias("fraction")

    def _fraction_of_text(self, text: pl.Series, ticks: int) -> pl.Series:
        """Return the nanoseconds within each second of times that are text, null where there are none."""
        if self.form:
            fine, coarse = self._parsed(text, "ns").dt.nanosecond(), self._parsed(text).dt.nanosecond()  # from 2262 on
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
        if self.form or other is None or used in ("auto", EXCEL, other):
            return ""
        if other == self.likely_unit:
            return f"looks like {UNIT_NAMES[other]}, most times too; name the unit: --data.time_format={other}"
        return f"looks like {UNIT_NAMES[other]}, most times like {UNIT_NAMES[used]}; write all in one unit"

    def _parsed(self, text: pl.Series, unit: Literal["us", "ns"] = "us") -> pl.Series:
        """Return `text` in the format as datetimes of a time `unit`, null for other text."""
        if ",%f" in self.form:
            text = text.str.replace(r",(\d)", ".${1}")
        if self.form in PADDED:
            text = text.str.zfill(PADDED[self.form])
        if self.form == "%Y%m%d%H%M%S":
            text = text.str.replace(r"^(\d{14})(\d{3})$", "${1}.${2}")
        if self.form.endswith("%H"):
            text = text + "00"
        times = text.str.to_datetime(self._pattern, strict=False, time_unit=unit)
        if times.null_count() == text.null_count() or "%S" not in self._pattern or "%.f" in self._pattern:
            return times
        pattern = self._pattern.replace("%S", "%S%.f")  # three times as slow
        return times.zip_with(times.is_not_null(), text.str.to_datetime(pattern, strict=False, time_unit=unit))

    def _by_number_or_iso_8601(self, column: pl.Series) -> pl.Series:
        number = column if column.dtype.is_float() else column.cast(pl.Int64, strict=False)
        if self.likely_unit == "auto":
            self.likely_unit = _unit_of(number if number.count() else column.cast(pl.Float64, strict=False))
        ticks = PER_SECOND.get(self._used_unit, 1)
        seconds = (number // ticks).cast(pl.Int64, strict=False)
        if number.null_count() > column.null_count():
            seconds = seconds.fill_null((column.cast(pl.Float64, strict=False) // ticks).cast(pl.Int64, strict=False))
        if self._used_unit == self.likely_unit:
            seconds = _without_larger_units(seconds, PER_SECOND.get(self.likely_unit, 1))
        if column.dtype == pl.String and seconds.null_count() > column.null_count():
            if column.str.ends_with("]").any():  # 2024-03-19T10:27:00+01:00[Europe/Berlin]
                column = column.str.replace(r"((?:Z|[-+]\d\d:?\d\d))\[[\w/+-]+\]$", "${1}")
            iso = pl.coalesce("seconds", *_iso_8601(pl.col("text")))
            seconds = pl.DataFrame({"text": column, "seconds": seconds}).select(iso).to_series()
        return seconds


def unit_of_numbers(time_format: str) -> str:
    """Return `time_format` if it is a unit of times that are numbers, else ""."""
    return time_format if time_format in (*PER_SECOND, EXCEL) else ""


def moment(seconds: int) -> str:
    """Return the time in UTC in ISO 8601 format.

    >>> moment(1_000_000_000)
    '2001-09-09T01:46:40Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stripped(column: pl.Series) -> pl.Series:
    """Return a text column without blanks around the values; other types unchanged."""
    return column.str.strip_chars() if column.dtype == pl.String else column


def without_missing(column: pl.Series) -> pl.Series:
    """Return the values, without blanks around them, that do not mean a missing one.

    >>> without_missing(pl.Series([" 7", "n/a", None, "0000-00-00"])).to_list()
    ['7']
    """
    values = stripped(column).drop_nulls()
    values = values.drop_nans() if values.dtype.is_float() else values
    return values.filter(~values.str.to_lowercase().is_in(NO_VALUE)) if values.dtype == pl.String else values


def numbers_or_texts(column: pl.Series) -> pl.Series:
    """Return the values as `without_missing` does; none of a column that has neither numbers nor text."""
    return without_missing(column if column.dtype.is_numeric() or column.dtype == pl.String else column.clear())


def fits(n_read: int, n_values: int) -> bool:
    """Return whether `n_read` are nearly all of `n_values`: all but a tenth, or all but one of at least five.

    >>> fits(9, 10), fits(4, 5), fits(3, 4), fits(0, 0)
    (True, True, False, False)
    """
    return n_values > 0 and n_values - n_read <= max((1 - READ_SHARE) * n_values, min(1, n_values / 5))


def as_text(column: pl.Series) -> pl.Series:
    """Return times as text; 20260101.0, as pandas writes numbers if one is missing, becomes "20260101"."""
    text = stripped(column.cast(pl.Int64, strict=False) if column.dtype.is_float() else column).cast(pl.String)
    return text.str.replace(r"^(\d{5,17})\.0$", "${1}") if text.str.ends_with(".0").any() else text


def excel_days(column: pl.Series) -> pl.Series:
    """Return numbers, which may be text with a decimal comma, as Float64; null for other values."""
    text = stripped(column)
    text = text.str.replace(",", ".", literal=True) if text.dtype == pl.String else text
    return text.cast(pl.Float64, strict=False)


def _checked(form: str) -> str:
    """Return `form` in Polars' syntax. Raise `DataError` if a date in that format is not read back as the same day.

    A form that ends with hours gets minutes, which Polars needs.
    """
    pattern = re.sub("%H$", "%H%M", re.sub("[.,]%f", "%.f", form))
    name = f'data.time_format = "{form}"'
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
    return pattern.replace("%z", "%#z")  # reads +01 as well as +0100 and +01:00


def form_of(values: pl.Series) -> str:
    """Return the first form of `TIME_FORMS` that reads most `values`, if these are nearly all; else "".

    >>> form_of(pl.Series(["31/12/2020", "1/2/2021"])), form_of(pl.Series(["12/31/2020 9:05 am"]))
    ('%d/%m/%Y', '%m/%d/%Y %I:%M %p')
    """
    text = as_text(values)
    forms = [form for shape in {*map(_shape, text.drop_nulls().unique())} for form in _forms_by_shape()[shape]]
    n_read = {form: _n_read(form, text) for form in sorted(forms, key=TIME_FORMS.index)}
    best = max(n_read, key=n_read.__getitem__, default="")
    return best if best and fits(n_read[best], len(values)) else ""


def twin_of(form: str) -> str:
    """Return `form` with day and month exchanged, if both are in use; else "".

    >>> twin_of("%d/%m/%Y %H:%M"), twin_of("%m-%d-%y"), twin_of("%d.%m.%Y"), twin_of("%Y-%m-%d")
    ('%m/%d/%Y %H:%M', '%d-%m-%y', '%m.%d.%Y', '')
    """
    twin = re.sub(r"^%([dm])([-/.]?)%([dm])(?=\2%[Yy])", r"%\3\2%\1", form)
    return "" if twin == form else twin


def _n_read(form: str, text: pl.Series) -> int:
    seconds = Times(form).seconds(text)
    return len(seconds.filter(seconds.is_between(SINCE, UNTIL))) if form in DIGIT_FORMS else seconds.count()


@cache
def _forms_by_shape() -> defaultdict[str, list[str]]:
    forms = defaultdict(list)
    for form in TIME_FORMS:
        forms[_shape(PROBE.strftime(form))].append(form)
    return forms


def _shape(text: str) -> str:
    """Return `text` with 0 for numbers and A for words; only few formats have the shape of a given time.

    Fractions of a second are left out, and an offset from UTC is " +0".

    >>> _shape("31 Dec 2020 10:27:00.5 -0700"), _shape("20201231T102700+01:00")
    ('0 A 0 0:0:0 +0', '0A0 +0')
    """
    clock = r"(:\d\d|T\d{6}|^\d{14})"
    text = re.sub(rf"{clock}\.\d+", r"\1", " ".join(text.split()))
    text = re.sub(rf"{clock}((?:,\d+)?) ?[-+]\d\d(?::?\d\d)?(?![\d:])", r"\1\2 +0", text)
    return re.sub(r"[^\W\d_]+", "A", re.sub(r"\d+", "0", text))


def _offered(values: pl.Series) -> str:
    """Return the end of a message that suggests the formats that fit; "" if none does."""
    form = form_of(values)
    twin = twin_of(form)
    is_either = twin and Times(twin).seconds(values).count() == Times(form).seconds(values).count()
    options = [option_of(form), *([option_of(twin)] if is_either else [])] if form else []
    which = ": only you know which" if len(options) > 1 else ""
    return f"; these rows fit {' or '.join(options)}{which}" if options else ""


def option_of(time_format: str) -> str:
    """Return the option that names a format of times, ready for the shell."""
    return shlex.quote(f"--data.time_format={time_format}")


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


def _is_start(seconds: pl.Series) -> pl.Series:
    """Return which `seconds` are the begin of 1970, in UTC or as the clock shows it in another zone."""
    return (seconds < DAY) & (seconds % 3600 == 0)


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
