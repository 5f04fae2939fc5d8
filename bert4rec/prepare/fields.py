"""The fields of interactions as numbers or text: every row checked, none skipped or repaired in silence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import polars as pl

from bert4rec.errors import DataError
from bert4rec.prepare.bad_rows import BadRows
from bert4rec.prepare.rows import LINE

IDS = ("user", "item")
FIELDS = (*IDS, "time", "rating", "is_read")
TimeUnit: TypeAlias = Literal["auto", "s", "ms", "us", "ns"]
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LARGEST_SECONDS = 10**11  # the year 5138; a time from 1973 on, in milliseconds, is larger
DECIDING_ROWS = 1000  # the first ones, which show the unit of times that are numbers
WISHES = {"time": "must be a time: a number from 0, or text like 2024-03-19T10:27:00", "rating": "must be a number"}
KINDS = {"time": "is not a time", "rating": "is not a number", "is_read": "is not 0 or 1"}


@dataclass
class Fields:
    """Casts the fields of a source, part by part.

    `names`: what the source calls each of `FIELDS` that it has; `whole_number_ids`: an id of text is a bad row;
    `unit`: "line" or "row" of a file; `time_unit`: of times that are numbers, "auto" until the first part shows it.
    Ids are Int64 as long as every id of the column is written as a whole number ("7", not "07") that fits, and from
    the first other one on String.
    """

    names: Mapping[str, str]
    whole_number_ids: bool
    unit: str = "line"
    time_unit: TimeUnit = "auto"
    as_text: set[str] = field(default_factory=set)

    def cast(self, raw: pl.DataFrame, path: Path, bad: BadRows) -> pl.DataFrame:
        """The usable rows of `raw` (`LINE` and the fields as they stand): ids, Int64 seconds, Float32 ratings.

        Rows with a field that is missing or cannot be cast go to `bad`. Raises `DataError` for a type that is no
        field at all.
        """
        for name in self.names:
            if not _is_readable(name, raw.schema[name]):
                wish = self._wish(name)
                raise DataError(f'{path}: column "{self.names[name]}" has type {raw.schema[name]}: {wish}')
        frame = raw.select(self._field(name, raw[name]) for name in self.names)
        if not any(frame.null_count().row(0)):
            return frame
        self._report(raw, frame, path, bad)
        return frame.drop_nulls()

    def _field(self, name: str, column: pl.Series) -> pl.Series:
        if name in IDS:
            return self._id(name, column)
        if name == "time":
            return self._seconds(column)
        number = _stripped(column).cast(pl.Float32, strict=False)
        if name == "is_read":
            return (number == 1).set((number != 0) & (number != 1), None).alias(name)
        return number.set(~number.is_finite(), None)

    def _id(self, name: str, column: pl.Series) -> pl.Series:
        is_number = column.dtype.is_integer()
        text = None if is_number else _text(column)
        if name in self.as_text:
            return _text(column.cast(pl.String)) if text is None else text
        if self.whole_number_ids and text is not None:
            return _stripped(text).cast(pl.Int64, strict=False)
        whole = (column if text is None else text).cast(pl.Int64, strict=False)
        same = whole.is_not_null() | column.is_null() if text is None else whole.cast(pl.String).eq_missing(text)
        if same.all():
            return whole
        self.as_text.add(name)
        return self._id(name, column)

    def _seconds(self, column: pl.Series) -> pl.Series:
        """Whole seconds, rounded down; null where it is no time, or one before 1970."""
        if column.dtype.is_temporal():
            seconds = column.dt.epoch("s")
        else:
            column = _stripped(column)
            number = column if column.dtype.is_float() else column.cast(pl.Int64, strict=False)
            if number.null_count() > column.null_count():
                number = column.cast(pl.Float64, strict=False)
            if self.time_unit == "auto":
                self.time_unit = _unit_of(number)
            seconds = _floor(number, PER_SECOND.get(self.time_unit, 1))
            if column.dtype == pl.String and seconds.null_count() > column.null_count():
                iso = pl.coalesce("seconds", *_iso_8601(pl.col("text")))
                seconds = pl.DataFrame({"text": column, "seconds": seconds}).select(iso).to_series()
        return seconds.set((seconds < 0) | (seconds > LARGEST_SECONDS), None).alias("time")

    def _report(self, raw: pl.DataFrame, frame: pl.DataFrame, path: Path, bad: BadRows) -> None:
        """Count the bad rows by their first bad field, and show the first rows."""
        flags = frame.select(pl.col(name).is_null() for name in self.names)
        first = pl.coalesce(pl.when(pl.col(name)).then(pl.lit(name)) for name in self.names).alias("bad field")
        found = raw.with_columns(flags.select(first)).filter(pl.col("bad field").is_not_null())
        for row in found.head(max(bad.room, 0)).iter_rows(named=True):
            bad.show(path, self.unit, row[LINE], self._problem(row["bad field"], row[row["bad field"]]))
        missing = pl.coalesce(
            pl.when(pl.col("bad field") == name).then(pl.col(name).cast(pl.String).fill_null("") == "")
            for name in self.names
        )
        for name, is_missing, n in (
            found.group_by("bad field", missing.alias("missing")).len().sort(pl.all()).iter_rows()
        ):
            bad.add(f"{name} {'is missing' if is_missing else KINDS.get(name, 'is not a whole number')}", n)

    def _problem(self, name: str, value: object) -> str:
        if value in (None, ""):
            return f"{self.names[name]} is missing"
        return f'{self.names[name]} "{value}": {self._wish(name)}'

    def _wish(self, name: str) -> str:
        if name in IDS:
            return "must be a whole number" + ("" if self.whole_number_ids else " or text")
        return WISHES.get(name, "must be 0 or 1")


def _is_readable(name: str, dtype: pl.DataType) -> bool:
    if name in IDS:
        return dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum)
    if name == "time":
        return dtype.is_numeric() or dtype in (pl.String, pl.Datetime, pl.Date)
    return dtype.is_numeric() or dtype in (pl.String, pl.Boolean)


def _text(column: pl.Series) -> pl.Series:
    text = column.cast(pl.String)
    return text.set(text == "", None)


def _stripped(column: pl.Series) -> pl.Series:
    """Text without blanks around it, in which numbers may stand."""
    return column.str.strip_chars() if column.dtype == pl.String else column


def _unit_of(times: pl.Series) -> TimeUnit:
    """The unit in which the middle one of `times` is a moment before the year 5138."""
    middle = times.drop_nulls().head(DECIDING_ROWS).median()
    if not isinstance(middle, int | float):
        return "auto"
    units: dict[TimeUnit, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    return next((unit for unit, ticks in units.items() if middle < LARGEST_SECONDS * ticks), "ns")


def _floor(number: pl.Series, ticks: int) -> pl.Series:
    if number.dtype.is_float():
        return (number / ticks).floor().cast(pl.Int64, strict=False)
    return number if ticks == 1 else number // ticks


def _iso_8601(text: pl.Expr) -> list[pl.Expr]:
    """Seconds of `2024-03-19T10:27:00` (or with a blank, a fraction, Z, an offset) and `2024-03-19`; UTC if unsaid."""
    moment = text.str.replace(" ", "T", literal=True).str.strip_suffix("Z")
    return [
        moment.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us").dt.epoch("s"),
        moment.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", strict=False, time_unit="us").dt.epoch("s"),
        text.str.to_date("%Y-%m-%d", strict=False).dt.epoch("s"),
    ]
