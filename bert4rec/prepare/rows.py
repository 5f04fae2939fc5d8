"""Read, filter and sort the rows of a source, and apply the limits of the settings."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bert4rec.config.tables import Data, Preprocessing, instant
from bert4rec.prepare.ordering import ExistingIds, in_time_order
from bert4rec.prepare.runs import (
    GROUPS,
    ITEMS_PER_RANGE,
    KNOWN_USERS,
    NEW_USERS,
    ROWS_PER_RANGE,
    Schema,
    bounds_of,
    merged,
    number_items,
    read_batch,
    read_known_once,
    read_pieces,
    shuffle,
)
from bert4rec.prepare.stages import Done, Stages, saved, whole_file
from bert4rec.prepare.ties import shuffled, with_numbers
from bert4rec.runtime.arrays import Bools, Int64s
from bert4rec.runtime.errors import DataError
from bert4rec.sources.columns import with_kinds
from bert4rec.sources.interactions import Interactions, Piece
from bert4rec.sources.progress import BadRows, Progress
from bert4rec.sources.synthetic import GeneratedSource

ITEM_COUNTS = ("items", "read", "both")  # of a range of items
PART, ROWS_BY_ITEM = "part.arrow", "counts.arrow"  # of a range of users: the rows, and the rows of each item
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
    """All usable rows in runs on the disk, in the order of the input.

    `runs`: the folder, the number within it, and the counts and samples of each; `kinds`: the numbers of the kinds of
    events of each. `schema` of the rows by group of users, and `item_type`. `known_counts` [known users] are the rows
    of known users in the time that the dataset to extend covers.
    """

    runs: list[tuple[Path, int, Mapping[str, Any]]]
    kinds: list[list[int] | None]
    schema: dict[str, Schema]
    item_type: pl.DataType
    known_counts: Int64s

    def __len__(self) -> int:
        return sum(self.n_rows(group) for group in GROUPS)

    def n_rows(self, group: str) -> int:
        """Return the number of rows of a group of users."""
        return sum(about[group]["n"] for _, _, about in self.runs if group in about)

    @property
    def columns(self) -> Schema:
        """Return the columns of the rows of both groups."""
        return {**self.schema[KNOWN_USERS], **self.schema[NEW_USERS]}


def read_rows(
    source: Interactions | GeneratedSource, settings: Preprocessing, known: ExistingIds | None, stages: Stages,
    extends: Path | None = None,
) -> RawRows:  # fmt: skip
    """Return all usable rows of `source`; `known`: ids of the dataset to extend at `extends`.

    Raises `DataError` if the share of bad rows is above `max_bad_rows`, unless there are at most `FEW_BAD_ROWS`, and at
    most a tenth of all rows; and if that of rows without a user is above `max_guests`. All rows are read to count them,
    unless no row of the first part is usable.
    """
    here = not isinstance(source, Interactions)  # generated rows are in the memory of this process
    settled = source.settled() if isinstance(source, Interactions) else source
    pieces: Sequence[Sequence[Piece]] = source.cut() if isinstance(source, Interactions) else [()]
    sizes = [sum(piece.n_bytes for piece in some) if some else source.n_bytes for some in pieces]
    arguments = [(settled, some, extends, number == 0) for number, some in enumerate(pieces)]
    done = stages.run("read", read_pieces, arguments, sizes=sizes, title="read", here=here)
    kinds = [_take_over(source, *task) for task in done]
    raw = RawRows([], [], {}, pl.Int64(), np.zeros(len(known.users) if known else 0, np.int64))
    for (folder, result), numbers in zip(done, kinds, strict=True):
        raw.runs += [(folder, number, about) for number, about in enumerate(result["runs"])]
        raw.kinds += [numbers] * len(result["runs"])
        if (covered := folder / "covered.arrow").is_file():
            users, counts = pl.read_ipc(covered)
            raw.known_counts[users.to_numpy()] += counts.to_numpy()
    for group in GROUPS:
        paths = [folder / f"{group}-{number:03d}.schema" for folder, number, about in raw.runs if group in about]
        raw.schema[group] = merged([pl.read_ipc_schema(path) for path in paths])
    types = {about["items"]["type"] for *_, about in raw.runs}
    raw.item_type = pl.String() if "String" in types else pl.Int64()
    _refuse_bad_rows(source.bad, len(raw), settings)
    return raw


def _take_over(source: Interactions | GeneratedSource, folder: Path, result: Mapping[str, Any]) -> list[int] | None:
    """Add to `source` what a task has found; return the numbers there of its kinds of events, None without any."""
    if not isinstance(source, Interactions):
        return None
    source.bad.counts.update(result["bad"])
    source.bad.shown.extend(result["shown"][: source.bad.room])
    source.bad.guests += result["guests"]
    source.n_unordered.update(result["unordered"])
    source.words.n_lines += result["lines"]
    source.words.first_long = source.words.first_long or result["first_long"]
    for name, values in (("titles", source.titles), ("others", source.others)):
        if (path := folder / f"{name}.arrow").is_file():
            values.append(pl.read_ipc(path))
    if "event" not in source.columns:
        return None
    source.kinds[:] = with_kinds(source.kinds, result["kinds"], source.columns["event"])
    return [source.kinds.index(kind) for kind in result["kinds"]]


def _refuse_bad_rows(bad: BadRows, n_usable: int, settings: Preprocessing) -> None:
    """Raise `DataError` for too many bad rows, or rows without a user, beside `n_usable` rows."""
    share, n_rows = settings.max_bad_rows, n_usable + bad.total
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


def _fails(bad: BadRows, field: str) -> bool:
    """Return whether most bad rows are unusable only because of a `field` that a table need not have."""
    return 2 * sum(n for kind, n in bad.counts.items() if kind.startswith(f"{field} ")) > bad.total


@dataclass
class Catalogue:
    """All items of the rows, and others that are to have a code: an item's code is its rank among the original ids.

    `files`: the items of each range, in order, with `is_read` for items of rows and `in_file` for those of the file of
    items; `firsts`: the code of the first one of each, and the number of all. `n_read` items are of rows, and `n_both`
    are also in that file.
    """

    files: Sequence[Path]
    firsts: Sequence[int]
    n_read: int
    n_both: int

    def ranges(self, *columns: str) -> Iterator[pl.DataFrame]:
        """Yield columns of all items, by code."""
        for path in self.files:
            yield pl.read_ipc(path, columns=[*columns])

    def codes(self, ids: pl.Series) -> Int64s:
        """Return the codes of items with the original `ids`, all of which the catalogue has."""
        wanted, codes = pl.DataFrame({"item": ids}).with_row_index("place"), np.zeros(len(ids), np.int64)
        for first, frame in zip(self.firsts, self.ranges("item"), strict=False):
            found = frame.with_row_index("code").join(wanted.cast({"item": frame.schema["item"]}), on="item")
            codes[found["place"].to_numpy()] = first + found["code"].to_numpy()
        return codes

    @property
    def are_cold(self) -> Bools:
        """Return for each code whether the item is in the file of items alone."""
        frames = self.ranges("in_file", "is_read")
        return np.concatenate([(frame["in_file"] & ~frame["is_read"]).to_numpy() for frame in frames])

    def original(self, code: int) -> Any:
        """Return the original id of an item."""
        number = bisect_right(self.firsts, code) - 1
        return pl.read_ipc(self.files[number], columns=["item"])["item"][code - self.firsts[number]]


def compare_with_known(raw: RawRows, catalogue: Catalogue, known: ExistingIds, data: Data, progress: Progress) -> None:
    """Warn if most items of the dataset to extend have no row.

    Raises `DataError` if most of its users have fewer than half of their rows in the time that it covers.
    """
    items = known.items.filter(pl.col("count") > 0)["original"]
    is_read = pl.concat(catalogue.ranges("is_read"))["is_read"].to_numpy()
    n_found = int(is_read[catalogue.codes(items)].sum())
    if n_found < MOST_LOST * len(items):
        n = f"only {n_found:,}" if n_found else "none"
        progress.warn(
            f"data.extends: {n} of its {len(items):,} items have rows here; are the ids written in another way?"
        )
    counts = known.users["count"].to_numpy()
    n_users = int((counts > 0).sum())
    n_lost = int((raw.known_counts < MOST_LOST * counts).sum())
    if n_lost <= MOST_LOST * n_users:
        return
    what = f"{n_lost:,} of its {n_users:,} users have in {data.path} fewer than half of the rows that they had"
    if not raw.n_rows(KNOWN_USERS):
        what = f"none of its {n_users:,} users has a row in {data.path}; are the ids written in another way?"
    if not data.accept_lost_rows:
        raise DataError(
            f"data.extends = {data.extends}: {what}; histories would be lost: give the old rows and the new ones "
            "together, as in --data.path='day*.csv', or accept it with --data.accept_lost_rows=true"
        )
    progress.warn(f"data.extends: {what}")


def number_all_items(
    raw: RawRows, also: Sequence[pl.Series], file: pl.Series | None, stages: Stages, *, with_prints: bool
) -> Catalogue:
    """Return the codes of all items of the rows, and of those in `also` and in the `file` of items, without rows."""
    also = [*also, *([] if file is None else [file])]
    read = [folder / f"items-{number:03d}.parquet" for folder, number, _ in raw.runs]
    others = [stages.work / f"also-{number}.parquet" for number in range(len(also))]
    for path, items in zip(others, also, strict=True):
        frame = pl.DataFrame({"number": pl.int_range(len(items), dtype=pl.Int32, eager=True), "item": items})
        with whole_file(path) as unfinished:
            frame.write_parquet(unfinished)
    dtype = pl.String() if pl.String in (raw.item_type, *(items.dtype for items in also)) else pl.Int64()
    samples = [(about["items"]["sample"], about["items"]["n"]) for *_, about in raw.runs]
    bounds = bounds_of(samples, dtype, ITEMS_PER_RANGE)
    limits = [*pairwise([None, *bounds, None])]
    file_path = None if file is None else others[-1]
    arguments = [([*read, *others], len(read), file_path, dtype, pair, with_prints) for pair in limits]
    sizes = [sum(n for _, n in samples) // len(limits)] * len(limits)
    done = stages.run("items", number_items, arguments, sizes=sizes, title="items" if len(limits) > 1 else "")
    firsts, n_read, n_both = (np.cumsum([0, *(result[name] for _, result in done)]).tolist() for name in ITEM_COUNTS)
    return Catalogue([folder / "items.arrow" for folder, _ in done], firsts, n_read[-1], n_both[-1])


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
    extends: Path | None = None,
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
    done = stages.run("order", order_range, arguments, sizes=sizes, title="order")
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
    prints: Path | None, extends: Path | None, has_fractions: bool,
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
        ids = read_known_once(extends).users["original"].gather(users).alias("user") if extends else users
        rows = shuffled(rows, ids, pl.Series(np.load(prints)), seed=settings.seed)
    rows = in_time_order(rows, newest_first=order["newest_first"] and prints is None)
    kept = apply(filters_in_order(settings), rows, dropped)
    kept = with_numbers(kept, has_fractions=has_fractions)
    return {"rows": n_read, "users_read": n_users, **write_part(folder, kept, dropped)}


def write_part(folder: Path, kept: pl.DataFrame, dropped: Counter[str]) -> dict[str, Any]:
    """Write a part and how many rows of each item it has; return the numbers of rows and users, and those `dropped`."""
    kept.write_ipc(folder / PART, compression="lz4")
    kept["item"].value_counts(name="n").sort("item").write_ipc(folder / ROWS_BY_ITEM, compression="lz4")
    return {"kept": len(kept), "columns": kept.columns, "users": kept["user"].n_unique(), "dropped": dict(dropped)}


def limit_part(folder: Path, part: Path, frequent: Path, settings: Preprocessing) -> dict[str, Any]:
    """Write the rows of a part whose items are `frequent`, a file with a Boolean by code, and whose users stay."""
    rows, dropped = pl.read_ipc(part), Counter[str]()
    is_frequent = pl.Series(np.load(frequent, mmap_mode="r")[rows["item"].to_numpy()])
    filters = {"min_item_interactions": pl.lit(is_frequent), **filters_of_users(settings)}
    kept = apply(filters, rows, dropped)
    return {"rows": len(rows), **write_part(folder, kept, dropped)}


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
        done = stages.run(stage, limit_part, arguments, sizes=sizes, title=title)
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
