"""Read a second column, which orders rows with equal times."""

import polars as pl

from bert4rec.prepare.times import stripped

CLOCK_PARTS = r"^(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?(?:\s*([AaPp])\.?[Mm]\.?)?$"  # 9:05, 12:30:00.5, 9:05 PM
ORDER_TYPE = pl.Decimal(38, 9)  # orders whole numbers of 64 bits, and fractions, exactly
LARGEST_ORDER = 1e19
ORDERED_SHARE = 0.9


def order_kind(first: pl.Series) -> str:
    """Return how the `first` values of a column of order are compared: as "number", time of day ("clock") or "text".

    >>> [order_kind(pl.Series(values)) for values in (["2", "10", ""], ["9:05", "12:30:00"], ["b", "a"])]
    ['number', 'clock', 'text']
    """
    if first.dtype != pl.String:
        return "number"
    known = stripped(first).replace("", None).drop_nulls()
    for kind in ("number", "clock"):
        if len(known) and order_values(known, kind).count() >= ORDERED_SHARE * len(known):
            return kind
    return "text"


def order_values(column: pl.Series, kind: str) -> pl.Series:
    """Return values that sort as the `column` of order does; null for a value that is missing or not of the `kind`.

    >>> order_values(pl.Series(["9:05 PM", "12:30:00"]), "clock").to_list()
    [Decimal('75900.000000000'), Decimal('45000.000000000')]
    """
    if kind == "text":
        return stripped(column.cast(pl.String)).replace("", None).alias("order")
    if column.dtype.is_temporal():
        column = column.to_physical()
    if kind == "clock":
        column = _seconds_of_day(stripped(column.cast(pl.String)))
    column = stripped(column)
    if column.dtype.is_integer():
        return column.cast(ORDER_TYPE).alias("order")
    decimal = column.cast(pl.Float64, strict=False)
    decimal = decimal.set(~(decimal.abs() < LARGEST_ORDER), None).cast(ORDER_TYPE)
    if column.dtype == pl.String:  # exact beyond 2^53
        decimal = column.cast(pl.Int64, strict=False).cast(ORDER_TYPE).fill_null(decimal)
    return decimal.alias("order")


def _seconds_of_day(text: pl.Series) -> pl.Series:
    hour, minute, second, half = (text.str.extract(CLOCK_PARTS, group) for group in (1, 2, 3, 4))
    hours = hour.cast(pl.Float64)
    half = half.str.to_lowercase()
    hours = hours.set(half.is_not_null() & (hours == 12), 0.0)  # 12:30 AM comes first
    hours += (half == "p").fill_null(value=False).cast(pl.Float64) * 12
    return hours * 3600 + minute.cast(pl.Float64) * 60 + second.cast(pl.Float64).fill_null(0)
