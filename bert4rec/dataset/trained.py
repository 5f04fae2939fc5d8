"""Count the held-out targets of a dataset that a model of another dataset has trained on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert4rec.dataset.format import EVALUATED
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.runtime.arrays import Int32s

TARGETS_AT_ONCE = 4096


def count_trained(
    dataset: Dataset, trained: Path, items: Int32s, splits: Sequence[str] = EVALUATED
) -> dict[str, dict[str, int]]:
    """Return for each of the `splits` the `users` whose targets the dataset at `trained` has for training, `of` all.

    Users are matched by their original ids; `items` [V] are the ids there, NO_ITEM for an item that it does not have.
    If a user has the item several times, the target counts if training had more of them than come before the target.
    """
    there, counts = open_dataset(trained, verify=False), {}
    histories = there.histories
    for name in splits:
        split, n_trained = dataset.splits[name], 0
        for start in range(0, len(split), TARGETS_AT_ONCE):
            numbers = np.arange(start, min(start + TARGETS_AT_ONCE, len(split)))
            before, targets = split.before(numbers), split.targets(numbers)
            originals = dataset.user_table.rows(split.users_at(numbers), ["original"])["original"]
            rows, is_there = histories.user_rows(there.user_table.find(originals))
            stops = np.where(is_there, histories.n_train_at(rows), 0)
            seen = histories.read(rows, np.zeros_like(stops), stops)
            n_trained += int((seen.n_of(items[targets]) > before.n_of(targets)).sum())
        if len(split):
            counts[name] = {"users": n_trained, "of": len(split)}
    return counts
