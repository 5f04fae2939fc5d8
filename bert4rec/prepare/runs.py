"""Read pieces of the input into runs of rows, number their items, and shuffle the runs by ranges of users.

In a run an item is a number within that run, so that its original id is written once. All items get codes by ranges of
original ids. Then each run gets the codes, is sorted by user and cut at the bounds of the ranges of users: the rows of
a range are one record batch of each run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.prepare.ordering import ExistingIds, read_known, same_type
from bert4rec.prepare.shared_work import fetched, is_shared, open_rows
from bert4rec.prepare.ties import fingerprints
from bert4rec.runtime.arrays import Array
from bert4rec.runtime.errors import DataError
from bert4rec.sources.attributes import ItemValues
from bert4rec.sources.interactions import Interactions, Piece
from bert4rec.sources.synthetic import GeneratedSource

ROWS_PER_RUN = 1 << 21
ROWS_PER_RANGE = 1 << 21  # of a range of users
ITEMS_PER_RANGE = 1 << 22  # of a range of items, counted once for each run that has them
SAMPLES_PER_RUN = 1 << 8  # ids that tell where even ranges begin
ENTRY_GROUP = 1 << 14  # items of a row group: the least that a range reads from each run
NEW_USERS, KNOWN_USERS = GROUPS = ("new", "known")  # rows of new users, and of those that the dataset to extend has
Schema = dict[str, pl.DataType]
Extended = tuple[Path, str]  # the folder and the fingerprint of the dataset to extend


@dataclass
class Pending:
    """The rows that were read and are not in a run yet, of both groups."""

    frames: dict[str, list[pl.DataFrame]] = field(default_factory=lambda: {group: [] for group in GROUPS})
    n_rows: int = 0

    def add(self, group: str, frame: pl.DataFrame) -> None:
        """Append rows."""
        if len(frame):
            self.frames[group].append(frame)
            self.n_rows += len(frame)


@lru_cache(1)
def read_known_once(folder: Path, fingerprint: str) -> ExistingIds:
    """Return the ids of the dataset at `folder`, which a process reads once. Raises `DataError` for another one."""
    known = read_known(folder)
    if known.fingerprints[0] != fingerprint:
        raise DataError(f"{folder}: no longer holds the dataset that was opened; start again")
    return known


def read_pieces(
    folder: Path, source: Interactions | GeneratedSource, pieces: Sequence[Piece], extends: Extended | None,
    is_first: bool,
) -> dict[str, Any]:  # fmt: skip
    """Write the usable rows of `pieces` of the `source` to runs, and return what is known of them.

    `extends`: the dataset to extend. Raises `DataError` if no row of the first part of the `is_first` task is usable.
    """
    if isinstance(source, Interactions):
        for path in {piece.path for piece in pieces} or source.files:
            fetched(path)
        source = source.again(pieces=tuple(pieces), others=ItemValues(source.others.columns))
    known = read_known_once(fetched(extends[0]), extends[1]) if extends else None
    pending, runs, covered = Pending(), list[dict[str, Any]](), list[pl.DataFrame]()
    n_rows = before = 0
    for frame, done in source:
        if is_first and source.bad.total and 0 < before < done and not n_rows + len(frame):
            shown, n = source.bad.shown[0], source.bad.total
            raise DataError(f"{shown}; none of the first {n:,} rows can be used: correct them")
        before = done
        n_rows += len(frame)
        known_rows, new_rows = _by_known(frame, known)
        if known and len(known_rows):  # count those in the time that the dataset to extend covers
            has_times = known.last_time is not None and "time" in known_rows.columns
            old = known_rows.filter(pl.col("time") <= known.last_time) if has_times else known_rows
            covered.append(old["user"].value_counts(name="n"))
        pending.add(KNOWN_USERS, known_rows)
        pending.add(NEW_USERS, new_rows)
        if pending.n_rows >= ROWS_PER_RUN:
            runs.append(write_run(folder, len(runs), pending.frames))
            pending = Pending()
    if pending.n_rows:
        runs.append(write_run(folder, len(runs), pending.frames))
    if covered:
        counts = pl.concat(covered).group_by("user").agg(pl.col("n").sum())
        counts.sort("user").write_ipc(folder / "covered.arrow")
    return {"rows": n_rows, "runs": runs, **_about_source(folder, source)}


def _about_source(folder: Path, source: Interactions | GeneratedSource) -> dict[str, Any]:
    """Return what reading has found beside the rows, and write titles and other values of the items."""
    bad = source.bad
    found = {"bad": dict(bad.counts), "shown": bad.shown, "guests": bad.guests}
    if not isinstance(source, Interactions):
        return found
    for name, values in (("titles", source.titles.rows()), ("others", source.others.rows())):
        if len(values):
            values.sort("item").write_ipc(folder / f"{name}.arrow")
    words = {"lines": source.words.n_lines, "first_long": source.words.first_long}
    return found | {"kinds": source.kinds, "unordered": dict(source.n_unordered), **words}


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


def write_run(folder: Path, number: int, frames: Mapping[str, list[pl.DataFrame]]) -> dict[str, Any]:
    """Write the rows of both groups, with items by number, and the items; return how many of each, and a sample.

    A file without rows has the schema of those rows: it stays when they are deleted.
    """
    rows = {group: together(parts) for group, parts in frames.items() if parts}
    items = together([frame.select("item") for frame in rows.values()])["item"].unique().sort()
    entries = pl.DataFrame([items]).with_row_index("number").cast({"number": pl.Int32})
    entries.write_parquet(folder / f"items-{number:03d}.parquet", compression="lz4", row_group_size=ENTRY_GROUP)
    about = {"items": {"n": len(items), "sample": _sample(items), "type": str(items.dtype)}}
    for group, frame in rows.items():
        about[group] = {"n": len(frame), "sample": _sample(frame["user"])}
        frame.clear().write_ipc(folder / f"{group}-{number:03d}.schema")
        item, _ = same_type(frame["item"], items)
        numbered = frame.with_columns(item).join(entries, on="item", how="left", maintain_order="left")
        numbered = numbered.with_columns(item="number").drop("number")
        numbered.write_ipc(folder / f"{group}-{number:03d}.arrow", compression="lz4")
    return about


def _sample(ids: pl.Series) -> list[Any]:
    return ids.gather_every(max(1, len(ids) // SAMPLES_PER_RUN)).to_list()


def together(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of `frames`; ids become text if some are, and a column that a frame lacks is 0 there."""
    schema = merged([dict(frame.schema) for frame in frames])
    return pl.concat([with_columns(frame, schema) for frame in frames])


def merged(schemas: Sequence[Mapping[str, pl.DataType]]) -> Schema:
    """Return the columns of all `schemas`; one that is text in any of them is text."""
    schema: Schema = {}
    for other in schemas:
        texts = {name: pl.String() for name in ("user", "item") if pl.String in (schema.get(name), other.get(name))}
        schema = {**schema, **other, **texts}
    return schema


def with_columns(frame: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the columns of `schema`; those that `frame` does not have are 0."""
    missing = [pl.lit(0, dtype).alias(name) for name, dtype in schema.items() if name not in frame.columns]
    return frame.with_columns(missing).select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def bounds_of(samples: Sequence[tuple[Sequence[Any], int]], dtype: pl.DataType, size: int) -> list[Any]:
    """Return the first id of each range but the first, for ranges of about `size` rows.

    `samples`: ids of each run, and the number of its rows. `dtype` of the ids of all.

    >>> bounds_of([([1, 3, 5, 7], 8), ([2, 4], 8)], pl.Int64(), 8)
    [3]
    """
    ids = pl.concat([pl.Series("id", [*run]).cast(dtype) for run, _ in samples if len(run)])
    weights = np.concatenate([np.full(len(run), n / len(run)) for run, n in samples if len(run)])
    order = ids.arg_sort()
    shares = np.cumsum(weights[order.to_numpy()])
    n = -(-round(shares[-1]) // size)
    places = np.searchsorted(shares, shares[-1] * np.arange(1, n) / n)
    return ids.gather(order.gather(places)).unique(maintain_order=True).to_list()


def number_items(
    folder: Path, entries: Sequence[Path], n_read: int, file: Path | None, dtype: pl.DataType, limits: tuple[Any, Any],
    with_prints: bool,
) -> dict[str, Any]:  # fmt: skip
    """Write the distinct items within `limits` (None = no limit) in order, and their numbers for each run.

    `entries` are the items of each run; those from `n_read` on are no items of rows, and one of them may be the items
    of a `file`. `with_prints`: also write the fingerprints of the items.
    """
    low, high = limits
    item = pl.col("item").cast(dtype)
    inside = ([item >= low] if low is not None else []) + ([item < high] if high is not None else [])
    parts = [_entries(path, dtype, limits).with_columns(item).filter(*inside).collect() for path in entries]
    ends, found = np.cumsum([0, *map(len, parts)]), pl.concat(parts)
    places = zip(entries, parts, strict=True)
    in_file = pl.concat(pl.repeat(path == file, len(part), dtype=pl.Boolean, eager=True) for path, part in places)
    is_read = pl.Series(np.arange(len(found)) < ends[n_read])
    flags = found.select("item", is_read=is_read, in_file=in_file)
    items = flags.group_by("item").agg(pl.col("is_read", "in_file").any()).sort("item")
    codes = items.select("item", code=pl.int_range(pl.len(), dtype=pl.Int32))
    coded = found.join(codes, on="item", how="left", maintain_order="left").select("number", "code")
    write_batches(folder / "codes.arrow", coded, ends)
    prints = [fingerprints(items["item"]).alias("print")] if with_prints else []
    items.with_columns(prints).write_ipc(folder / "items.arrow", compression="lz4")
    n_both = int((items["is_read"] & items["in_file"]).sum())
    return {"rows": len(found), "items": len(items), "read": int(items["is_read"].sum()), "both": n_both}


def _entries(path: Path, dtype: pl.DataType, limits: tuple[Any, Any]) -> pl.LazyFrame:
    """Return the items of a run, at least those within `limits`; of a file in a bucket only row groups with some."""
    if not is_shared(path):
        return pl.scan_parquet(path, glob=False)
    low, high = limits
    with open_rows(path) as file, pq.ParquetFile(file) as table:
        column, groups = table.schema_arrow.names.index("item"), list[int]()
        is_same = table.schema_arrow.field("item").type == pl.Series([], dtype=dtype).to_arrow().type
        for number in range(table.num_row_groups):
            known = table.metadata.row_group(number).column(column).statistics if is_same else None
            is_before = known is not None and known.has_min_max and low is not None and known.max < low
            is_after = known is not None and known.has_min_max and high is not None and known.min >= high
            groups += [] if is_before or is_after else [number]
        return pl.DataFrame(pl.from_arrow(table.read_row_groups(groups))).lazy()


def shuffle(
    folder: Path, rows: Path, run: int, codes: Sequence[tuple[Path, int]], schema: Schema, bounds: Path,
    kinds: Sequence[int] | None,
) -> dict[str, Any]:  # fmt: skip
    """Write the rows of a `run` with the codes of their items, sorted by user: a record batch for each range of users.

    `codes`: the file with the numbers of each range of items, and the code of its first item. `schema`: of the rows of
    all runs. `bounds`: the file with the first user of each range but the first. `kinds`: the number of each kind of
    event of this run.
    """
    frame = with_columns(pl.read_ipc(fetched(rows)), {**schema, "item": pl.Int32()})
    batches = [(read_batch(path, run), first) for path, first in codes]
    by_number = np.empty(sum(len(batch) for batch, _ in batches), np.int32)
    for batch, first in batches:
        by_number[batch["number"].to_numpy()] = first + batch["code"].to_numpy()
    frame = frame.with_columns(pl.Series("item", by_number[frame["item"].to_numpy()]))
    if kinds is not None:
        frame = frame.with_columns(pl.col("event").replace_strict(range(len(kinds)), kinds, return_dtype=pl.Int16))
    frame = frame.sort("user", maintain_order=True)
    firsts = pl.read_ipc(fetched(bounds)).to_series()
    ends = frame["user"].search_sorted(firsts.cast(frame["user"].dtype), side="left").to_list() if len(firsts) else []
    write_batches(folder / "rows.arrow", frame, np.array([0, *ends, len(frame)]))
    return {"rows": len(frame)}


def write_batches(path: Path, frame: pl.DataFrame, ends: Array) -> None:
    """Write the rows between each two of `ends` as a record batch."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            part = table.slice(first, last - first).combine_chunks()
            writer.write_batch(next(iter(part.to_batches()), pa.RecordBatch.from_pylist([], table.schema)))


def read_batch(path: Path, number: int) -> pl.DataFrame:
    """Return one record batch of a file of `write_batches`."""
    with open_rows(path) as file, pa.ipc.open_file(file) as reader:
        return pl.DataFrame(pl.from_arrow(reader.get_batch(number)))
