"""Count the held-out targets of a dataset that a model of another dataset has trained on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert4rec.dataset.format import EVALUATED, USERS, one_array
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.runtime.arrays import Int32s, Int64s

TARGETS_AT_ONCE = 4096
NO_USER = -1  # number of a user who is not in the dataset


def count_trained(
    dataset: Dataset, trained: Path, items: Int32s, splits: Sequence[str] = EVALUATED
) -> dict[str, dict[str, int]]:
    """Return for each of the `splits` the `users` whose targets the dataset at `trained` has for training, `of` all.

    Users are matched by their original ids; `items` [V] are the ids there, NO_ITEM for an item that it does not have.
    If a user has the item several times, the target counts if training had more of them than come before the target.
    """
    histories, users = open_dataset(trained, verify=False).histories, _users_there(dataset.folder, trained)
    counts = {}
    for name in splits:
        split, n_trained = dataset.splits[name], 0
        for start in range(0, len(split), TARGETS_AT_ONCE):
            numbers = np.arange(start, min(start + TARGETS_AT_ONCE, len(split)))
            before, targets = split.before(numbers), split.targets(numbers)
            rows, is_there = histories.user_rows(users[split.users[numbers]])
            stops = np.where(is_there, histories.n_train_at(rows), 0)
            seen = histories.read(rows, np.zeros_like(stops), stops)
            n_trained += int((seen.n_of(items[targets]) > before.n_of(targets)).sum())
        if len(split):
            counts[name] = {"users": n_trained, "of": len(split)}
    return counts


def _users_there(folder: Path, trained: Path) -> Int64s:
    """Return the number of each user of the dataset at `folder` [N] in that at `trained`, or `NO_USER`."""
    tables = (pq.read_table(path / USERS, columns=["original"])["original"] for path in (folder, trained))
    here, there = (one_array(column.cast(pa.large_string())) for column in tables)
    places = pc.index_in(here, value_set=there).fill_null(NO_USER)
    return np.asarray(places.to_numpy(zero_copy_only=False), np.int64)
