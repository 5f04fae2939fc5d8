"""Find out what the texts of a column mean: numbers, missing values, or numbers that are written in another way."""

import json
from collections.abc import Collection
from typing import Any

import polars as pl

from bert4rec.sources.text_rows import shortened

MISSING_TEXTS = ("", "(no genres listed)")
MOSTLY_NUMBERS = 0.8  # share of the values from which a text column is one of numbers with mistakes
DECIMAL_COMMA = r"^\s*[+-]?\d[\d.]*,\d+\s*$"


def typed(table: pl.DataFrame, texts: Collection[str] = ()) -> pl.DataFrame:
    """Return a table of texts with the types of their values; the columns `texts` stay text.

    >>> typed(pl.DataFrame({"price": ["1.5", None], "code": ["007", "8"]}), texts=["code"]).rows()
    [(1.5, '007'), (None, '8')]
    """
    types = {name: pl.String for name in table.columns if name in texts}
    return pl.read_csv(table.write_csv().encode(), schema_overrides=types, infer_schema_length=None)


def number_problem(values: pl.Series) -> str:
    """Return why a column whose texts are mostly numbers is not a column of numbers; "" for any other column.

    >>> number_problem(pl.Series(["1.5", "2", "N/A", "4", "5"])), number_problem(pl.Series(["S", "M", "38"]))
    ('1 of 5 values are not numbers, such as "N/A"; leave them empty', '')
    """
    known = values.drop_nulls()
    if known.dtype != pl.String or not len(known):
        return ""
    is_number = known.str.strip_chars().cast(pl.Float64, strict=False).is_finite().fill_null(value=False)
    has_comma = known.str.contains(DECIMAL_COMMA)
    if has_comma.any() and (is_number | has_comma).mean() >= MOSTLY_NUMBERS:  # type: ignore[operator]
        n, text = int(has_comma.sum()), known.filter(has_comma)[0].strip()
        return f"{n:,} of {len(known):,} values have a decimal comma, such as {shown(text)}; write 0.5"
    if is_number.all() or is_number.mean() < MOSTLY_NUMBERS:  # type: ignore[operator]
        return ""
    others = known.filter(~is_number)
    return f"{len(others):,} of {len(known):,} values are not numbers, such as {shown(others[0])}; leave them empty"


def shown(value: Any) -> str:
    """Return a value as JSON, cut to a length for a message."""
    value = value.to_list() if isinstance(value, pl.Series) else value
    return shortened(json.dumps(value, ensure_ascii=False, default=str))
