"""Decide which items may be recommended, and how many of a kind, by the columns of the items."""

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bert4rec.runtime.errors import SettingsError

if TYPE_CHECKING:
    import polars as pl

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Rules(NamedTuple):
    """Hold whether each item is `allowed` [V], or None for all, and `at_most` items of each of the `groups` [V]."""

    allowed: Bools | None = None
    groups: Ints | None = None
    at_most: int = 0


def make_rules(columns: pa.Table, *, where: str = "", at_most: int = 0, per: str = "") -> Rules:
    """Return the rules for items with `columns`: a condition `where` in SQL, and `at_most` items `per` value of one.

    Of items without a value in that column, any number may be recommended. Raises `SettingsError` for a condition or a
    column that cannot be used.
    """
    import polars as pl  # not a part of what a package needs without rules

    if bool(at_most) != bool(per):
        raise SettingsError("at_most and per: go together, as in --at-most=2 --per=category")
    if at_most < 0:
        raise SettingsError(f"at_most = {at_most}: must be at least 1")
    items = pl.DataFrame(pl.from_arrow(columns))
    allowed = _allowed(items, where) if where else None
    return Rules(allowed, _groups(items, per) if per else None, at_most)


def _allowed(items: "pl.DataFrame", where: str) -> Bools:
    """Return whether each item fulfils the condition; one with a missing value does not."""
    import polars as pl

    try:
        allowed = items.select(allowed=pl.sql_expr(where))["allowed"]
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"where = {where}: {reason}; the columns are: {', '.join(items.columns)}") from None
    if allowed.dtype != pl.Boolean or len(allowed) != len(items):
        raise SettingsError(f"where = {where}: must be true or false for each item, as category = 'books' is")
    if not allowed.any():
        raise SettingsError(f"where = {where}: none of the {len(items):,} items fulfils it")
    return allowed.fill_null(False).to_numpy()


def _groups(items: "pl.DataFrame", per: str) -> Ints:
    """Return a number for each value of the column; items without a value have a number of their own."""
    if per not in items.columns:
        nearest = difflib.get_close_matches(per, items.columns, n=1)
        advice = f"; did you mean {nearest[0]}?" if nearest else ""
        raise SettingsError(f"per = {per}: no column of the items; they have: {', '.join(items.columns)}{advice}")
    import polars as pl

    values = items[per]
    if values.dtype.is_nested():
        raise SettingsError(f"per = {per}: has lists; expected: a column with one value for each item")
    groups = values.rank("dense").cast(pl.Int64).fill_null(-1).to_numpy(writable=True)
    groups[groups < 0] = len(items) + np.flatnonzero(groups < 0)
    return groups


def is_within(groups: Ints, at_most: int) -> Bools:
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
