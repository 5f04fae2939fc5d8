"""The fields of a source as numbers or text: cast lazily, every row checked, the first bad one named.

Text is scanned as text and cast here, so that no row is skipped or repaired in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bert4rec.errors import DataError

LINE = "line number"  # column with the line of the file, or the row of a Parquet file, that a message names
OTHER = "other "  # begins the names of columns that are read for the sake of the check only
IDS = ("user", "item")
FIELDS = (*IDS, "time", "rating")


@dataclass(frozen=True)
class Raw:
    """Fields as they stand in a file: `LINE`, some of `FIELDS`, and others whose names begin with `OTHER`.

    `names`: what the file calls each field; `whole_number_ids`: text ids are an error; `unit`: "line" or "row".
    """

    frame: pl.LazyFrame
    path: Path
    names: Mapping[str, str]
    whole_number_ids: bool = True
    unit: str = "line"


def cast_fields(raw: Raw) -> tuple[pl.LazyFrame, dict[str, int]]:
    """The fields of `raw` cast, in file order, and the counts `rows`, `users`, `items`.

    Ids become Int64 where every id of the column is written as a whole number ("7", not "07"), else String; times
    Int64 seconds, ratings Float32. Raises `DataError` naming the first line with a field that is missing or cannot
    be cast, and for a source without rows.
    """
    casts = _casts(raw)
    counts = raw.frame.select(
        pl.len().alias("rows"),
        casts["user"].n_unique().alias("users"),
        casts["item"].n_unique().alias("items"),
        *[cast.null_count().alias(f"bad {field}") for field, cast in casts.items()],
        pl.col(f"^{OTHER}.*$").null_count(),
    ).collect(engine="streaming").row(0, named=True)  # fmt: skip
    if counts["rows"] == 0:
        raise DataError(f"{raw.path}: holds no interactions; name another file in data.path")
    bad = {field: cast for field, cast in casts.items() if counts[f"bad {field}"]}
    if bad:
        raise DataError(_first_bad(raw, bad))
    frame = raw.frame.select(cast.alias(field) for field, cast in casts.items())
    return frame, {name: counts[name] for name in ("rows", "users", "items")}


def _casts(raw: Raw) -> dict[str, pl.Expr]:
    """For each field of the source the expression that casts it, null where it cannot."""
    schema = raw.frame.collect_schema()
    fields = [field for field in FIELDS if field in schema]
    for field in fields:
        if not _readable(field, schema[field]):
            raise DataError(f'{raw.path}: column "{raw.names[field]}" has type {schema[field]}: {_wish(field, raw)}')
    text = [field for field in IDS if not raw.whole_number_ids and not schema[field].is_integer()]
    whole = dict.fromkeys(IDS, True)
    if text:
        same = [_written_whole(field, schema[field]).all() for field in text]
        whole |= raw.frame.select(same).collect(engine="streaming").row(0, named=True)
    casts = {field: _whole(field, schema[field]) if whole[field] else _text(field) for field in IDS}
    if "time" in fields:
        casts["time"] = _seconds(schema["time"])
    if "rating" in fields:
        rating = pl.col("rating").cast(pl.Float32, strict=False)
        casts["rating"] = pl.when(rating.is_finite()).then(rating)
    return casts


def _readable(field: str, dtype: pl.DataType) -> bool:
    if field in IDS:
        return dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum)
    if field == "time":
        return dtype.is_numeric() or dtype in (pl.String, pl.Datetime, pl.Date)
    return dtype.is_numeric() or dtype == pl.String


def _whole(field: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(field)
    return (column if dtype.is_integer() else column.cast(pl.String)).cast(pl.Int64, strict=False)


def _written_whole(field: str, dtype: pl.DataType) -> pl.Expr:
    """Whether an id is text that a whole number is written as: "7", not "07"; a missing id speaks for neither."""
    text = _text(field)
    return (_whole(field, dtype).cast(pl.String) == text).fill_null(text.is_null())


def _text(field: str) -> pl.Expr:
    text = pl.col(field).cast(pl.String)
    return pl.when(text != "").then(text).alias(field)


def _seconds(dtype: pl.DataType) -> pl.Expr:
    """Whole seconds, rounded down."""
    time = pl.col("time")
    if dtype.is_temporal():
        return time.dt.epoch("s")
    fraction = time.cast(pl.Float64, strict=False).floor().cast(pl.Int64, strict=False)
    if dtype.is_float():
        return fraction
    whole = time.cast(pl.Int64, strict=False)
    return pl.coalesce(whole, fraction, *_iso_8601(time)) if dtype == pl.String else whole


def _iso_8601(text: pl.Expr) -> list[pl.Expr]:
    """Seconds of `2024-03-19T10:27:00` (or with a blank, a fraction, Z, an offset) and `2024-03-19`; UTC if unsaid."""
    moment = text.str.replace(" ", "T", literal=True).str.strip_suffix("Z")
    return [
        moment.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us").dt.epoch("s"),
        moment.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", strict=False, time_unit="us").dt.epoch("s"),
        text.str.to_date("%Y-%m-%d", strict=False).dt.epoch("s"),
    ]


def _first_bad(raw: Raw, casts: Mapping[str, pl.Expr]) -> str:
    """One line on the first row with a field that is missing or cannot be cast."""
    found: dict[str, Any] = (
        raw.frame.filter(pl.any_horizontal(cast.is_null() for cast in casts.values())).head(1)
        .with_columns(cast.is_null().alias(f"bad {field}") for field, cast in casts.items())
        .collect().row(0, named=True)
    )  # fmt: skip
    field = next(field for field in casts if found[f"bad {field}"])
    value = found[field]
    problem = "is missing" if value in (None, "") else f'"{value}": {_wish(field, raw)}'
    return f"{raw.path}, {raw.unit} {found[LINE]}: {raw.names[field]} {problem}; correct or remove this {raw.unit}"


def _wish(field: str, raw: Raw) -> str:
    if field in IDS:
        return "must be a whole number" + ("" if raw.whole_number_ids else " or text")
    return {"time": "must be a time: seconds, or text like 2024-03-19T10:27:00", "rating": "must be a number"}[field]
