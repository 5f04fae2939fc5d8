"""Number all items by their rank among the original ids, range by range."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bert4rec.config.tables import Data
from bert4rec.prepare.ordering import ExistingIds
from bert4rec.prepare.raw_rows import RawRows
from bert4rec.prepare.runs import (
    ITEMS_PER_RANGE,
    KNOWN_USERS,
    bounds_of,
    number_items,
)
from bert4rec.prepare.stages import Stages, whole_file
from bert4rec.runtime.arrays import Bools, Int64s
from bert4rec.runtime.errors import DataError
from bert4rec.sources.progress import Progress

ITEM_COUNTS = ("items", "read", "both")  # of a range of items
MOST_LOST = 0.5  # of the users, rows and items of a dataset to extend


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
        """Return the codes of the items with these original `ids`. The catalogue must have them all."""
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


def compare_with_known(
    raw: RawRows, catalogue: Catalogue, known: ExistingIds, codes: Int64s, data: Data, progress: Progress
) -> None:
    """Warn if most items of the dataset to extend have no row; `codes` are those of its items.

    Raises `DataError` if most of its users have fewer than half of their rows in the time that it covers.
    """
    had_rows = (known.items["count"] > 0).to_numpy()
    is_read = pl.concat(catalogue.ranges("is_read"))["is_read"].to_numpy()
    n_items, n_found = int(had_rows.sum()), int(is_read[codes[had_rows]].sum())
    if n_found < MOST_LOST * n_items:
        n = f"only {n_found:,}" if n_found else "none"
        progress.warn(f"data.extends: {n} of its {n_items:,} items have rows here; are the ids written in another way?")
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
    done = stages.run(
        "items", number_items, arguments, sizes=sizes, title="items" if len(limits) > 1 else "", reads=["items.arrow"]
    )
    firsts, n_read, n_both = (np.cumsum([0, *(result[name] for _, result in done)]).tolist() for name in ITEM_COUNTS)
    return Catalogue([folder / "items.arrow" for folder, _ in done], firsts, n_read[-1], n_both[-1])
