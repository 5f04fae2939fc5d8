"""Number the moments of a user, order the rows of a moment at random, and draw a target from the last basket.

The rows of one user and time are a basket. Random numbers are functions of the seed and of what they are for, so they
do not depend on how the rows are cut into parts.
"""

import hashlib

import numpy as np
import polars as pl

from bert4rec.dataset.format import EVALUATED
from bert4rec.runtime.arrays import Array

MOMENT, PLACE = "moment", "place"
"""Columns of sorted rows: the numbers of a user's full times, and of its times and values of the order column. A log
has the former only with fractions of a second, the latter only with an order column; else `time` does."""
SHUFFLE_STREAM, DRAW_STREAM = 6, 7  # of random numbers; lower ones are of the samples of users and the negatives


def mix(*keys: Array | int) -> Array:
    """Return a random number [N] of 64 bits for `keys` that are arrays of integers [N] or an integer (splitmix64)."""
    mixed = np.zeros(1, np.uint64)
    for key in keys:
        number = np.asarray(key).astype(np.uint64)
        mixed = (mixed ^ number) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


def fingerprints(ids: pl.Series) -> pl.Series:
    """Return a number of 64 bits for each id, whole number or text, which depends on that id alone."""
    if ids.dtype.is_integer():
        return ids.cast(pl.Int64).reinterpret(signed=False)
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in ids.to_list())
    return pl.Series(ids.name, np.frombuffer(b"".join(digests), np.uint64))


def shuffled(rows: pl.DataFrame, users: pl.Series, items: pl.Series, *, seed: int) -> pl.DataFrame:
    """Return `rows` (`item`: codes) in a random order by `seed`.

    The order depends on a row's user (`users` [N]: original ids), item (`items`: fingerprints by code) and time, not on
    its place in the file. Rows of one user, item and time keep their order.
    """
    ids = users.unique()
    prints = users.replace_strict(ids, fingerprints(ids), return_dtype=pl.UInt64)
    same = [name for name in ("user", "time", "fraction", "item") if name in rows.columns]
    number = rows.select(pl.int_range(pl.len()).over(same)).to_series()  # of rows of one user, item and time
    times = [rows[name].to_numpy() for name in ("time", "fraction") if name in rows.columns]
    keys = mix(
        seed, SHUFFLE_STREAM, prints.to_numpy(), *times,
        items.gather(rows["item"]).to_numpy(), number.to_numpy(),
    )  # fmt: skip
    return rows[np.argsort(keys, kind="stable")]


def with_numbers(rows: pl.DataFrame, *, has_fractions: bool) -> pl.DataFrame:
    """Return sorted rows with the columns `MOMENT` and `PLACE`, as far as needed, and without those that sorted them.

    With `has_fractions`, any part of the log has fractions of a second.
    """
    full_time = [name for name in ("user", "time", "fraction") if name in rows.columns]
    numbers = {MOMENT: pl.struct(full_time).rle_id()} if has_fractions else {}
    if "order" in rows.columns:
        numbers[PLACE] = pl.struct(*full_time, "order").rle_id()
    ordered = rows.with_columns(**{name: number.cast(pl.Int32) for name, number in numbers.items()})
    return ordered.drop("fraction", "order", strict=False)


def basket_key(columns: list[str]) -> pl.Expr | None:
    """Return the lists of histories that are equal for the rows of a basket; None if the rows have no times."""
    return next((pl.col(name) for name in (f"{MOMENT}s", "times") if name in columns), None)


def has_ties(columns: list[str]) -> bool:
    """Return whether the times of sorted rows, in whole seconds, do not tell which rows are tied."""
    return MOMENT in columns or PLACE in columns


def tie_key(columns: list[str]) -> pl.Expr | None:
    """Return the lists of histories that are equal for tied rows; None if the file alone orders the rows."""
    return pl.col(f"{PLACE}s") if f"{PLACE}s" in columns else basket_key(columns)


def explode(histories: pl.DataFrame, lists: pl.Expr | None) -> Array:
    """Return the elements of `lists` of all histories, one after another."""
    assert lists is not None, "these histories have times"
    return histories.select(lists.explode(empty_as_null=False)).to_series().to_numpy()


def is_tied(key: pl.Expr, place: pl.Expr) -> pl.Expr:
    """Return whether the interaction at `place` is tied with the one before it; null without one."""
    at = pl.when(place >= 1).then(place)
    return key.list.get(at, null_on_oob=True) == key.list.get(at - 1, null_on_oob=True)


def draw_targets(histories: pl.DataFrame, split: str, *, seed: int, kinds: list[int]) -> pl.DataFrame:
    """Return `histories` in which a random row of the basket that begins at `split` has become its first row.

    `split` is the column of the target's place, -1 for none. The others of the basket come after it. Only events of
    the `kinds` are drawn, [] = all.
    """
    lists = [name for name, dtype in histories.schema.items() if dtype == pl.List]
    lengths = histories["items"].list.len().to_numpy().astype(np.int64)
    users, places = (histories[name].to_numpy().astype(np.int64) for name in ("user", split))
    moments = explode(histories, basket_key(lists))
    starts = np.cumsum(lengths) - lengths
    rows = np.repeat(np.arange(len(lengths)), lengths)
    first = np.where(places >= 0, starts + places, 0)
    index = np.arange(len(moments))
    may_be_drawn = (places[rows] >= 0) & (index >= first[rows]) & (moments == moments[first][rows])
    if kinds:
        may_be_drawn &= np.isin(histories["events"].explode(empty_as_null=False).to_numpy(), kinds)
    keys = mix(seed, DRAW_STREAM + EVALUATED.index(split), users[rows], index - starts[rows])
    # of each user, those that may be drawn come first, by their keys
    drawn = np.lexsort((keys, ~may_be_drawn, rows))[starts[places >= 0]]
    order = 2 * index
    order[drawn] = 2 * first[rows[drawn]] - 1
    elements = histories.select(pl.col(lists).explode(empty_as_null=False))[np.argsort(order, kind="stable")]
    again = elements.with_columns(row=pl.Series(rows)).group_by("row", maintain_order=True).agg(pl.all())
    return histories.with_columns(again.drop("row"))
