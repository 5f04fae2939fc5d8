"""Decide which items may be recommended, and how many of a kind, by the columns of the items."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert4rec.dataset.format import one_array
from bert4rec.runtime.arrays import Bools, Int64s
from bert4rec.runtime.errors import ArgumentError, nearest

if TYPE_CHECKING:
    import pyarrow as pa


class Rules(NamedTuple):
    """A mask of the `allowed` items [V], None for all, and `at_most` items of each of the `groups` [V]."""

    allowed: Bools | None = None
    groups: Int64s | None = None
    at_most: int = 0


def make_rules(
    columns: "pa.Table", *, where: str | None = None, at_most: int | None = None, per: str | None = None
) -> Rules:
    """Return the rules for items with `columns`: a condition `where` in SQL, and `at_most` items `per` value of one.

    Of items without a value in that column, any number may be recommended. Raises `ArgumentError` for a condition or a
    column that cannot be used.
    """
    for name, text in (("where", where), ("per", per)):
        if not isinstance(text, str | None):
            raise ArgumentError(f"{name} = {text!r}: must be text")
    if at_most is not None and (isinstance(at_most, bool) or not isinstance(at_most, int) or at_most < 1):
        raise ArgumentError(f"at_most = {at_most!r}: must be a whole number, at least 1")
    if (at_most is None) != (per is None):
        name, value = ("per", per) if at_most is None else ("at_most", at_most)
        raise ArgumentError(f"{name} = {value}: needs both at_most and per, as in --at-most=2 --per=category")
    allowed = None if where is None else _allowed(columns, where)
    return Rules(allowed, None if per is None else _groups(columns, per), at_most or 0)


def _allowed(columns: "pa.Table", where: str) -> Bools:
    """Return whether each item fulfils the condition; one with a missing value does not."""
    import polars as pl  # not a part of what a package needs without a condition

    items = pl.DataFrame(pl.from_arrow(columns))
    place = f"where = {' '.join(where.split())}"
    try:
        unknown = next((name for name in pl.sql_expr(where).meta.root_names() if name not in items.columns), None)
        if unknown is not None:
            raise ArgumentError(f"{place}: {_no_column(unknown, items.columns)}")
        allowed = items.select(allowed=pl.sql_expr(where))["allowed"]
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(f"{place}: {reason}; the columns are: {', '.join(items.columns)}") from None
    try:
        pl.sql_expr(f"({where}\n)")  # in parentheses, a word after the condition is no new name for it
    except pl.exceptions.PolarsError:
        raise ArgumentError(f"{place}: unexpected text after the condition; join conditions by and, or") from None
    if allowed.dtype != pl.Boolean or len(allowed) != len(items):
        raise ArgumentError(f"{place}: must be true or false for each item, as category = 'books' is")
    if not allowed.any():
        raise ArgumentError(f"{place}: no item matches")
    return allowed.fill_null(False).to_numpy()


def _no_column(name: str, columns: Sequence[str]) -> str:
    return f"the items have no column {name}; they have: {', '.join(columns)}{nearest(name, columns)}"


def _groups(columns: "pa.Table", per: str) -> Int64s:
    """Return a number for each value of the column; items without a value have a number of their own."""
    if per not in columns.column_names:
        raise ArgumentError(f"per = {per}: {_no_column(per, columns.column_names)}")
    import pyarrow as pa

    values = one_array(columns[per])
    if pa.types.is_nested(values.type):
        raise ArgumentError(f"per = {per}: has lists; expected: a column with one value for each item")
    groups = np.array(values.dictionary_encode().indices.fill_null(-1).cast(pa.int64()))
    groups[groups < 0] = len(values) + np.flatnonzero(groups < 0)
    return groups


def is_within(groups: Int64s, at_most: int) -> Bools:
    """Return for each of `groups` [B, n] whether it is among the first `at_most` of its value in its row.

    >>> is_within(np.array([[7, 7, 3, 7]]), 2).tolist()
    [[True, True, True, False]]
    """
    order = np.argsort(groups, axis=1, kind="stable")
    ordered = np.take_along_axis(groups, order, axis=1)
    places = np.broadcast_to(np.arange(groups.shape[1]), groups.shape)
    is_first = np.concatenate([np.ones((len(groups), 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
    firsts: Any = np.maximum.accumulate(np.where(is_first, places, 0), axis=1)
    within = np.empty(groups.shape, bool)
    np.put_along_axis(within, order, places - firsts < at_most, axis=1)
    return within
