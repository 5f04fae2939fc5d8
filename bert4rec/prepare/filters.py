"""Filters of interactions: each a pure function from a frame to a frame.

Interactions have the columns `user`, `item`, where known `time` (seconds), `rating`, `is_read`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.runtime.errors import DataError

Filter: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]

FILTERS = (  # the settings that ask for them
    "only_read", "min_rating", "time_from", "time_until", "repeats", "min_item_interactions",
    "min_user_interactions", "max_user_interactions",
)  # fmt: skip


def apply(verbs: Mapping[str, Filter], frame: pl.DataFrame, dropped: Counter[str]) -> pl.DataFrame:
    """Return the frame after all `verbs`, named by their settings; what each has dropped is added up in `dropped`.

    >>> dropped = Counter()
    >>> apply({"only_read": drop_unread}, pl.DataFrame({"item": [1, 2], "is_read": [True, False]}), dropped).rows()
    [(1,)]
    >>> dropped
    Counter({'only_read': 1})
    """
    for name, verb in verbs.items():
        kept = verb(frame)
        if len(kept) < len(frame):
            dropped[name] += len(frame) - len(kept)
        frame = kept
    return frame


def drop_unread(interactions: pl.DataFrame, *, only_read: bool = True) -> pl.DataFrame:
    """Keep rows with a true `is_read`, as Goodreads tells books that were read from books on a shelf.

    >>> frame = pl.DataFrame({"item": [1, 2], "is_read": [True, False]})
    >>> drop_unread(frame).rows()
    [(1,)]
    """
    return interactions.filter("is_read").drop("is_read") if only_read else interactions


def drop_low_ratings(interactions: pl.DataFrame, *, min_rating: float) -> pl.DataFrame:
    """Keep rows rated `min_rating` or more; 0 keeps all. Raises `DataError` for a source without ratings.

    >>> frame = pl.DataFrame({"item": [1, 2, 3], "rating": [5.0, 2.0, 4.0]})
    >>> drop_low_ratings(frame, min_rating=4.0)["item"].to_list()
    [1, 3]
    """
    if min_rating == 0:
        return interactions
    if "rating" not in interactions.columns:
        raise DataError(f"preprocessing.min_rating = {min_rating}: the source has no ratings; set it to 0")
    return interactions.filter(pl.col("rating") >= min_rating)


def keep_times(interactions: pl.DataFrame, *, start: int | None = None, end: int | None = None) -> pl.DataFrame:
    """Keep rows from `start` on and before `end` (seconds; None = no limit). `DataError` for a source without times.

    >>> frame = pl.DataFrame({"item": [1, 2, 3], "time": [10, 20, 30]})
    >>> keep_times(frame, start=20, end=30)["item"].to_list()
    [2]
    """
    if start is None and end is None:
        return interactions
    if "time" not in interactions.columns:
        raise DataError("preprocessing.time_from, time_until: the source has no times; leave them empty")
    limits = [] if start is None else [pl.col("time") >= start]
    return interactions.filter(*limits, *([] if end is None else [pl.col("time") < end]))


def keep_repeats(
    interactions: pl.DataFrame, *, which: Literal["keep", "first", "last", "first_in_a_row"]
) -> pl.DataFrame:
    """Keep all interactions of a user with one item, the first or the last, or the first of consecutive ones.

    >>> frame = pl.DataFrame({"user": [7, 7, 7], "item": [1, 2, 1]})
    >>> keep_repeats(frame, which="last")["item"].to_list()
    [2, 1]
    >>> frame = pl.DataFrame({"user": [7, 7, 7, 8], "item": [1, 1, 2, 2]})
    >>> keep_repeats(frame, which="first_in_a_row").rows()
    [(7, 1), (7, 2), (8, 2)]
    """
    if which == "keep":
        return interactions
    if which == "first_in_a_row":
        pair = pl.col("user", "item")
        return interactions.filter(~pl.all_horizontal(pair == pair.shift()).fill_null(False))
    return interactions.unique(["user", "item"], keep=which, maintain_order=True)


def drop_rare_items(interactions: pl.DataFrame, counts: NDArray[np.int64], *, min_interactions: int) -> pl.DataFrame:
    """Drop the rows of items with fewer than `min_interactions` in all; `counts[item]` rows of each item there are.

    >>> frame = pl.DataFrame({"item": [0, 1, 0]})
    >>> drop_rare_items(frame, np.array([2, 1]), min_interactions=2)["item"].to_list()
    [0, 0]
    """
    is_frequent = pl.lit(pl.Series(counts >= min_interactions))
    return interactions.filter(is_frequent.gather(pl.col("item")))


def drop_users(interactions: pl.DataFrame, *, min_interactions: int, max_interactions: int = 0) -> pl.DataFrame:
    """Drop users with fewer than `min_interactions` rows, or more than `max_interactions` (0 = no limit).

    >>> frame = pl.DataFrame({"user": [7, 8, 7, 9, 9, 9]})
    >>> drop_users(frame, min_interactions=2, max_interactions=2)["user"].to_list()
    [7, 7]
    """
    if min_interactions <= 1 and max_interactions == 0:
        return interactions
    n = pl.len().over("user")
    return interactions.filter(n.is_between(min_interactions, max_interactions or 2**32 - 1))
