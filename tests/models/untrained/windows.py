"""Training splits made of histories, with windows as preparation cuts them."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import polars as pl

from bert4rec.dataset.columns import Indices
from bert4rec.dataset.reader import Dataset, Rows
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.prepare.split.splits import windows


class Windows:
    """A split of the windows of `histories`, whose items count from 0; `times` parallel to them."""

    def __init__(
        self, histories: Sequence[Sequence[int]], max_len: int, step: int, times: Sequence[Sequence[int]] | None = None
    ) -> None:
        lists = [("items", histories, pl.Int32), *([("times", times, pl.Int64)] if times is not None else [])]
        columns = {
            name: pl.Series(name, [list(values) for values in of_name], pl.List(kind)) for name, of_name, kind in lists
        }
        users = pl.Series("user", range(len(histories)), pl.Int32)
        frame = pl.DataFrame([users, *columns.values()]).filter(pl.col("items").list.len() > 0)
        cut = windows(frame, max_len=max_len, step=step)
        self.users, self.has_times = cut["user"].to_numpy(), times is not None
        self._lists = {name: [np.array(values, np.int64) for values in cut[name].to_list()] for name in columns}

    def __len__(self) -> int:
        return len(self.users)

    def lengths(self, indices: Indices) -> Indices:
        return np.array([len(self._lists["items"][index]) for index in indices], np.int64)

    def read(self, indices: Indices) -> Rows:
        return Rows((self._joined("items", indices) + FIRST_ITEM_ID).astype(np.int32), self.lengths(indices))

    def times(self, indices: Indices) -> Indices:
        return self._joined("times", indices)

    def _joined(self, name: str, indices: Indices) -> Indices:
        return np.concatenate([self._lists[name][index] for index in indices])


def dataset_of(
    histories: Sequence[Sequence[int]], *, n_items: int, max_len: int = 50, step: int = 0,
    times: Sequence[Sequence[int]] | None = None,
) -> Dataset:  # fmt: skip
    """A dataset whose training split has the windows of `histories`, `step` items apart (0: `max_len`)."""
    metadata: dict[str, Any] = {"items": n_items, "max_len": max_len, "preprocessing": {"sliding_step": step}}
    split = Windows(histories, max_len, step or max_len, times)
    dataset = Dataset(cast(Any, None), metadata, {"train": cast(Any, split)})
    vars(dataset)["popularity"] = np.bincount([item for items in histories for item in items], minlength=n_items)
    return dataset
