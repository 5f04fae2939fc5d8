"""Count which items people come back to: the items that a user who has them may be recommended again."""

import numpy as np

from bert4rec.config.resolve import MANY_REPEATS
from bert4rec.dataset.format import VALIDATION
from bert4rec.dataset.reader import Dataset
from bert4rec.models.transitions import TrainingHistories
from bert4rec.runtime.arrays import Bools

READ_AT_ONCE = 8192  # users
MEAN_USERS = 20  # users at the mean rate that are added to those of each item, so that a few users decide nothing


def comes_again(histories: TrainingHistories) -> Bools:
    """Return for each item [n_items] whether it may come again: at least `MANY_REPEATS` of its users return to it.

    Of the users who have an item as a target in their training positions, those return to it who have it twice or more.
    With `MEAN_USERS` more users at the mean rate of the catalogue, an item that few users have follows the others.
    """
    users, returning = np.zeros((2, histories.n_items), np.int64)
    for part in histories.parts():  # each history is whole in its part
        pairs = part.users[part.is_target] * histories.n_items + part.items[part.is_target]
        distinct, counts = np.unique(pairs, return_counts=True)
        items = distinct % histories.n_items
        np.add.at(users, items, 1)
        np.add.at(returning, items[counts > 1], 1)
    users, returning = histories.sum(users), histories.sum(returning)
    mean = returning.sum() / max(1, users.sum())
    return (returning + MEAN_USERS * mean) / (users + MEAN_USERS) >= MANY_REPEATS


def missed_by_item(dataset: Dataset) -> float | None:
    """Return the share of the validation targets that are seen items which do not come again; None if all items do."""
    again, split = comes_again(TrainingHistories(dataset)), dataset.splits[VALIDATION]
    if again.all() or not len(split):
        return None
    n_missed = 0
    for first in range(0, len(split), READ_AT_ONCE):
        rows = split.read(np.arange(first, min(first + READ_AT_ONCE, len(split))))
        assert rows.targets is not None, "an evaluation split has targets"
        n_missed += int((rows.are_repeated() & ~again[rows.targets]).sum())
    return n_missed / len(split)
