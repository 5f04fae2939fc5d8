"""Put rows in order, regroup frames, and number the items."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bert4rec.dataset.format import FORGOTTEN, ITEMS, METADATA, NO_ITEM, USERS, fingerprints_of, kinds_of
from bert4rec.dataset.id_tables import IdTable
from bert4rec.dataset.reader import read_metadata
from bert4rec.dataset.segments import Segments
from bert4rec.prepare.ties import MOMENT, PLACE
from bert4rec.runtime.arrays import Bools, Int32s, Integers
from bert4rec.runtime.errors import DataError

LIST_COLUMNS = {name: f"{name}s" for name in ("item", "time", "rating", "event", MOMENT, PLACE)}
IDS_AT_ONCE = 1 << 22  # that are permuted, which takes some ten times their size
SORTED_BY = ("order", "fraction", "time")  # the last one counts most


class Chunks:
    """Regroup frames with the same columns into frames of `size` rows."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pending: list[pl.DataFrame] = []
        self._n_pending = 0

    def add(self, frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Add the rows of `frame`, and yield every frame of `size` rows that is now complete."""
        self._pending.append(frame)
        self._n_pending += len(frame)
        if self._n_pending < self._size:
            return
        rows = pl.concat(self._pending)
        whole = self._n_pending // self._size * self._size
        self._pending, self._n_pending = [rows[whole:]], self._n_pending - whole
        for first in range(0, whole, self._size):
            yield rows[first : first + self._size]

    def rest(self) -> Iterator[pl.DataFrame]:
        """Yield the remaining rows as a last, smaller frame, if there are any."""
        if self._n_pending:
            yield pl.concat(self._pending)
        self._pending, self._n_pending = [], 0


def chunked(frames: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of `frames` in frames of `size` rows, the last one smaller.

    >>> [frame["a"].to_list() for frame in chunked([pl.DataFrame({"a": [1, 2, 3]}), pl.DataFrame({"a": [4]})], 2)]
    [[1, 2], [3, 4]]
    """
    chunks = Chunks(size)
    for frame in frames:
        yield from chunks.add(frame)
    yield from chunks.rest()


def in_time_order(interactions: pl.DataFrame, *, newest_first: bool = False) -> pl.DataFrame:
    """Return the rows sorted by user, then by full time if known, then by `order` if there is one, missing ones first.

    Other rows keep their order, or with `newest_first` have it reversed.

    >>> in_time_order(pl.DataFrame({"user": [7, 7, 7], "item": [1, 2, 3], "time": [5, 3, 3]}))["item"].to_list()
    [2, 3, 1]
    >>> in_time_order(pl.DataFrame({"user": [7, 7], "item": [1, 2]}), newest_first=True)["item"].to_list()
    [2, 1]
    """
    # stable sorts by one column each are several times faster than one by all
    interactions = interactions.reverse() if newest_first else interactions
    for name in SORTED_BY:
        if name in interactions.columns:
            interactions = interactions.sort(name, maintain_order=True)
    return interactions.sort("user", maintain_order=True)


def to_histories(interactions: pl.DataFrame) -> pl.DataFrame:
    """Return one row per user, in the order of the rows: `user`, `items` and, if known, other lists.

    >>> to_histories(pl.DataFrame({"user": [0, 0, 1], "item": [4, 2, 3]})).rows()
    [(0, [4, 2]), (1, [3])]
    """
    lists = [pl.col(one).alias(many) for one, many in LIST_COLUMNS.items() if one in interactions.columns]
    return interactions.group_by("user", maintain_order=True).agg(lists)


@dataclass(frozen=True)
class ExistingIds:
    """The ids of the dataset to extend, in the order of the rows of its tables, and their numbers of rows.

    `users` (`original`, `user`, `count`), `items` (`original`, `item`, `count`). `segments` are those of both tables in
    `metadata.json`, `id_types` the types of the ids in each. `kinds` of events are by number, () if it has none. The
    last row is at `last_time` in seconds, None without times. `time_format`: how its times were read, "" = without a
    format. `fingerprints` of it and of the datasets that it extends, newest first.
    """

    users: pl.DataFrame
    items: pl.DataFrame
    segments: Mapping[str, list[Any]] = field(default_factory=dict)
    id_types: Mapping[str, list[pl.DataType]] = field(default_factory=dict)
    kinds: Sequence[str] = ()
    last_time: int | None = None
    time_format: str = ""
    fingerprints: Sequence[str] = ()

    @property
    def forgotten(self) -> dict[str, dict[str, int]]:
        """Return the entry of `metadata.json` with the numbers of users and items whose ids are null; {} for none."""
        counts = {USERS: self.users["original"].null_count(), ITEMS: self.items["original"].null_count()}
        return {FORGOTTEN: counts} if any(counts.values()) else {}


def read_known(folder: Path) -> ExistingIds:
    """Return the ids of the dataset at `folder`. Raises `DataError` if it is missing."""
    if not (folder / METADATA).is_file():
        raise DataError(f"{folder}: no dataset folder (no {METADATA}); correct data.extends")
    metadata = read_metadata(folder)
    tables = {name: IdTable(folder, metadata, name) for name in (USERS, ITEMS)}
    users = read_ids(tables[USERS], ["original", "user", "count"])
    items = read_ids(tables[ITEMS], ["original", "item", "count"])
    _, last_time = metadata["time_span"] or (None, None)
    return ExistingIds(
        users, items, metadata["segments"], {name: id_types(table) for name, table in tables.items()},
        kinds_of(metadata), last_time, metadata.get("time_format", ""), fingerprints_of(metadata),
    )  # fmt: skip


def read_ids(table: IdTable, columns: Sequence[str]) -> pl.DataFrame:
    """Return `columns` of all users or items, in the order of the rows."""
    return pl.concat(pl.DataFrame(pl.from_arrow(part)) for part in table.parts(columns))


def id_types(table: IdTable) -> list[pl.DataType]:
    """Return the type of the ids of each segment: whole numbers or text."""
    return [pl.Int64() if is_number else pl.String() for is_number in table.are_numbers_by_segment]


def same_type(left: pl.Series, right: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return both series as text if their types differ, else unchanged.

    >>> [series.to_list() for series in same_type(pl.Series([1]), pl.Series(["a"]))]
    [['1'], ['a']]
    """
    if left.dtype == right.dtype:
        return left, right
    return left.cast(pl.String), right.cast(pl.String)


def item_ids(kept: Bools, *, seed: int, known: tuple[Integers, Integers] | None = None) -> Int32s:
    """Return the dense id of each code of an item, in the order of original ids; `NO_ITEM` if it is not `kept`.

    Kept items are numbered from 0, in the order of `Segments` by `seed`. `known` items, given by code and id, keep
    their ids; new items come after, as the next segment.

    >>> item_ids(np.array([True, False, True]), seed=1).tolist()
    [1, -1, 0]
    >>> item_ids(np.array([True, False, True]), seed=1, known=(np.array([1]), np.array([0]))).tolist()
    [2, 0, 1]
    """
    ids, first = np.full(len(kept), NO_ITEM, np.int32), 0
    if known is not None:
        codes, ids[known[0]] = known
        first = len(codes)
    new = kept & (ids == NO_ITEM)
    order, row = Segments([n for n in [int(new.sum())] if n], [seed] if new.any() else []), 0
    for start in range(0, len(kept), IDS_AT_ONCE):
        some, is_new = ids[start : start + IDS_AT_ONCE], new[start : start + IDS_AT_ONCE]
        rows = np.arange(row, row := row + int(is_new.sum()))
        some[is_new] = first + order.numbers(rows)
    return ids
