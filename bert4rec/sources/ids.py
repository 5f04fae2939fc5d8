"""Make the ids in a column canonical, as `dataset.ids` defines it."""

import re

import polars as pl

from bert4rec.dataset.ids import NO_IDS, canonical

EXACT_FLOATS = ((pl.Float64, 2**53), (pl.Float32, 2**24), (pl.Float16, 2**11))  # whole numbers below it are exact
ODD = rf"^[^!-~]|[^!-~]$|[^ -~]|\.0+$|^(?i:{'|'.join(sorted(map(re.escape, NO_IDS)))})$"  # what may not be canonical

SCIENTIFIC = r"^\d[.,]\d+[eE]\+\d\d+$"  # as a spreadsheet shows a long number, without its last digits


def canonical_ids(text: pl.Series) -> pl.Series:
    """Return the canonical ids of a column of text; null for a missing id."""
    is_odd = text.str.contains(ODD)
    if not is_odd.any():
        return text
    odd = text.filter(is_odd).unique()  # few values, or few of many rows: one definition in Python is fast enough
    canonical_odd = pl.Series([canonical(value) for value in odd], dtype=pl.String)
    return text.replace_strict(odd, canonical_odd, default=text, return_dtype=pl.String)


def whole_ids(ids: pl.Series) -> pl.Series:
    """Return floating-point ids as Int64; null for fractions, and for numbers too large to be exact."""
    limit = next(limit for dtype, limit in EXACT_FLOATS if ids.dtype == dtype)
    is_exact = (ids == ids.floor()) & (ids.abs() < limit)
    return ids.set(~is_exact, None).cast(pl.Int64, strict=False)


def numbers_or_text(column: pl.Series) -> pl.Series:
    """Return the canonical ids of a column: Int64 if all are whole numbers that fit, else text; null for a missing id.

    Floating-point ids that are no exact whole numbers are null, too.
    """
    if column.dtype.is_float():
        column = whole_ids(column)
    if column.dtype.is_integer():
        whole = column.cast(pl.Int64, strict=False)
        return whole if whole.null_count() == column.null_count() else column.cast(pl.String)
    text = column.cast(pl.String)
    for read in (text, text.str.strip_suffix(".0")):  # fast for most columns of numbers
        if (numbers := _numbers(read)) is not None:
            return numbers
    numbers = _numbers(text := canonical_ids(text))
    return text if numbers is None else numbers


def without_rounded(ids: pl.Series) -> pl.Series:
    """Return the ids with null for numbers that have lost their last digits, such as 4.00638E+12.

    >>> without_rounded(pl.Series(["4.00638E+12", "4,1E+12", "A.1E+12", "E+12"])).to_list()
    [None, None, 'A.1E+12', 'E+12']
    """
    return ids.set(ids.str.contains(SCIENTIFIC), None) if ids.dtype == pl.String else ids


def ids_like(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Return the canonical ids of a column as `dtype`, Int64 or String; null for what is no such id."""
    ids = numbers_or_text(column)
    if ids.dtype == pl.String and dtype != pl.String:
        numbers = ids.cast(pl.Int64, strict=False)
        return numbers.set(numbers.cast(pl.String) != ids, None)
    return ids.cast(dtype)


def _numbers(text: pl.Series) -> pl.Series | None:
    """Return canonical whole numbers that fit as Int64; None if one is not."""
    whole = text.cast(pl.Int64, strict=False)
    return whole if whole.cast(pl.String).eq_missing(text).all() else None
