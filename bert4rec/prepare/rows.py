"""Filter and sort the rows of a log by ranges of users, and apply the limits of the settings."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bert4rec.config.tables import Preprocessing, instant
from bert4rec.prepare.catalogue import Catalogue
from bert4rec.prepare.ordering import in_time_order
from bert4rec.prepare.raw_rows import RawRows
from bert4rec.prepare.runs import (
    KNOWN_USERS,
    NEW_USERS,
    ROWS_PER_RANGE,
    Extended,
    bounds_of,
    read_batch,
    read_known_once,
    shuffle,
)
from bert4rec.prepare.shared_work import fetched
from bert4rec.prepare.stages import Done, Stages, saved, whole_file
from bert4rec.prepare.ties import shuffled, with_numbers
from bert4rec.runtime.arrays import Int64s, load_array
from bert4rec.runtime.errors import DataError

PART, ROWS_BY_ITEM = "part.arrow", "counts.arrow"  # of a range of users: the rows, and the rows of each item
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


class Part(NamedTuple):
    """The sorted rows of a range of users: the file, and the numbers of its rows and users.

    `is_known`: its users have their dense ids.
    """

    path: Path
    n_rows: int
    n_users: int
    is_known: bool


@dataclass
class OrderedRows:
    """The sorted rows in `parts`. Items are codes of the `catalogue`; `counts` is the number of rows per code.

    `dropped`: number of dropped rows by setting. `columns` of the rows.
    """

    parts: list[Part]
    catalogue: Catalogue
    counts: Int64s
    columns: list[str]
    n_rows_read: int = 0
    n_users_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def take(self, done: Sequence[Done], groups: Sequence[bool]) -> None:
        """Replace the parts by those that tasks have `done`."""
        self.parts, self.counts = [], np.zeros_like(self.counts)
        for (folder, result), is_known in zip(done, groups, strict=True):
            self.parts.append(Part(folder / PART, result["kept"], result["users"], is_known))
            items, counts = pl.read_ipc(folder / ROWS_BY_ITEM)
            self.counts[items.to_numpy()] += counts.to_numpy()
            self.dropped.update(result["dropped"])


def order_rows(
    raw: RawRows, catalogue: Catalogue, settings: Preprocessing, order: Mapping[str, Any], stages: Stages, *,
    extends: Extended | None = None,
) -> OrderedRows:  # fmt: skip
    """Return the rows that pass the filters, by user and time, or without times in the `order` of the source.

    `extends`: the dataset to extend. Raises `DataError` if a setting needs times, and the rows have none.
    """
    schema = raw.columns
    _refuse_missing_times(settings, schema)
    prints = None
    if settings.ties == "shuffle":
        prints = saved(stages.work / "prints.npy", pl.concat(catalogue.ranges("print"))["print"].to_numpy())
    arguments, sizes, groups = [], [], []
    codes = [
        (path.with_name("codes.arrow"), first) for path, first in zip(catalogue.files, catalogue.firsts, strict=False)
    ]
    for group in (KNOWN_USERS, NEW_USERS):
        runs = [(number, *run) for number, run in enumerate(raw.runs) if group in run[2]]
        if not runs:
            continue
        samples = [(about[group]["sample"], about[group]["n"]) for *_, about in runs]
        firsts = bounds_of(samples, raw.schema[group]["user"], ROWS_PER_RANGE)
        bounds = stages.work / f"bounds-{group}.arrow"
        with whole_file(bounds) as unfinished:
            pl.DataFrame({"user": pl.Series(firsts, dtype=raw.schema[group]["user"])}).write_ipc(unfinished)
        shuffled = stages.run(
            f"shuffle-{group}", shuffle,
            [(folder / f"{group}-{part:03d}.arrow", number, codes, raw.schema[group], bounds, raw.kinds[number])
             for number, folder, part, _ in runs],
            sizes=[about[group]["n"] for *_, about in runs], title="shuffle",
        )  # fmt: skip
        files = [folder / "rows.arrow" for folder, _ in shuffled]
        known = extends if group == KNOWN_USERS else None
        for part in range(len(firsts) + 1):
            arguments.append((files, part, settings, dict(order), prints, known, "fraction" in schema))
            sizes.append(raw.n_rows(group) // (len(firsts) + 1))
            groups.append(group == KNOWN_USERS)
    stages.remove("read", "new-*.arrow", "known-*.arrow", "items-*.parquet")
    done = stages.run("order", order_range, arguments, sizes=sizes, title="order", reads=[ROWS_BY_ITEM])
    stages.remove("shuffle-*", "rows.arrow")
    n_users = sum(result["users_read"] for _, result in done)
    counts, columns = np.zeros(catalogue.firsts[-1], np.int64), done[0].result["columns"]
    ordered = OrderedRows([], catalogue, counts, columns, len(raw), n_users)
    ordered.take(done, groups)
    return ordered


def _refuse_missing_times(settings: Preprocessing, columns: Collection[str]) -> None:
    """Raise `DataError` if a setting needs times, and the rows have none."""
    needs_times = {
        "split": settings.split in ("time", "leave_last_basket"),
        "hide_before_target": settings.hide_before_target != "nothing",
        "ties": settings.ties == "shuffle" and "order" not in columns,
    }
    for name in needs_times:
        if needs_times[name] and "time" not in columns:
            raise DataError(
                f'preprocessing.{name} = "{getattr(settings, name)}": the source has no times; name their column with '
                "--time=COLUMN, or remove this setting"
            )


def order_range(
    folder: Path, files: Sequence[Path], part: int, settings: Preprocessing, order: Mapping[str, Any],
    prints: Path | None, extends: Extended | None, has_fractions: bool,
) -> dict[str, Any]:  # fmt: skip
    """Write the rows of a range of users, the batch with the number `part` of each of `files`, filtered and in order.

    `prints`: the file with the fingerprints of the items if tied rows are shuffled; `extends`: the dataset that has the
    original ids of these users. With `has_fractions`, any row of the log has a fraction of a second.
    """
    rows = pl.concat([read_batch(path, part) for path in files])
    n_read, n_users, dropped = len(rows), rows["user"].n_unique(), Counter[str]()
    rows = apply(filters_by_row(settings, rows.columns), rows, dropped).drop("is_read", strict=False)
    if prints is not None:
        users = rows["user"]
        ids = (
            read_known_once(fetched(extends[0]), extends[1]).users["original"].gather(users).alias("user")
            if extends
            else users
        )
        rows = shuffled(rows, ids, pl.Series(load_array(fetched(prints))), seed=settings.seed)
    rows = in_time_order(rows, newest_first=order["newest_first"] and prints is None)
    kept = apply(filters_in_order(settings), rows, dropped)
    kept = with_numbers(kept, has_fractions=has_fractions)
    return {"rows": n_read, "users_read": n_users, **_write_kept(folder, kept, dropped)}


def _write_kept(folder: Path, kept: pl.DataFrame, dropped: Counter[str]) -> dict[str, Any]:
    """Write a part and how many rows of each item it has; return the numbers of rows and users, and those `dropped`."""
    kept.write_ipc(folder / PART, compression="lz4")
    kept["item"].value_counts(name="n").sort("item").write_ipc(folder / ROWS_BY_ITEM, compression="lz4")
    return {"kept": len(kept), "columns": kept.columns, "users": kept["user"].n_unique(), "dropped": dict(dropped)}


def limit_part(folder: Path, part: Path, frequent: Path, settings: Preprocessing) -> dict[str, Any]:
    """Write the rows of a part whose items are `frequent`, a file with a Boolean by code, and whose users stay."""
    rows, dropped = pl.read_ipc(fetched(part)), Counter[str]()
    is_frequent = pl.Series(load_array(fetched(frequent), is_mapped=True)[rows["item"].to_numpy()])
    filters = {"min_item_interactions": pl.lit(is_frequent), **filters_of_users(settings)}
    kept = apply(filters, rows, dropped)
    return {"rows": len(rows), **_write_kept(folder, kept, dropped)}


def limit_rows(ordered: OrderedRows, settings: Preprocessing, stages: Stages) -> None:
    """Drop rare items, then users with too few or too many rows; repeat until both limits hold.

    Raises `DataError` if no row is left.
    """
    least, n_rounds = settings.min_item_interactions, 0
    is_rare = least > 1
    while is_rare:
        n_rounds += 1
        frequent = saved(stages.work / f"frequent-{n_rounds:03d}.npy", ordered.counts >= least)
        arguments = [(part.path, frequent, settings) for part in ordered.parts]
        sizes, groups = [part.n_rows for part in ordered.parts], [part.is_known for part in ordered.parts]
        stage, title = f"limits-{n_rounds:03d}", f"limits, round {n_rounds}"
        done = stages.run(stage, limit_part, arguments, sizes=sizes, title=title, reads=[ROWS_BY_ITEM])
        stages.remove("order" if n_rounds == 1 else f"limits-{n_rounds - 1:03d}", PART)
        ordered.take(done, groups)
        is_rare = bool(((ordered.counts > 0) & (ordered.counts < least)).any())
    if not ordered.counts.any():
        chosen = settings.model_dump(exclude_defaults=True)
        changed = [f"{name} = {chosen[name]}" for name in FILTERS if name in chosen]
        raise DataError(
            f"0 of {ordered.n_rows_read} rows and {ordered.n_users_read} users pass [preprocessing] "
            f"{', '.join(changed) or 'as it is'}; relax these filters"
        )
