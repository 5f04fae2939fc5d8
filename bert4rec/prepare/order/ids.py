"""Dense ids: those of items shuffled by a seed, those of users in order; those of an older dataset stay as they are."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.dataset.schema import FIRST_ITEM_ID, ITEMS, USERS
from bert4rec.runtime.errors import DataError

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Known:
    """Hold the ids of a dataset made before: `users` (`original`, `user`) and `items` (`original`, `item`), by dense
    id.
    """

    users: pl.DataFrame
    items: pl.DataFrame


def read_known(folder: Path) -> Known:
    """Return the ids of the dataset at `folder`. Raises `DataError` where it is missing."""
    try:
        users = pl.read_parquet(folder / USERS, columns=["original", "user"])
        items = pl.read_parquet(folder / ITEMS, columns=["original", "item"])
    except (OSError, pl.exceptions.PolarsError):
        raise DataError(f"{folder}: no dataset folder with {USERS} and {ITEMS}; correct data.extends") from None
    return Known(users, items)


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
    """Return the dense id of each of the sorted `originals`; 0 (padding) for one that is not `kept`.

    Kept ones are numbered from `FIRST_ITEM_ID`, in an order shuffled by `seed`: so contiguous shards of the item table
    carry equal load, and the ids tell nothing. `known` ones (`original`, `item`) keep their ids, new ones
    come after.

    >>> item_ids(pl.Series(["a", "b", "c"]), np.array([True, False, True]), seed=1).tolist()
    [2, 0, 3]
    >>> old = pl.DataFrame({"original": ["b"], "item": [2]})
    >>> item_ids(pl.Series(["a", "b", "c"]), np.array([True, False, True]), seed=1, known=old).tolist()
    [3, 2, 4]
    """
    ids = np.zeros(len(originals), np.int32)
    first = FIRST_ITEM_ID
    if known is not None:
        names, old = same_type(originals, known["original"])
        places = pl.DataFrame({"original": names}).with_row_index("place")
        found = places.join(known.with_columns(original=old), on="original")
        ids[found["place"].to_numpy()] = found["item"].to_numpy()
        first += len(known)
    new = kept & (ids == 0)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(int(new.sum()))
    ids[new] = first + order
    return ids
