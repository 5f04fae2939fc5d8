"""Read, filter and sort the rows of a source, and apply the limits of the settings."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bert4rec.config.tables import Data, Preprocessing, instant
from bert4rec.prepare.ordering import ExistingIds, Parts, SortedRuns, in_time_order, same_type, with_codes
from bert4rec.prepare.ties import fingerprints, shuffled, with_numbers
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import DataError
from bert4rec.sources.attributes import FirstItemRows
from bert4rec.sources.interactions import Interactions
from bert4rec.sources.progress import BadRows, Progress
from bert4rec.sources.synthetic import GeneratedSource

FEW_BAD_ROWS = 10  # accepted even above the allowed share, which would be less than one row in a small file

MOST_LOST = 0.5  # of the users, rows and items of a dataset to extend

FILTERS = (  # by the names of their settings
    "only_read", "min_rating", "time_from", "time_until", "repeats", "min_item_interactions",
    "min_user_interactions", "max_user_interactions",
)  # fmt: skip


def apply(filters: Mapping[str, pl.Expr], frame: pl.DataFrame, dropped: Counter[str]) -> pl.DataFrame:
    """Return the frame after all `filters` (by setting), and add the rows that each one drops to `dropped`.

    >>> dropped = Counter()
    >>> apply({"min_rating": pl.col("rating") >= 4}, pl.DataFrame({"rating": [5, 2, 4]}), dropped).rows()
    [(5,), (4,)]
    >>> dropped
    Counter({'min_rating': 1})
    """
    for name, is_kept in filters.items():
        kept = frame.filter(is_kept)
        if len(kept) < len(frame):
            dropped[name] += len(frame) - len(kept)
        frame = kept
    return frame


def filters_by_row(settings: Preprocessing, columns: Collection[str]) -> dict[str, pl.Expr]:
    """Return the filters that look at single rows, by setting. Raises `DataError` if `columns` lack what one needs.

    >>> filters_by_row(Preprocessing(min_rating=4), ["user", "item", "rating"])["min_rating"].meta.root_names()
    ['rating']
    """
    filters = {}
    if settings.only_read:  # Goodreads marks books that were read, and not just shelved
        filters["only_read"] = pl.col("is_read")
    if settings.min_rating:
        filters["min_rating"] = pl.col("rating") >= settings.min_rating
    if settings.time_from:
        filters["time_from"] = pl.col("time") >= instant(settings.time_from)
    if settings.time_until:
        filters["time_until"] = pl.col("time") < instant(settings.time_until)
    for name, is_kept in filters.items():
        (column,) = is_kept.meta.root_names()
        if column not in columns:
            raise DataError(
                f"preprocessing.{name} = {getattr(settings, name)}: the source has no {column}; name its column with "
                f"data.{column}_column if it is a table, or remove this setting"
            )
    return filters


def filters_in_order(settings: Preprocessing) -> dict[str, pl.Expr]:
    """Return the filters that need a user's sorted rows; with a limit for items, filters of users come later.

    Rows with `event`s repeat one of their own kind alone: a purchase does not repeat the view before it.

    >>> frame = pl.DataFrame({"user": [7, 7, 7, 8], "item": [1, 1, 2, 2]})
    >>> frame.filter(filters_in_order(Preprocessing(repeats="first_in_a_row"))["repeats"]).rows()
    [(7, 1), (7, 2), (8, 2)]
    """
    same = pl.col("^(user|item|event)$")
    kept = {
        "first": pl.struct(same).is_first_distinct(),
        "last": pl.struct(same).is_last_distinct(),
        "first_in_a_row": ~pl.all_horizontal(same == same.shift()).fill_null(False),
    }
    repeats = {"repeats": kept[settings.repeats]} if settings.repeats != "keep" else {}
    return repeats | (filters_of_users(settings) if settings.min_item_interactions <= 1 else {})


def filters_of_users(settings: Preprocessing) -> dict[str, pl.Expr]:
    """Return the filters on the number of rows of a user, by setting.

    >>> frame = pl.DataFrame({"user": [7, 8, 7, 9, 9, 9]})
    >>> limits = filters_of_users(Preprocessing(min_user_interactions=2, max_user_interactions=2))
    >>> frame.filter(*limits.values())["user"].to_list()
    [7, 7]
    """
    n, filters = pl.len().over("user"), {}
    if settings.min_user_interactions > 1:
        filters["min_user_interactions"] = n >= settings.min_user_interactions
    if settings.max_user_interactions:
        filters["max_user_interactions"] = n <= settings.max_user_interactions
    return filters


@dataclass
class RawRows:
    """All usable rows on the disk: `known` for users who have a dense id already, `new` for new users.

    `known_counts` [known users] are the rows of known users in the time that the dataset to extend covers.
    """

    known: SortedRuns
    new: SortedRuns
    items: FirstItemRows = field(default_factory=FirstItemRows)
    known_counts: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

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
    most a tenth of all rows; and if that of rows without a user is above `max_guests`. All rows are read to count them,
    unless no row of the first part is usable.
    """
    raw = RawRows(SortedRuns(folder / "known", run_bytes=run_bytes), SortedRuns(folder / "new", run_bytes=run_bytes))
    raw.known_counts = np.zeros(len(known.users) if known else 0, np.int64)
    bad, before = source.bad, 0
    with progress.stage("read", source.n_bytes) as stage:
        for frame, done in source:
            if bad.total and 0 < before < done and not len(raw) + len(frame):
                raise DataError(f"{bad.shown[0]}; none of the first {bad.total:,} rows can be used: correct them")
            before = done
            raw.items.add(frame.select("item"))
            known_rows, new_rows = _by_known(frame, known)
            if known and len(known_rows):  # count those in the time that the dataset to extend covers
                has_times = known.last_time is not None and "time" in known_rows.columns
                old = known_rows.filter(pl.col("time") <= known.last_time) if has_times else known_rows
                raw.known_counts += np.bincount(old["user"].to_numpy(), minlength=len(known.users))
            raw.known.add(known_rows)
            raw.new.add(new_rows)
            stage.advance(len(frame), done)
    share, n_rows = settings.max_bad_rows, len(raw) + bad.total
    n_all = n_rows + bad.guests
    if bad.guests > settings.max_guests * n_all:
        raise DataError(
            f"{bad.guests:,} of {n_all:,} rows ({bad.guests / n_all:.0%}) have no user, more than "
            f"preprocessing.max_guests = {settings.max_guests:g} of all: name another column with --user=COLUMN (a "
            "session or an order can be the user), or remove these rows with --preprocessing.max_guests=1"
        )
    if bad.total > max(share * n_rows, min(FEW_BAD_ROWS, n_rows / 10) if share else 0):
        n = f"{bad.total:,} of {n_rows:,} rows" if bad.total > 1 else "a row"
        without = next(
            (f", read the file without {field}s (--{field}=)" for field in ("rating", "time") if _fails(bad, field)), ""
        )
        raise DataError(
            f"{bad.shown[0]}; {n} cannot be used, more than preprocessing.max_bad_rows = {share:g} of all: correct or "
            f"remove these rows{without}, or allow more"
        )
    return raw


def _fails(bad: BadRows, field: str) -> bool:
    """Return whether most bad rows are unusable only because of a `field` that a table need not have."""
    return 2 * sum(n for kind, n in bad.counts.items() if kind.startswith(f"{field} ")) > bad.total


def compare_with_known(raw: RawRows, known: ExistingIds, data: Data, progress: Progress) -> None:
    """Warn if most items of the dataset to extend have no row.

    Raises `DataError` if most of its users have fewer than half of their rows in the time that it covers.
    """
    items = known.items.filter(pl.col("count") > 0)["original"]
    old, new = same_type(items, raw.items.rows()["item"])
    n_found = int(old.is_in(new.implode()).sum())
    if n_found < MOST_LOST * len(old):
        n = f"only {n_found:,}" if n_found else "none"
        progress.warn(
            f"data.extends: {n} of its {len(old):,} items have rows here; are the ids written in another way?"
        )
    counts = known.users["count"].to_numpy()
    n_users = int((counts > 0).sum())
    n_lost = int((raw.known_counts < MOST_LOST * counts).sum())
    if n_lost <= MOST_LOST * n_users:
        return
    what = f"{n_lost:,} of its {n_users:,} users have in {data.path} fewer than half of the rows that they had"
    if not raw.known.n_rows:
        what = f"none of its {n_users:,} users has a row in {data.path}; are the ids written in another way?"
    if not data.accept_lost_rows:
        raise DataError(
            f"data.extends = {data.extends}: {what}; histories would be lost: give the old rows and the new ones "
            "together, as in --data.path='day*.csv', or accept it with --data.accept_lost_rows=true"
        )
    progress.warn(f"data.extends: {what}")


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


@dataclass
class OrderedRows:
    """The sorted rows. Items are codes, indices into the sorted `items`; `counts` is the number of rows per code.

    The first `n_known` parts belong to users with dense ids. `dropped`: number of dropped rows by setting.
    """

    parts: Parts
    items: pl.Series
    counts: Int64s
    n_known: int = 0
    n_rows_read: int = 0
    n_users_read: int = 0
    n_items_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def order_rows(
    raw: RawRows, settings: Preprocessing, order: Mapping[str, Any], *, folder: Path, progress: Progress,
    also: Iterable[pl.Series] = (), known: pl.Series | None = None,
) -> OrderedRows:  # fmt: skip
    """Return the rows that pass the filters, by user and time, or without times in the `order` of the source.

    `also`: items that get a code even without rows. `known`: the original ids of known users by their dense ids. Raises
    `DataError` if a setting needs times, and the rows have none.
    """
    schema = raw.known.schema | raw.new.schema
    needs_times = {
        "split": settings.split in ("time", "leave_last_basket"),
        "hide_before_target": settings.hide_before_target != "nothing",
        "ties": settings.ties == "shuffle" and "order" not in schema,
    }
    for name in needs_times:
        if needs_times[name] and "time" not in schema:
            raise DataError(
                f'preprocessing.{name} = "{getattr(settings, name)}": the source has no times; name their column with '
                "--time=COLUMN, or remove this setting"
            )
    n_items_read = len(raw.items.rows())
    for items in also:
        raw.items.add(pl.DataFrame({"item": items}))
    originals = raw.items.rows()["item"].sort()
    codes = pl.DataFrame([originals.alias("original"), pl.Series("code", np.arange(len(originals)), dtype=pl.Int32)])
    counts = np.zeros(len(originals), np.int64)
    ordered = OrderedRows(Parts(folder), originals, counts, n_rows_read=len(raw), n_items_read=n_items_read)
    prints = fingerprints(originals) if settings.ties == "shuffle" else None

    with progress.stage("order", len(raw)) as stage:
        for runs in (raw.known, raw.new):
            for frame in runs.partitions():
                stage.advance(len(frame))
                ordered.n_users_read += frame["user"].n_unique()
                rows = apply(filters_by_row(settings, frame.columns), frame, ordered.dropped)
                coded = with_codes(rows.drop("is_read", strict=False), codes)
                if prints is not None:
                    users = coded["user"]
                    ids = users if known is None or runs is raw.new else known.gather(users).alias("user")
                    coded = shuffled(coded, ids, prints, seed=settings.seed)
                coded = in_time_order(coded, newest_first=order["newest_first"] and prints is None)
                kept = apply(filters_in_order(settings), coded, ordered.dropped)
                kept = with_numbers(kept, has_fractions="fraction" in schema)
                ordered.counts += np.bincount(kept["item"].to_numpy(), minlength=len(originals))
                ordered.parts.add(kept)
            if runs is raw.known:
                ordered.n_known = len(ordered.parts)
            runs.remove()
    return ordered


def limit_rows(ordered: OrderedRows, settings: Preprocessing, *, progress: Progress) -> None:
    """Drop rare items, then users with too few or too many rows; repeat until both limits hold.

    Raises `DataError` if no row is left.
    """
    least, n_rounds = settings.min_item_interactions, 0
    is_rare = least > 1
    while is_rare:
        n_rounds += 1
        before, ordered.counts = ordered.counts, np.zeros_like(ordered.counts)
        is_frequent = pl.lit(pl.Series(before >= least)).gather(pl.col("item"))
        filters = {"min_item_interactions": is_frequent, **filters_of_users(settings)}
        with progress.stage(f"limits, round {n_rounds}", int(before.sum())) as stage:
            for index, frame in enumerate(ordered.parts.read()):
                kept = apply(filters, frame, ordered.dropped)
                if len(kept) < len(frame):
                    ordered.parts.replace(index, kept)
                ordered.counts += np.bincount(kept["item"].to_numpy(), minlength=len(before))
                stage.advance(len(frame))
        is_rare = bool(((ordered.counts > 0) & (ordered.counts < least)).any())
    if not ordered.counts.any():
        chosen = settings.model_dump(exclude_defaults=True)
        changed = [f"{name} = {chosen[name]}" for name in FILTERS if name in chosen]
        raise DataError(
            f"0 of {ordered.n_rows_read} rows and {ordered.n_users_read} users pass [preprocessing] "
            f"{', '.join(changed) or 'as it is'}; relax these filters"
        )
