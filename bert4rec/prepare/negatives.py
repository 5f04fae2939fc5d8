"""Sampled negatives of held-out users, and who has too few unseen items for them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.dataset.format import EVALUATED

USERS_PER_BLOCK = 4096  # histories in a block; changing it changes the negatives
MAX_ROUNDS = 16  # rounds of rejection before the rest is drawn from a dense table of keys
DENSE_CELLS = 1 << 22  # users × items of that table
IN_CACHE = 1 << 18  # weights that are searched for draws in any order; of more, sorted ones are found twice as fast
LAST = -1e6  # log weight of an item without training positions: after all others

Ints = NDArray[np.int64]


def train_counts(histories: pl.DataFrame, *, n_items: int) -> Ints:
    """Return the training positions of each item, (n_items,); `histories` (`items`) before they are cut into windows.

    >>> train_counts(pl.DataFrame({"items": [[0, 1], [1]]}), n_items=3).tolist()
    [1, 2, 0]
    """
    items = histories["items"].explode(empty_as_null=False).to_numpy()
    return np.bincount(items, minlength=n_items)


def count_unseen(histories: pl.DataFrame, *, n_items: int) -> Ints:
    """Return how many of `n_items` items are not in each history (`items`), (users,).

    >>> count_unseen(pl.DataFrame({"items": [[0, 1, 0], [2]]}), n_items=3).tolist()
    [1, 2]
    """
    return n_items - histories["items"].list.n_unique().to_numpy().astype(np.int64)


class SeenItems(NamedTuple):
    """Hold the items that each of `n_users` users has seen: the sorted keys, row · n_items + item."""

    keys: Ints
    n_users: int

    @classmethod
    def of(cls, histories: pl.DataFrame, n_items: int) -> Self:
        """Return the seen items of the *whole* history of each user (`items`), held-out items too."""
        items = histories["items"]
        rows = np.repeat(np.arange(len(items)), items.list.len().to_numpy())
        keys = rows * n_items + items.explode(empty_as_null=False).to_numpy()
        return cls(np.sort(keys), len(items))


def draw_negatives(seen: SeenItems, weights: Ints, *, n: int, seed: list[int]) -> NDArray[np.int32]:
    """Return `n` distinct items for each user that are not `seen`, drawn in proportion to `weights` [items], (users,
    n).

    `seed`: one for each block of users. Each of them must leave `n` items unseen (`count_unseen`). An item of weight 0
    comes only when no other is left.

    >>> seen = SeenItems.of(pl.DataFrame({"items": [[0, 1]]}), n_items=4)
    >>> draw_negatives(seen, np.array([9, 9, 5, 0]), n=2, seed=[1]).tolist()
    [[2, 3]]
    """
    drawn = _draw(np.random.default_rng(seed), seen.keys, weights, (seen.n_users, n))
    return drawn.astype(np.int32)


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


@dataclass(frozen=True)
class HeldOutCounts:
    """Hold counts of the evaluation splits, or of a part of them; parts add up.

    Of each split of `EVALUATED`: `users`; `repeated`, those whose target stands in their own history; `left_out`, those
    without negatives. `unseen`: how many users, of both splits and each once, have so many unseen items; who has the
    `n_negatives` that a user is to have, or more, is counted there.
    """

    n_negatives: int
    users: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unseen: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, histories: pl.DataFrame, unseen: Ints, n_negatives: int) -> "HeldOutCounts":
        """Return the counts of `histories` with targets, each of which has so many `unseen` items [users]."""
        counts = cls(n_negatives, unseen=Counter(np.minimum(unseen, n_negatives).tolist()))
        histories = histories.with_columns(is_left_out=pl.Series(unseen < n_negatives))
        for name in EVALUATED:
            items, place = pl.col("items"), pl.col(name)
            held_out = histories.filter(place >= 0)
            is_repeated = items.list.head(place).list.contains(items.list.get(place))
            counts.users[name] = len(held_out)
            counts.repeated[name] = held_out.select(is_repeated.sum()).item()
            counts.left_out[name] = held_out.filter("is_left_out").height
        return counts

    def add(self, other: "HeldOutCounts") -> None:
        """Add the counts of another part."""
        self.users.update(other.users)
        self.repeated.update(other.repeated)
        self.left_out.update(other.left_out)
        self.unseen.update(other.unseen)

    def metadata(self) -> dict[str, Any]:
        """Return the entries of `metadata.json`."""
        return {
            "repeated_targets": {name: {"users": self.repeated[name], "of": self.users[name]} for name in EVALUATED},
            "left_out": {name: {"users": self.left_out[name], "of": self.users[name]} for name in EVALUATED},
        }

    def keeps(self, percent: int) -> int:
        """Return the largest number of negatives, up to `n_negatives`, for which so many users have enough unseen
        items.

        >>> HeldOutCounts(3, unseen=Counter({0: 1, 2: 4, 3: 5})).keeps(90)
        2
        """
        have, total = 0, self.unseen.total()
        for n, users in sorted(self.unseen.items(), reverse=True):
            have += users
            if 100 * have >= percent * total:
                return n
        return self.n_negatives

    def warning(self) -> str | None:
        """Return one line if users are left out: how many, and which number of negatives would keep them; else None."""
        n, total = self.n_negatives, self.unseen.total()
        few = total - self.unseen[n]
        if not few:
            return None
        what = f"{n:,} unseen items (preprocessing.n_eval_negatives)"
        if few == total:
            return (
                f"none of the {total:,} evaluated users has {what}: there will be no ranking among sampled "
                f"items; {_largest(self.keeps(50))}"
            )
        has, is_ = ("has", "is") if few == 1 else ("have", "are")
        return (
            f"{few:,} of {total:,} evaluated users {has} fewer than {what} and {is_} left out of the ranking "
            f"among sampled items; {self._advice(are_many=100 * few > 5 * total)}"
        )

    def _advice(self, *, are_many: bool) -> str:
        """Return the numbers that keep all users, and where more than a twentieth is left out, 95 % of them."""
        least, most = self.keeps(100), self.keeps(95)
        if are_many and not most:
            return "no number keeps 95 % of them"
        every = f"n_eval_negatives = {least} keeps all" if least else "no number keeps all"
        return f"{every}, {most} keeps 95 %" if are_many and most > least else every


def _largest(n: int) -> str:
    works = "works for at least half of them"
    return f"{n} is the largest number that {works}" if n else f"no number {works}"
