"""From interactions to windows: a chain of small verbs, each a pure function of a lazy frame.

Interactions have the columns `row` (the file order), `user`, `item`, where known `time` (seconds) and `rating`.
Histories have one row a user, sorted by `user`: `user`, `items` and, where known, the parallel lists `times` and
`ratings`, oldest first.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from bert4rec.errors import DataError

Ints: TypeAlias = NDArray[np.int64]

LISTS = {"item": "items", "time": "times", "rating": "ratings"}
MIN_EVALUATED = 3  # interactions: one to train on, one for validation, one for the test


class Splits(NamedTuple):
    """Histories of the three splits; `validation` and `test` have a `target` besides."""

    train: pl.LazyFrame
    validation: pl.LazyFrame
    test: pl.LazyFrame


def number_rows(interactions: pl.LazyFrame, *, reverse: bool = False) -> pl.LazyFrame:
    """Add `row` (Int64): the file order, or where there is no `time` its reverse if wanted.

    >>> frame = pl.LazyFrame({"user": [7, 7], "item": [1, 2]})
    >>> number_rows(frame, reverse=True).collect()["row"].to_list()
    [0, -1]
    """
    numbered = interactions.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    backwards = reverse and "time" not in interactions.collect_schema()
    return numbered.with_columns(-pl.col("row")) if backwards else numbered


def drop_low_ratings(interactions: pl.LazyFrame, *, min_rating: float) -> pl.LazyFrame:
    """Keep rows rated `min_rating` or more; 0 keeps all. Raises `DataError` for a source without ratings.

    >>> frame = pl.LazyFrame({"item": [1, 2, 3], "rating": [5.0, 2.0, 4.0]})
    >>> drop_low_ratings(frame, min_rating=4.0).collect()["item"].to_list()
    [1, 3]
    """
    if min_rating == 0:
        return interactions
    if "rating" not in interactions.collect_schema():
        raise DataError(f"preprocessing.min_rating = {min_rating}: the source has no ratings; set it to 0")
    return interactions.filter(pl.col("rating") >= min_rating)


def keep_repeats(interactions: pl.LazyFrame, *, which: Literal["keep", "first", "last"]) -> pl.LazyFrame:
    """Of a user's interactions with one item, keep all, or the first or the last in time.

    >>> frame = pl.LazyFrame({"row": [0, 1, 2], "user": [7, 7, 7], "item": [1, 2, 1]})
    >>> keep_repeats(frame, which="last").collect()["row"].sort().to_list()
    [1, 2]
    """
    if which == "keep":
        return interactions
    by = [name for name in ("time", "row") if name in interactions.collect_schema()]
    return interactions.sort(by).unique(["user", "item"], keep=which, maintain_order=True)


def drop_rare_items(interactions: pl.LazyFrame, *, min_interactions: int) -> pl.LazyFrame:
    """Drop the rows of items with fewer than `min_interactions` rows; the order of rows may change.

    >>> frame = pl.LazyFrame({"item": [1, 2, 1]})
    >>> drop_rare_items(frame, min_interactions=2).collect()["item"].to_list()
    [1, 1]
    """
    return _keep_counts(interactions, "item", least=min_interactions, most=0)


def drop_users(interactions: pl.LazyFrame, *, min_interactions: int, max_interactions: int = 0) -> pl.LazyFrame:
    """Drop users with fewer than `min_interactions` rows, or more than `max_interactions` (0 = no limit).

    >>> frame = pl.LazyFrame({"user": [7, 8, 7, 9, 9, 9]})
    >>> drop_users(frame, min_interactions=2, max_interactions=2).collect()["user"].to_list()
    [7, 7]
    """
    return _keep_counts(interactions, "user", least=min_interactions, most=max_interactions)


def _keep_counts(interactions: pl.LazyFrame, column: str, *, least: int, most: int) -> pl.LazyFrame:
    if least <= 1 and most == 0:
        return interactions
    within = pl.col("len").is_between(least, most) if most else pl.col("len") >= least
    kept = interactions.group_by(column).len().filter(within)
    return interactions.join(kept, on=column, how="semi")


def dense_ids(
    interactions: pl.LazyFrame,
    column: str,
    *,
    first: int = 0,
    seed: int | None = None,
    everything: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """The dense ids of the column `user` or `item`: `column` (Int32), `original`, `count` (rows), sorted by dense id.

    Ids count from `first` in the order of the original ids, or with a `seed` in an order shuffled by it: then
    contiguous shards of the item table carry equal load, and the ids tell nothing. `everything` (`original`) names
    what has an id even without a row.

    >>> frame = pl.LazyFrame({"user": ["b", "a", "b"]})
    >>> dense_ids(frame, "user").collect().rows()
    [(0, 'a', 1), (1, 'b', 2)]
    >>> dense_ids(frame, "user", everything=pl.LazyFrame({"original": ["a", "b", "c"]})).collect().rows()
    [(0, 'a', 1), (1, 'b', 2), (2, 'c', 0)]
    """

    def numbered(counts: pl.DataFrame) -> pl.DataFrame:
        order = np.arange(len(counts))
        if seed is not None:
            order = np.random.Generator(np.random.PCG64(seed)).permutation(order)
        ids = pl.Series(column, first + order, dtype=pl.Int32)
        return counts.select(ids, "original", "count").sort(column)

    counts = interactions.group_by(pl.col(column).alias("original")).agg(pl.len().cast(pl.Int64).alias("count"))
    if everything is not None:
        counts = everything.join(counts, on="original", how="left").with_columns(pl.col("count").fill_null(0))
    schema = {column: pl.Int32, "original": interactions.collect_schema()[column], "count": pl.Int64}
    return counts.sort("original").pipe(_at_once, numbered, schema)


def with_dense_ids(interactions: pl.LazyFrame, users: pl.LazyFrame, items: pl.LazyFrame) -> pl.LazyFrame:
    """Put dense ids for the original ones; rows of users or items without one are dropped, and rows may move.

    >>> ids = pl.LazyFrame({"original": ["a"], "user": [0]}), pl.LazyFrame({"original": [9], "item": [2]})
    >>> with_dense_ids(pl.LazyFrame({"user": ["a"], "item": [9]}), *ids).collect().rows()
    [(0, 2)]
    """
    for column, ids in (("user", users), ("item", items)):
        ids = ids.select(pl.col("original").alias(column), pl.col(column).alias("dense"))
        interactions = interactions.join(ids, on=column).drop(column).rename({"dense": column})
    rest = [name for name in interactions.collect_schema() if name not in ("user", "item")]
    return interactions.select("user", "item", *rest)


def in_time_order(interactions: pl.LazyFrame) -> pl.LazyFrame:
    """Sort by user, then time where known, then `row`: rows of one second stay in file order.

    >>> frame = pl.LazyFrame({"row": [0, 1, 2], "user": [7, 7, 7], "time": [5, 3, 3]})
    >>> in_time_order(frame).collect()["row"].to_list()
    [1, 2, 0]
    """
    return interactions.sort([name for name in ("user", "time", "row") if name in interactions.collect_schema()])


def to_histories(interactions: pl.LazyFrame) -> pl.LazyFrame:
    """One row a user, in the order of the rows: `user`, `items`, where known `times` and `ratings`.

    >>> frame = pl.LazyFrame({"user": [0, 0, 1], "item": [4, 2, 3]})
    >>> to_histories(frame).collect().rows()
    [(0, [4, 2]), (1, [3])]
    """
    lists = [pl.col(one).alias(many) for one, many in LISTS.items() if one in interactions.collect_schema()]
    return interactions.group_by("user", maintain_order=True).agg(lists)


def mark_validated(histories: pl.LazyFrame, *, n_users: int | Literal["all"], seed: int) -> pl.LazyFrame:
    """Add `validated`: true for a seeded sample of `n_users` users with 3 or more interactions, or for all of them.

    >>> frame = pl.LazyFrame({"user": [0, 1], "items": [[2, 3, 4], [2]]})
    >>> mark_validated(frame, n_users=5, seed=1).collect()["validated"].to_list()
    [True, False]
    """

    def marked(frame: pl.DataFrame) -> pl.DataFrame:
        able = np.flatnonzero(frame["items"].list.len().to_numpy() >= MIN_EVALUATED)
        if n_users != "all" and n_users < len(able):
            able = np.random.default_rng([seed, 2]).choice(able, n_users, replace=False)
        validated = np.zeros(len(frame), bool)
        validated[able] = True
        return frame.with_columns(pl.Series("validated", validated))

    schema = {**histories.collect_schema(), "validated": pl.Boolean}
    return _at_once(histories, marked, schema)


def leave_one_out(histories: pl.LazyFrame) -> Splits:
    """Split histories that `mark_validated` has marked.

    Test: of every user with 3 or more interactions the last one is the target. Validation: of the marked users the
    last but one. Train: what is left; users with fewer than 3 interactions are trained on whole.

    >>> frame = pl.LazyFrame({"user": [0], "items": [[5, 2, 3]], "validated": [True]})
    >>> [split.collect().rows() for split in leave_one_out(frame)]
    [[(0, [5])], [(0, [5], 2)], [(0, [5, 2], 3)]]
    """
    length = pl.col("items").list.len()
    held_out = pl.when(pl.col("validated")).then(2).when(length >= MIN_EVALUATED).then(1).otherwise(0)
    return Splits(
        _up_to(histories, length - held_out),
        _with_target(histories.filter("validated"), last=2),
        _with_target(histories.filter(length >= MIN_EVALUATED), last=1),
    )


def _up_to(histories: pl.LazyFrame, length: pl.Expr) -> pl.LazyFrame:
    lists = [name for name in LISTS.values() if name in histories.collect_schema()]
    return histories.select("user", *[pl.col(name).list.head(length) for name in lists])


def _with_target(histories: pl.LazyFrame, *, last: int) -> pl.LazyFrame:
    target = pl.col("items").list.get(-last).alias("target")
    cut = _up_to(histories.with_columns(target), pl.col("items").list.len() - last)
    return pl.concat([cut, histories.select(target)], how="horizontal")


def windows(histories: pl.LazyFrame, *, max_len: int, step: int) -> pl.LazyFrame:
    """Windows of at most `max_len` items of each history, `step` items apart from its end, the earliest first.

    Columns as `histories`, a row a window. Every position is in a window: raises `ValueError` where `step` is not
    from 1 to `max_len`.

    >>> frame = pl.LazyFrame({"user": [0], "items": [[2, 3, 4, 5, 6]]})
    >>> windows(frame, max_len=3, step=2).collect()["items"].to_list()
    [[2, 3, 4], [4, 5, 6]]
    """
    if not 1 <= step <= max_len:
        raise ValueError(f"step = {step} must be from 1 to max_len = {max_len}")

    def cut(frame: pl.DataFrame) -> pl.DataFrame:
        lengths = frame["items"].list.len().to_numpy().astype(np.int64)
        counts = 1 + np.maximum(0, -(-(lengths - max_len) // step))
        rows = np.repeat(np.arange(len(frame)), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)  # windows of earlier histories
        ends = lengths[rows] - (counts[rows] - 1 - (np.arange(len(rows)) - before)) * step
        starts = np.maximum(0, ends - max_len) + (np.cumsum(lengths) - lengths)[rows]
        lists = [_slices(frame[name], starts, np.minimum(ends, max_len)) for name in frame.columns if name != "user"]
        return pl.DataFrame([frame["user"].gather(rows), *lists])

    return _at_once(histories, cut, histories.collect_schema())


def _at_once(
    frame: pl.LazyFrame, function: Callable[[pl.DataFrame], pl.DataFrame], schema: Mapping[str, Any]
) -> pl.LazyFrame:
    """`function` of the whole frame, past which nothing may be pushed down: it looks at all rows and columns."""
    return frame.map_batches(
        function, schema=schema, predicate_pushdown=False, projection_pushdown=False, slice_pushdown=False
    )


def _slices(lists: pl.Series, starts: Ints, lengths: Ints) -> pl.Series:
    """Slices of all the lists' values put end to end, again as lists; memory grows with the slices only."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    values = lists.explode(empty_as_null=False).gather(index).to_arrow()
    return pl.Series(lists.name, pa.LargeListArray.from_arrays(pa.array(offsets), values), dtype=lists.dtype)
