"""Items that a user has not seen, to rank the target among: drawn by popularity, or uniformly.

Seeded, and drawn in fixed blocks of users: the result does not depend on memory, threads or the number of users after.
"""

from typing import NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.dataset.schema import FIRST_ITEM_ID

USERS_PER_BLOCK = 4096  # histories in a block; changing it changes the negatives
MAX_ROUNDS = 16  # rounds of rejection before the rest is drawn from a dense table of keys
DENSE_CELLS = 1 << 22  # users × items of that table
IN_CACHE = 1 << 18  # weights that are searched for draws in any order; of more, sorted ones are found twice as fast
LAST = -1e6  # log weight of an item without training positions: after all others

Ints = NDArray[np.int64]


def train_counts(histories: pl.DataFrame, *, n_items: int) -> Ints:
    """Return the training positions of each item, (n_items,); `histories` (`items`) before they are cut into windows.

    >>> train_counts(pl.DataFrame({"items": [[2, 3], [3]]}), n_items=3).tolist()
    [1, 2, 0]
    """
    items = histories["items"].explode(empty_as_null=False).to_numpy()
    return np.bincount(items - FIRST_ITEM_ID, minlength=n_items)


def count_unseen(histories: pl.DataFrame, *, n_items: int) -> Ints:
    """Return how many of `n_items` items are not in each history (`items`), (users,).

    >>> count_unseen(pl.DataFrame({"items": [[2, 3, 2], [4]]}), n_items=3).tolist()
    [1, 2]
    """
    return n_items - histories["items"].list.n_unique().to_numpy().astype(np.int64)


class SeenItems(NamedTuple):
    """Hold the items that each of `n_users` users has seen: the sorted keys, row · n_items + item, items from 0."""

    keys: Ints
    n_users: int

    @classmethod
    def of(cls, histories: pl.DataFrame, n_items: int) -> Self:
        """Return the seen items of the *whole* history of each user (`items`), held-out items too."""
        items = histories["items"]
        rows = np.repeat(np.arange(len(items)), items.list.len().to_numpy())
        keys = rows * n_items + items.explode(empty_as_null=False).to_numpy() - FIRST_ITEM_ID
        return cls(np.sort(keys), len(items))


def draw_negatives(seen: SeenItems, weights: Ints, *, n: int, seed: list[int]) -> NDArray[np.int32]:
    """Return `n` distinct items for each user that are not `seen`, drawn in proportion to `weights` [items], (users,
    n).

    `seed`: one for each block of users. Each of them must leave `n` items unseen (`count_unseen`). An item of weight 0
    comes only when no other is left.

    >>> seen = SeenItems.of(pl.DataFrame({"items": [[2, 3]]}), n_items=4)
    >>> draw_negatives(seen, np.array([9, 9, 5, 0]), n=2, seed=[1]).tolist()
    [[4, 5]]
    """
    drawn = _draw(np.random.default_rng(seed), seen.keys, weights, (seen.n_users, n))
    return (drawn + FIRST_ITEM_ID).astype(np.int32)


def _draw(rng: np.random.Generator, seen: Ints, weights: Ints, shape: tuple[int, int]) -> Ints:
    """Return negatives (items from 0) of `shape` (users, n), drawn exactly one by one without replacement.

    Draws with replacement, of which what is seen or already drawn is dropped, are such a sequence. `seen`: the sorted
    keys, row · n_items + item, of what is seen.
    """
    n_items, n, cumulated = len(weights), shape[1], np.cumsum(weights)
    drawn, filled = np.empty(shape, np.int64), np.zeros(shape[0], np.int64)
    before = np.empty(0, np.int64)  # sorted keys of what is drawn
    for _ in range(MAX_ROUNDS if cumulated[-1] else 0):
        open_rows = np.flatnonzero(filled < n)
        if not len(open_rows):
            return drawn
        size = (len(open_rows), n - int(filled.min()))
        items = _reached(cumulated, rng.integers(0, cumulated[-1], size).ravel()).reshape(size)
        new = _first_of_each(open_rows[:, None] * n_items + items, seen, before)
        _append(drawn, filled, new, n_items)
        new.sort()
        before = np.insert(before, np.searchsorted(before, new), new)
    _draw_rest(rng, drawn, filled, np.sort(np.concatenate([seen, before])), weights)
    return drawn


def _reached(cumulated: Ints, heights: Ints) -> Ints:
    """Return the first place at which `cumulated` is above each of `heights`."""
    if cumulated[-1] == len(cumulated) and cumulated[0] == 1 and (np.diff(cumulated) == 1).all():
        return heights  # all weights are 1
    if len(cumulated) <= IN_CACHE:
        return np.searchsorted(cumulated, heights, side="right")
    in_order, order = _in_order(heights)
    places = np.empty_like(heights)
    places[order] = np.searchsorted(cumulated, in_order, side="right")
    return places


def _first_of_each(keys: Ints, *taken: Ints) -> Ints:
    """Return the pairs as a dict; of a repeated key the first value counts, as for Polars.

    No key is in two rows, and all of a row are below those of the next.
    """
    in_order, places = _in_order(keys)
    is_new = np.ones(keys.shape, bool)
    is_new[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    for others in taken:
        if len(others):
            is_new &= others[np.minimum(np.searchsorted(others, in_order), len(others) - 1)] != in_order
    is_kept = np.empty(keys.shape, bool)
    np.put_along_axis(is_kept, places, is_new, axis=1)
    return keys[is_kept]


def _in_order(values: Ints) -> tuple[Ints, Ints]:
    """Return the last axis of `values`, none negative, sorted, and where each stood: of equal ones the first comes
    first.

    Value and place in one number, where that has room for both, are sorted several times as fast as places alone.
    """
    n = values.shape[-1]
    bits = n.bit_length()
    if int(values.max(initial=0)).bit_length() + bits > 63:
        order = np.argsort(values, kind="stable")
        return np.take_along_axis(values, order, axis=-1), order
    packed = np.sort(values << bits | np.arange(n))
    return packed >> bits, packed & ((1 << bits) - 1)


def _append(drawn: Ints, filled: Ints, keys: Ints, n_items: int) -> None:
    """Write the items of `keys` (sorted by row) behind what each row of `drawn` holds; what is too many falls off."""
    rows, items = np.divmod(keys, n_items)
    counts = np.bincount(rows, minlength=len(filled))
    place = filled[rows] + np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    fits = place < drawn.shape[1]
    drawn[rows[fits], place[fits]] = items[fits]
    np.minimum(filled + counts, drawn.shape[1], out=filled)


def _draw_rest(rng: np.random.Generator, drawn: Ints, filled: Ints, taken: Ints, weights: Ints) -> None:
    """Fill the rows that rejection left open: the largest Gumbel keys are a draw without replacement."""
    n_items, n = len(weights), drawn.shape[1]
    log_weights = np.where(weights > 0, np.log(np.maximum(weights, 1)), LAST)
    open_rows = np.flatnonzero(filled < n)
    at_once = max(1, DENSE_CELLS // n_items)
    for rows in np.split(open_rows, range(at_once, len(open_rows), at_once)):
        keys = log_weights + rng.gumbel(size=(len(rows), n_items))
        cells = taken[np.isin(taken // n_items, rows)]
        keys[np.searchsorted(rows, cells // n_items), cells % n_items] = -np.inf
        best = np.argsort(-keys, axis=1)[:, :n]
        missing = np.arange(n) >= filled[rows][:, None]
        behind = np.maximum(np.arange(n) - filled[rows][:, None], 0)
        drawn[rows] = np.where(missing, np.take_along_axis(best, behind, axis=1), drawn[rows])
