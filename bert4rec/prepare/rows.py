"""Read, filter and sort the rows of a source, and apply the limits of the settings."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.config.tables import Preprocessing, instant
from bert4rec.prepare.ordering import Distinct, ExistingIds, Parts, SortedRuns, in_time_order, same_type, with_codes
from bert4rec.prepare.progress import BadRows, Progress
from bert4rec.prepare.sources import Interactions
from bert4rec.prepare.synthetic import GeneratedSource
from bert4rec.runtime.errors import DataError

FEW_BAD_ROWS = 10  # accepted even above the allowed share, which would be less than one row in a small file

Filter: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]

FILTERS = (  # by the names of their settings
    "only_read", "min_rating", "time_from", "time_until", "repeats", "min_item_interactions",
    "min_user_interactions", "max_user_interactions",
)  # fmt: skip


def apply(verbs: Mapping[str, Filter], frame: pl.DataFrame, dropped: Counter[str]) -> pl.DataFrame:
    """Return the frame after all filters (`verbs`, by setting), and add the rows that each one drops to `dropped`.

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
    """Keep rows with a true `is_read`: Goodreads marks books that were read, and not just shelved, with it.

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
    """Keep rows from `start` on and before `end` (seconds; None = no limit). Raises `DataError` without times.

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
    """Keep all interactions of a user with an item, only the first or the last, or the first of consecutive ones.

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
    """Drop the rows of items with fewer than `min_interactions` rows; `counts[item]` is the number of rows of an item.

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


@dataclass
class RawRows:
    """Hold all usable rows on the disk: `known` for users who have a dense id already, `new` for new users."""

    known: SortedRuns
    new: SortedRuns
    items: Distinct = field(default_factory=Distinct)

    def __len__(self) -> int:
        return self.known.n_rows + self.new.n_rows

    @property
    def item_type(self) -> pl.DataType:
        """Return the type of the original item ids."""
        return (self.new.schema or self.known.schema)["item"]


def read_rows(
    source: Interactions | GeneratedSource, settings: Preprocessing, known: ExistingIds | None, *, folder: Path,
    run_bytes: int, progress: Progress,
) -> RawRows:  # fmt: skip
    """Return all usable rows of `source`, in runs of `run_bytes` under `folder`; `known`: ids of the dataset to extend.

    Raises `DataError` if the share of bad rows is above `max_bad_rows`, unless there are at most `FEW_BAD_ROWS`, and at
    most a tenth of all rows. If this is likely, it is logged early, and all rows are read to count the bad ones; if no
    row of the first part is usable, the error is raised at once.
    """
    raw = RawRows(SortedRuns(folder / "known", run_bytes=run_bytes), SortedRuns(folder / "new", run_bytes=run_bytes))
    before = last = 0
    is_said = False
    with progress.stage("read", source.n_bytes) as stage:
        for frame, done in source:
            before, last = (last, done) if done > last else (before, last)
            if before and not is_said:  # all rows of the first `before` bytes have been read
                n_seen = len(raw) + len(frame) + source.bad.total
                if source.bad.total == n_seen:
                    raise DataError(
                        f"{source.bad.shown[0]}; none of the first {n_seen:,} rows can be used: correct them"
                    )
                if is_said := _has_too_many(source.bad, n_seen * source.n_bytes / before, settings):
                    n, kinds = f"{source.bad.total:,} of the first {n_seen:,} rows", ", ".join(source.bad.counts)
                    progress.log(f"{n} cannot be used ({kinds}); reading on to count all")
            raw.items.add(frame.select("item"))
            for runs, rows in zip((raw.known, raw.new), _by_known(frame, known), strict=True):
                runs.add(rows)
            stage.advance(done, len(frame))
    bad, n_rows = source.bad, len(raw) + source.bad.total
    if _has_too_many(bad, n_rows, settings):
        n = f"{bad.total:,} of {n_rows:,} rows" if bad.total > 1 else "a row"
        raise DataError(
            f"{bad.shown[0]}; {n} cannot be used, more than preprocessing.max_bad_rows = {settings.max_bad_rows:g} of "
            "all: correct or remove these rows, or allow more"
        )
    return raw


def _by_known(frame: pl.DataFrame, known: ExistingIds | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of known users, with their dense id as `user`, and the rows of new users."""
    if known is None:
        return frame.clear(), frame
    names, old = same_type(frame["user"], known.users["original"])
    ids = known.users.select(pl.col("user").cast(pl.Int64).alias("known"), original=old)
    found = frame.with_columns(original=names).join(ids, on="original", how="left", maintain_order="left")
    rows = found.drop("original", "known")
    is_known = found["known"].is_not_null()
    return rows.with_columns(user=found["known"]).filter(is_known), rows.filter(~is_known)


def _has_too_many(bad: BadRows, n_rows: float, settings: Preprocessing) -> bool:
    """Return whether `bad` rows among `n_rows` are more than the settings allow."""
    share = settings.max_bad_rows
    return bad.total > max(share * n_rows, min(FEW_BAD_ROWS, n_rows / 10) if share else 0)


@dataclass
class OrderedRows:
    """Hold the sorted rows. Items are codes, indices into the sorted `items`; `counts` is the number of rows per code.

    The first `n_known` parts belong to users with dense ids. `dropped`: number of dropped rows by setting.
    """

    parts: Parts
    items: pl.Series
    counts: NDArray[np.int64]
    n_known: int = 0
    n_rows_read: int = 0
    n_users_read: int = 0
    n_items_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def order_rows(
    raw: RawRows, settings: Preprocessing, order: Mapping[str, Any], *, folder: Path, progress: Progress,
    also: Iterable[pl.Series] = (),
) -> OrderedRows:  # fmt: skip
    """Return the rows that pass the filters, by user and time, or without times in the `order` of the source.

    `also`: items that get a code even without rows.
    """
    n_items_read = len(raw.items.rows())
    for items in also:
        raw.items.add(pl.DataFrame({"item": items}))
    originals = raw.items.rows()["item"].sort()
    codes = pl.DataFrame([originals.alias("original"), pl.Series("code", np.arange(len(originals)), dtype=pl.Int32)])
    ordered = OrderedRows(Parts(folder), originals, np.zeros(len(originals), np.int64))
    ordered.n_rows_read, ordered.n_items_read = len(raw), n_items_read
    with progress.stage("order", len(raw)) as stage:
        for runs in (raw.known, raw.new):
            for frame in runs.partitions():
                stage.advance(stage.n_rows + len(frame), len(frame))
                ordered.n_users_read += frame["user"].n_unique()
                kept = _ordered(frame, codes, settings, newest_first=order["newest_first"], dropped=ordered.dropped)
                ordered.counts += np.bincount(kept["item"].to_numpy(), minlength=len(originals))
                ordered.parts.add(kept)
            if runs is raw.known:
                ordered.n_known = len(ordered.parts)
            runs.remove()
    return ordered


def _ordered(
    frame: pl.DataFrame, codes: pl.DataFrame, settings: Preprocessing, *, newest_first: bool, dropped: Counter[str]
) -> pl.DataFrame:
    """Return the rows of a part that pass the filters, sorted, with codes as items."""
    frame = apply(_filters_by_row(settings), frame, dropped)
    item, original = same_type(frame["item"], codes["original"])
    coded = with_codes(frame.with_columns(item), codes.with_columns(original))
    return apply(_filters_in_order(settings), in_time_order(coded, newest_first=newest_first), dropped)


def filters_of_users(settings: Preprocessing) -> dict[str, Filter]:
    """Return the filters on the number of rows of a user, by setting."""
    least, most = settings.min_user_interactions, settings.max_user_interactions
    return {
        "min_user_interactions": partial(drop_users, min_interactions=least),
        "max_user_interactions": partial(drop_users, min_interactions=1, max_interactions=most),
    }


def _filters_by_row(settings: Preprocessing) -> dict[str, Filter]:
    """Return the filters that look at single rows, by setting."""
    start, end = (instant(text) if text else None for text in (settings.time_from, settings.time_until))
    return {
        "only_read": partial(drop_unread, only_read=settings.only_read),
        "min_rating": partial(drop_low_ratings, min_rating=settings.min_rating),
        "time_from": partial(keep_times, start=start),
        "time_until": partial(keep_times, end=end),
    }


def _filters_in_order(settings: Preprocessing) -> dict[str, Filter]:
    """Return the filters that need a user's sorted rows; with a limit for items, filters of users come later."""
    verbs: dict[str, Filter] = {"repeats": partial(keep_repeats, which=settings.repeats)}
    return verbs | (filters_of_users(settings) if settings.min_item_interactions <= 1 else {})


def limit_rows(ordered: OrderedRows, settings: Preprocessing, *, progress: Progress) -> None:
    """Drop rare items, then users with too few or too many rows; repeat until both limits hold.

    Raises `DataError` if no row is left.
    """
    least, n_rounds = settings.min_item_interactions, 0
    is_rare = least > 1
    while is_rare:
        n_rounds += 1
        before, ordered.counts = ordered.counts, np.zeros_like(ordered.counts)
        verbs = {"min_item_interactions": partial(drop_rare_items, counts=before, min_interactions=least)}
        with progress.stage(f"limits, round {n_rounds}", int(before.sum())) as stage:
            for index, frame in enumerate(ordered.parts):
                kept = apply(verbs | filters_of_users(settings), frame, ordered.dropped)
                if len(kept) < len(frame):
                    ordered.parts.replace(index, kept)
                ordered.counts += np.bincount(kept["item"].to_numpy(), minlength=len(before))
                stage.advance(stage.n_rows + len(frame), len(frame))
        is_rare = bool(((ordered.counts > 0) & (ordered.counts < least)).any())
    if not ordered.counts.any():
        default = Preprocessing()
        changed = [
            f"{name} = {value}" for name in FILTERS if (value := getattr(settings, name)) != getattr(default, name)
        ]
        raise DataError(
            f"0 of {ordered.n_rows_read} rows and {ordered.n_users_read} users pass [preprocessing] "
            f"{', '.join(changed) or 'as it is'}; relax these filters"
        )
