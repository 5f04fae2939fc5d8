"""Write the tables of users and items, in files of a fixed size, sorted by original id."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from bert4rec.dataset.format import (
    ITEMS,
    ROWS_PER_FILE,
    ROWS_PER_GROUP,
    TRAIN_COUNTS,
    USERS,
)
from bert4rec.prepare.ordering import ExistingIds, chunked
from bert4rec.prepare.rows import OrderedRows
from bert4rec.runtime.arrays import Int32s, Int64s

FILE_GROUP_ROWS = 1 << 16


def write_table(path: Path, frames: Iterable[pl.DataFrame]) -> int:
    """Write a Parquet file in row groups of a fixed size, from frames of any size, and return its number of rows."""
    writer, n_rows = None, 0
    for frame in chunked(frames, FILE_GROUP_ROWS):
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=FILE_GROUP_ROWS)
        n_rows += len(frame)
    if writer:
        writer.close()
    return n_rows


def write_ids(folder: Path, segments: Iterable[Iterable[pl.DataFrame]], *, first: int = 0) -> list[int]:
    """Write the rows of a table of users or items, in files of a fixed size, and return the sizes of the segments.

    `segments` are the rows of each segment from row `first` on, in frames of any size, sorted by `original`; segments
    without rows are left out.
    """
    folder.mkdir(exist_ok=True)
    sizes: list[int] = []
    for frames in segments:
        n_rows = 0
        for rows in chunked(frames, ROWS_PER_FILE):
            table = rows.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
            path = folder / f"part-{first + sum(sizes) + n_rows:010d}.parquet"
            # Ids are all different: a dictionary makes files larger and slower to read, zstd halves them.
            pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd", use_dictionary=False)
            n_rows += len(rows)
        sizes += [n_rows] if n_rows else []
    return sizes


def by_segment(
    frames: Iterable[pl.DataFrame], sizes: Sequence[int], types: Sequence[pl.DataType]
) -> Iterator[Iterable[pl.DataFrame]]:
    """Yield the rows of each segment of these `sizes`, with ids of its type, and then all others; to be read in turn.

    >>> frames = [pl.DataFrame({"original": ["1", "2", "3"]}), pl.DataFrame({"original": ["a"]})]
    >>> [[frame["original"].to_list() for frame in rows] for rows in by_segment(frames, [2], [pl.Int64()])]
    [[[1, 2]], [['3'], ['a']]]
    """
    waiting = iter(frames)

    def first_rows(n: int, dtype: pl.DataType) -> Iterator[pl.DataFrame]:
        nonlocal waiting
        while n:
            frame = next(waiting)
            yield frame[:n].cast({"original": dtype})
            waiting, n = (waiting, n - len(frame)) if len(frame) <= n else (itertools.chain([frame[n:]], waiting), 0)

    for n, dtype in zip(sizes, types, strict=True):
        yield first_rows(n, dtype)
    yield waiting


def write_users(folder: Path, users: Iterable[pl.DataFrame], known: ExistingIds | None) -> list[int]:
    """Write the table of the `users`, given by number, the `known` ones first; return the sizes of its segments."""
    by_segments = by_segment(users, known.segments[USERS], known.id_types[USERS]) if known else [users]
    return write_ids(folder / USERS, by_segments)


def write_items(
    folder: Path, segments: Iterable[Iterable[pl.DataFrame]], train_counts: Int64s, known: ExistingIds | None, *,
    seed: int,
) -> list[list[int]]:  # fmt: skip
    """Write the table of the items, given by `item_rows`, and their training positions as an array that can be mapped.

    Returns the segments with their seeds: those of the `known` items, and one of all new items, in the order by `seed`.
    """
    sizes, old = write_ids(folder / ITEMS, segments), [*known.segments[ITEMS]] if known else []
    np.save(folder / TRAIN_COUNTS, train_counts.astype(np.int32))
    return [*old, *([n, seed] for n in sizes[len(old) :])]


def item_rows(
    ordered: OrderedRows, ids: Int32s, train_counts: Int64s, known: ExistingIds | None, codes: Int64s
) -> Iterator[Iterator[pl.DataFrame]]:
    """Yield for each segment of the table of items its rows: `item`, `original`, `count`, `train_count`.

    `ids`: the dense id of each code; `train_counts`: of each item; `known`: the dataset to extend, and the `codes` of
    its items.
    """

    def rows(originals: pl.Series, codes: Int64s) -> pl.DataFrame:
        items, counts = ids[codes], ordered.counts[codes]
        return pl.DataFrame({"item": items, "original": originals, "count": counts, "train_count": train_counts[items]})

    def new() -> Iterator[pl.DataFrame]:
        catalogue, n_known = ordered.catalogue, len(known.items) if known else 0
        for first, frame in zip(catalogue.firsts, catalogue.ranges("item"), strict=False):
            places = np.flatnonzero(ids[first : first + len(frame)] >= n_known)
            yield rows(frame["item"].gather(places), first + places)

    if known:
        originals, sizes = known.items["original"], [n for n, _ in known.segments[ITEMS]]
        for dtype, (first, stop) in zip(known.id_types[ITEMS], pairwise([0, *accumulate(sizes)]), strict=True):
            yield iter([rows(originals[first:stop].cast(dtype), codes[first:stop])])
    yield new()
