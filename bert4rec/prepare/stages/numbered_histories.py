"""The histories of all users with dense ids, one row a user, read from the disk each time."""

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.prepare.order.histories import to_histories
from bert4rec.prepare.stages.ordered_rows import OrderedRows


class NumberedHistories:
    """Hold the histories in `ordered`, with dense ids, in frames of some users each; read from the disk each time.

    `item_ids`: the dense id of each code. `known`: the original ids of users with dense ids of an older dataset, in
    their order; new users are numbered after them, in the order of their original ids.
    """

    def __init__(self, ordered: OrderedRows, item_ids: NDArray[np.int32], *, known: pl.Series | None) -> None:
        self._ordered, self._ids, self._known = ordered, item_ids, known
        self._n_known = 0 if known is None else len(known)

    @property
    def n_rows(self) -> int:
        """Return the number of all interactions."""
        return int(self._ordered.counts.sum())

    @property
    def columns(self) -> list[str]:
        """Return the columns of the interactions."""
        return self._ordered.parts.columns

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for frame, first in self._numbered(self._ordered.parts):
            user = pl.col("user") if first is None else first + pl.col("user").rle_id()
            items = pl.Series("item", self._ids[frame["item"].to_numpy()])
            yield to_histories(frame.with_columns(user.cast(pl.Int32).alias("user"), items))

    def users(self) -> Iterator[pl.DataFrame]:
        """Yield `user`, `original`, `count` of every user, by dense id; known ones may have no interaction."""
        counts = np.zeros(self._n_known, np.int64)
        new: list[pl.DataFrame] = []
        for frame, first in self._numbered(self._ordered.parts.read("user")):
            found = frame.group_by(original="user", maintain_order=True).len("count")
            if first is None:
                counts[found["original"].to_numpy()] = found["count"].to_numpy()
            else:
                dense = pl.int_range(first, first + pl.len(), dtype=pl.Int32)
                new.append(found.select(dense.alias("user"), "original", pl.col("count").cast(pl.Int64)))
        if self._known is not None:
            ids = pl.int_range(0, self._n_known, dtype=pl.Int32, eager=True).alias("user")
            new.insert(0, pl.DataFrame([ids, self._known, pl.Series("count", counts)]))
        is_text = any(frame["original"].dtype == pl.String for frame in new)
        yield from (frame.cast({"original": pl.String}) if is_text else frame for frame in new)

    def _numbered(self, parts: Iterable[pl.DataFrame]) -> Iterator[tuple[pl.DataFrame, int | None]]:
        """Yield each part that has rows and the dense id of its first user; None if users have theirs already."""
        first = self._n_known
        for index, frame in enumerate(parts):
            if not len(frame):
                continue
            is_new = index >= self._ordered.n_known
            yield frame, first if is_new else None
            if is_new:
                first += int(frame["user"].rle_id()[-1]) + 1
