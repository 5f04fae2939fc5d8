"""Rows put in the order of users and times, out of core, and the numbers of users and items."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.dataset.format import ITEMS, NO_ITEM, USERS
from bert4rec.runtime.errors import DataError

ROWS_PER_GROUP = 1 << 16  # of a run: what is read at least from each run for a range of users
ROWS_PER_SAMPLE = 1 << 10  # rows for each of which a user is remembered, to cut the ranges evenly


class SortedRuns:
    """Hold rows with the column `user` under `folder`, in runs of about `run_bytes` of memory; of them the `schema`."""

    def __init__(self, folder: Path, *, run_bytes: int) -> None:
        folder.mkdir(parents=True)
        self._folder, self._run_bytes = folder, run_bytes
        self._pending: list[pl.DataFrame] = []
        self._runs: list[Path] = []
        self._samples: list[pl.Series] = []
        self.schema: dict[str, pl.DataType] = {}
        self.n_rows = self.n_bytes = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Keep the rows of `frame`, which come after all before. Ids that become text here become so in all rows."""
        if not len(frame):
            return
        if self.schema != frame.schema and self.schema:
            self._become(dict(frame.schema))
        self.schema = dict(frame.schema)
        self._pending.append(frame)
        self.n_rows += len(frame)
        self.n_bytes += int(frame.estimated_size())
        if sum(part.estimated_size() for part in self._pending) >= self._run_bytes:
            self._write_run()

    def partitions(self) -> Iterator[pl.DataFrame]:
        """Yield all rows in ranges of users, ascending: each about a run's size, of whole users, their rows as they
        came.
        """
        if self._pending:
            self._write_run()
        if not self._runs:
            return
        rows, user = pl.scan_parquet(self._runs, glob=False), pl.col("user")
        bounds = self._bounds()
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            limits = [user >= low] if low is not None else []
            limits += [user < high] if high is not None else []
            yield (rows.filter(*limits) if limits else rows).collect()

    def remove(self) -> None:
        """Take the rows off the disk."""
        shutil.rmtree(self._folder)

    def _bounds(self) -> list[int | str]:
        """Return the first users of all ranges but the first: quantiles of the sample."""
        n = -(-self.n_bytes // self._run_bytes)
        sample = pl.concat(self._samples).sort() if self._samples else pl.Series([], dtype=pl.Int64)
        places = [len(sample) * part // n for part in range(1, n)]
        return sample.gather(places).unique(maintain_order=True).to_list()

    def _write_run(self) -> None:
        run = pl.concat(self._pending, rechunk=False).sort("user", maintain_order=True)
        self._pending = []
        self._samples.append(run["user"].gather_every(ROWS_PER_SAMPLE))
        path = self._folder / f"run-{len(self._runs):05d}.parquet"
        run.write_parquet(path, compression="lz4", row_group_size=ROWS_PER_GROUP)
        self._runs.append(path)

    def _become(self, schema: dict[str, pl.DataType]) -> None:
        """Cast what is kept to `schema`, run by run: numbers sort otherwise than text."""
        if self._pending:
            self._write_run()
        for path in self._runs:
            run = pl.read_parquet(path, glob=False).cast(schema).sort("user", maintain_order=True)  # type: ignore[arg-type]
            run.write_parquet(path, compression="lz4", row_group_size=ROWS_PER_GROUP)
        self._samples = [sample.cast(schema["user"]) for sample in self._samples]


class Parts:
    """Hold frames under `folder`, one after another: written once, read as often as needed, or replaced in turn."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._paths: list[Path] = []

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, frame: pl.DataFrame) -> None:
        """Write one more frame."""
        path = self._folder / f"part-{len(self._paths):05d}.parquet"
        frame.write_parquet(path, compression="lz4", row_group_size=ROWS_PER_GROUP)
        self._paths.append(path)

    def replace(self, index: int, frame: pl.DataFrame) -> None:
        """Put `frame` in the place of the frame at `index`."""
        new = self._paths[index].with_suffix(".new")
        frame.write_parquet(new, compression="lz4", row_group_size=ROWS_PER_GROUP)
        new.replace(self._paths[index])

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return self.read()

    @property
    def columns(self) -> list[str]:
        """Return the columns of all frames."""
        return list(pl.read_parquet_schema(self._paths[0]))

    def read(self, *names: str) -> Iterator[pl.DataFrame]:
        """Yield the frames with only the columns `names`, without a name with all."""
        for path in self._paths:
            yield pl.read_parquet(path, columns=list(names) or None, glob=False)


class Chunks:
    """Takes frames with the same columns, one after another, and gives back frames of `size` rows."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pending: list[pl.DataFrame] = []
        self._n_pending = 0

    def add(self, frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield every frame of `size` rows that is full with the rows of `frame`."""
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
        """Yield the last frame, which is smaller; nothing if no row is left."""
        rows = pl.concat(self._pending) if self._n_pending else None
        self._pending, self._n_pending = [], 0
        if rows is not None:
            yield rows


def chunked(frames: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of `frames` in frames of `size` rows, the last one smaller.

    >>> [frame["a"].to_list() for frame in chunked([pl.DataFrame({"a": [1, 2, 3]}), pl.DataFrame({"a": [4]})], 2)]
    [[1, 2], [3, 4]]
    """
    chunks = Chunks(size)
    for frame in frames:
        yield from chunks.add(frame)
    yield from chunks.rest()


LISTS = {"item": "items", "time": "times", "rating": "ratings"}


def in_time_order(interactions: pl.DataFrame, *, newest_first: bool = False) -> pl.DataFrame:
    """Sort by user, then time where known; rows of one time stay in their order.

    Without times the order of the rows is kept, or turned round where the newest come first.

    >>> in_time_order(pl.DataFrame({"user": [7, 7, 7], "item": [1, 2, 3], "time": [5, 3, 3]}))["item"].to_list()
    [2, 3, 1]
    >>> in_time_order(pl.DataFrame({"user": [7, 7], "item": [1, 2]}), newest_first=True)["item"].to_list()
    [2, 1]
    """
    # two stable sorts by one column are several times faster than one by both
    if "time" in interactions.columns:
        interactions = interactions.sort("time", maintain_order=True)
    elif newest_first:
        interactions = interactions.reverse()
    return interactions.sort("user", maintain_order=True)


def with_codes(interactions: pl.DataFrame, items: pl.DataFrame) -> pl.DataFrame:
    """Put the codes of items for their original ids; `items`: `original`, `code`. Rows keep their order.

    >>> with_codes(pl.DataFrame({"item": ["b", "a"]}), pl.DataFrame({"original": ["a", "b"], "code": [0, 1]})).rows()
    [(1,), (0,)]
    """
    names = interactions.columns
    coded = interactions.join(items, left_on="item", right_on="original", how="left", maintain_order="left")
    return coded.with_columns(item="code").select(names)


def to_histories(interactions: pl.DataFrame) -> pl.DataFrame:
    """Return one row a user, in the order of the rows: `user`, `items`, where known `times` and `ratings`.

    >>> to_histories(pl.DataFrame({"user": [0, 0, 1], "item": [4, 2, 3]})).rows()
    [(0, [4, 2]), (1, [3])]
    """
    lists = [pl.col(one).alias(many) for one, many in LISTS.items() if one in interactions.columns]
    return interactions.group_by("user", maintain_order=True).agg(lists)


Ids = NDArray[np.int32]


@dataclass(frozen=True)
class ExistingIds:
    """Hold the ids of a dataset made before: `users` (`original`, `user`) and `items` (`original`, `item`), by dense
    id.
    """

    users: pl.DataFrame
    items: pl.DataFrame


def read_known(folder: Path) -> ExistingIds:
    """Return the ids of the dataset at `folder`. Raises `DataError` where it is missing."""
    try:
        users = pl.read_parquet(folder / USERS, columns=["original", "user"])
        items = pl.read_parquet(folder / ITEMS, columns=["original", "item"])
    except (OSError, pl.exceptions.PolarsError):
        raise DataError(f"{folder}: no dataset folder with {USERS} and {ITEMS}; correct data.extends") from None
    return ExistingIds(users, items)


class Distinct:
    """Hold the first row of each item, of rows (`item` and `others`) in parts; no more than these rows, twice, is
    held.
    """

    def __init__(self, **others: type[pl.DataType]) -> None:
        self._parts = [pl.DataFrame(schema={"item": pl.Int64, **others})]
        self._n_merged = self._n_pending = 0

    def add(self, rows: pl.DataFrame) -> None:
        """Take one more part. Numbers become text where the items of one part are text."""
        new = rows.unique("item", keep="first", maintain_order=True)
        self._parts.append(new)
        self._n_pending += len(new)
        if self._n_pending > max(self._n_merged, 1 << 20):
            self.rows()

    def rows(self) -> pl.DataFrame:
        """Return the first rows, in the order in which they came."""
        is_text = any(part["item"].dtype == pl.String for part in self._parts)
        parts = [part.cast({"item": pl.String}) for part in self._parts] if is_text else self._parts
        merged = pl.concat(parts).unique("item", keep="first", maintain_order=True)
        self._parts, self._n_merged, self._n_pending = [merged], len(merged), 0
        return merged


def same_type(left: pl.Series, right: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return both as text if one of them is, else unchanged.

    >>> [series.to_list() for series in same_type(pl.Series([1]), pl.Series(["a"]))]
    [['1'], ['a']]
    """
    if left.dtype == right.dtype:
        return left, right
    return left.cast(pl.String), right.cast(pl.String)


def item_ids(originals: pl.Series, kept: NDArray[np.bool_], *, seed: int, known: pl.DataFrame | None = None) -> Ids:
    """Return the number of each of the sorted `originals`; `NO_ITEM` for one that is not `kept`.

    Kept ones are numbered from 0, in an order shuffled by `seed`: so contiguous shards of the item table
    carry equal load, and the numbers tell nothing. `known` ones (`original`, `item`) keep theirs, new ones
    come after.

    >>> item_ids(pl.Series(["a", "b", "c"]), np.array([True, False, True]), seed=1).tolist()
    [0, -1, 1]
    >>> old = pl.DataFrame({"original": ["b"], "item": [0]})
    >>> item_ids(pl.Series(["a", "b", "c"]), np.array([True, False, True]), seed=1, known=old).tolist()
    [1, 0, 2]
    """
    ids = np.full(len(originals), NO_ITEM, np.int32)
    first = 0
    if known is not None:
        names, old = same_type(originals, known["original"])
        places = pl.DataFrame({"original": names}).with_row_index("place")
        found = places.join(known.with_columns(original=old), on="original")
        ids[found["place"].to_numpy()] = found["item"].to_numpy()
        first += len(known)
    new = kept & (ids == NO_ITEM)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(int(new.sum()))
    ids[new] = first + order
    return ids
