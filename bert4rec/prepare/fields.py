"""The fields of interactions as numbers or text: every row checked, none skipped or repaired in silence."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from bert4rec.prepare.progress import LINE, BadRows
from bert4rec.prepare.times import Times, stripped
from bert4rec.runtime.errors import DataError

IDS = ("user", "item")
OPTIONAL = ("title",)  # a row without it is as good as others
FIELDS = (*IDS, "time", "rating", "is_read", *OPTIONAL)
KINDS = {"time": "is not a time", "rating": "is not a number", "is_read": "is not 0 or 1"}
EXACT = ((pl.Float64, 2**53), (pl.Float32, 2**24), (pl.Float16, 2**11))  # below it, whole numbers keep every digit
DECIMAL = ".0"
NO_ID = ("nan", "NaN", "NAN", "null", "Null", "NULL", "None", "<NA>", "\\N")  # what programs write for a missing value
LONGEST_NO_ID = max(map(len, NO_ID))


@dataclass
class Fields:
    """Casts the fields of a source, part by part.

    `names`: what the source calls each of `FIELDS` that it has; `whole_number_ids`: an id of text is a bad row.
    Ids are Int64 as long as every id of the column is written as a whole number ("7", not "07") that fits, and from
    the first other one on String. Floating-point ids must be whole numbers: pandas makes such of a column where some
    are missing. As text it writes them as "7.0": those of the fields `decimal_ids`, all of which are so, are 7.
    """

    names: Mapping[str, str]
    whole_number_ids: bool
    times: Times = field(default_factory=Times)
    decimal_ids: Collection[str] = ()
    as_text: set[str] = field(default_factory=set)

    def cast(self, raw: pl.DataFrame, path: Path, bad: BadRows, *, unit: str = "line") -> pl.DataFrame:
        """Return the usable rows of `raw` (`LINE` and the fields as they stand): ids, Int64 seconds, Float32 ratings,
        titles.

        Rows with a field that is missing or cannot be cast go to `bad`, named by their `unit`: "line" or "row" of the
        file `path`. Raises `DataError` for a type that is no field at all.
        """
        for name in self.names:
            if wish := self._wish_of_type(name, raw.schema[name]):
                raise DataError(f'{path}: column "{self.names[name]}" has type {raw.schema[name]}: {wish}')
        floats = [name for name in IDS if name in self.names and raw.schema[name].is_float()]
        raw = raw.with_columns(pl.col(floats).fill_nan(None)) if floats else raw
        frame = raw.select(self._field(name, raw[name]) for name in self.names)
        needed = [name for name in self.names if name not in OPTIONAL]
        if not any(frame.select(needed).null_count().row(0)):
            return frame
        self._report(raw, frame.select(needed), path, unit, bad)
        return frame.drop_nulls(needed)

    def _field(self, name: str, column: pl.Series) -> pl.Series:
        if name in IDS:
            return self._id(name, column)
        if name == "time":
            return self.times.seconds(column)
        if name in OPTIONAL:
            return _text(stripped(column.cast(pl.String)))
        number = stripped(column).cast(pl.Float32, strict=False)
        if name == "is_read":
            return (number == 1).set((number != 0) & (number != 1), None).alias(name)
        return number.set(~number.is_finite(), None)

    def _id(self, name: str, column: pl.Series) -> pl.Series:
        if column.dtype.is_float():
            column = _whole(column)
        text = None if column.dtype.is_integer() else _text(column)
        if text is not None and name in self.decimal_ids:
            text = text.str.strip_suffix(DECIMAL)
        if name in self.as_text:
            return _text(column.cast(pl.String)) if text is None else _without_no_ids(text)
        if self.whole_number_ids and text is not None:
            return stripped(text).cast(pl.Int64, strict=False)
        whole = (column if text is None else text).cast(pl.Int64, strict=False)
        same = whole.is_not_null() | column.is_null() if text is None else whole.cast(pl.String).eq_missing(text)
        if same.all():
            return whole
        if text is not None and (known := _without_no_ids(text)).null_count() > text.null_count():
            return self._id(name, known)
        self.as_text.add(name)
        return self._id(name, column)

    def _report(self, raw: pl.DataFrame, frame: pl.DataFrame, path: Path, unit: str, bad: BadRows) -> None:
        """Count the bad rows by their first bad field, and show the first rows."""
        flags = frame.select(pl.all().is_null())
        first = pl.coalesce(pl.when(pl.col(name)).then(pl.lit(name)) for name in frame.columns).alias("bad field")
        found = raw.with_columns(flags.select(first)).filter(pl.col("bad field").is_not_null())
        for row in found.head(max(bad.room, 0)).iter_rows(named=True):
            name = row["bad field"]
            bad.show(path, unit, row[LINE], self._problem(name, row[name], raw[name]))
        missing = pl.coalesce(
            pl.when(pl.col("bad field") == name).then(pl.col(name).cast(pl.String).fill_null("").is_in(_missing(name)))
            for name in frame.columns
        )
        for name, is_missing, n in (
            found.group_by("bad field", missing.alias("missing")).len().sort(pl.all()).iter_rows()
        ):
            bad.add(f"{name} {'is missing' if is_missing else KINDS.get(name, 'is not a whole number')}", n)

    def _problem(self, name: str, value: object, column: pl.Series) -> str:
        if value in (None, ""):
            return f"{self.names[name]} is missing"
        if value in _missing(name):
            return f'{self.names[name]} "{value}": stands for a missing id; write the id, or drop the row'
        return f'{self.names[name]} "{value}": {self._wish(name, value, column)}'

    def _wish(self, name: str, value: object, column: pl.Series) -> str:
        if name == "time":
            return self.times.expected_value(value, column)
        if name in IDS and isinstance(value, float) and value.is_integer():
            return "a floating-point number of this size has lost its last digits; write the ids as whole numbers"
        return _wish(name, is_text_id=not self.whole_number_ids)

    def _wish_of_type(self, name: str, dtype: pl.DataType) -> str:
        """Return what the field must be instead of `dtype`; "" where it can be read."""
        if name == "time":
            return self.times.expected_type(dtype)
        if name in IDS:
            is_readable = dtype.is_integer() or dtype.is_float() or dtype in (pl.String, pl.Categorical, pl.Enum)
        elif name in OPTIONAL:
            is_readable = not dtype.is_nested()
        else:
            is_readable = dtype.is_numeric() or dtype in (pl.String, pl.Boolean)
        return "" if is_readable else _wish(name, is_text_id=not self.whole_number_ids)


def _wish(name: str, *, is_text_id: bool) -> str:
    if name in IDS:
        return "must be a whole number" + (" or text" if is_text_id else "")
    return {"rating": "must be a number", "is_read": "must be 0 or 1", "title": "must be text"}[name]


def all_decimal(ids: pl.Series) -> bool:
    """Return whether every id that is there is a whole number written as "7.0"; numbers are what they are.

    >>> all_decimal(pl.Series(["7.0", None, "-12.0"])), all_decimal(pl.Series(["7.0", "7"]))
    (True, False)
    """
    if ids.dtype.is_numeric():
        return True
    text = _without_no_ids(_text(ids))
    whole = text.str.strip_suffix(DECIMAL).cast(pl.Int64, strict=False)
    return bool((whole.cast(pl.String) + DECIMAL).eq_missing(text).all())


def _whole(ids: pl.Series) -> pl.Series:
    """Return floating-point ids as Int64; null for other than whole numbers, and for one that may stand for several."""
    limit = next(limit for dtype, limit in EXACT if ids.dtype == dtype)
    is_exact = (ids == ids.floor()) & (ids.abs() < limit)
    return ids.set(~is_exact, None).cast(pl.Int64, strict=False)


def _missing(name: str) -> tuple[str, ...]:
    """Return the texts that stand for no value of the field `name`."""
    return ("", *NO_ID) if name in IDS else ("",)


def _without_no_ids(text: pl.Series) -> pl.Series:
    """Return `text` with null for what stands for a missing id."""
    is_short = text.str.len_bytes() <= LONGEST_NO_ID  # quickly told, and true of few long ids
    return text.set(is_short & text.is_in(NO_ID), None) if is_short.any() else text


def _text(column: pl.Series) -> pl.Series:
    text = column.cast(pl.String)
    return text.set(text == "", None)
