"""Sample the negatives of held-out users, and count the users with too few unseen items."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.dataset.format import EVALUATED

USERS_PER_BLOCK = 4096  # histories in a block; changing it changes the negatives
MAX_ROUNDS = 16  # rounds of rejection sampling before the rest is drawn from a dense table of keys
DENSE_CELLS = 1 << 22  # users × items of that table
IN_CACHE = 1 << 18  # above this many weights, sorting the draws before the search is twice as fast
LAST = -1e6  # log weight of an item without training positions: it is drawn last

Ints = NDArray[np.int64]


def train_counts(histories: pl.DataFrame, *, n_items: int) -> Ints:
    """Return the number of training positions of each item, (n_items,), before `histories` are cut into windows.

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
    """Hold the items that each of `n_users` users has seen, as sorted keys: row · n_items + item."""

    keys: Ints
    n_users: int

    @classmethod
    def of(cls, histories: pl.DataFrame, n_items: int) -> Self:
        """Return the seen items of the *whole* history of each user (`items`), including held-out items."""
        items = histories["items"]
        rows = np.repeat(np.arange(len(items)), items.list.len().to_numpy())
        keys = rows * n_items + items.explode(empty_as_null=False).to_numpy()
        return cls(np.sort(keys), len(items))


def draw_negatives(seen: SeenItems, weights: Ints, *, n: int, seed: list[int]) -> NDArray[np.int32]:
    """Return `n` distinct unseen items for each user, (users, n), drawn in proportion to `weights` [items].

    `seed` is for one block of users. Each user must have at least `n` unseen items (`count_unseen`). An item of weight
    0 is drawn only if no other item is left.

    >>> seen = SeenItems.of(pl.DataFrame({"items": [[0, 1]]}), n_items=4)
    >>> draw_negatives(seen, np.array([9, 9, 5, 0]), n=2, seed=[1]).tolist()
    [[2, 3]]
    """
    drawn = _draw(np.random.default_rng(seed), seen.keys, weights, (seen.n_users, n))
    return drawn.astype(np.int32)


def _draw(rng: np.random.Generator, seen: Ints, weights: Ints, shape: tuple[int, int]) -> Ints:
    """Return negatives (items from 0) of `shape` (users, n), distributed as draws one by one without replacement.

    Draws with replacement, without those that are seen or already drawn, have exactly this distribution. `seen` are the
    sorted keys, row · n_items + item.
    """
    n_items, n, cumulated = len(weights), shape[1], np.cumsum(weights)
    drawn, filled = np.empty(shape, np.int64), np.zeros(shape[0], np.int64)
    before = np.empty(0, np.int64)  # sorted keys of drawn items
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
    """Return the first index at which `cumulated` is above each of `heights`."""
    if cumulated[-1] == len(cumulated) and cumulated[0] == 1 and (np.diff(cumulated) == 1).all():
        return heights  # all weights are 1
    if len(cumulated) <= IN_CACHE:
        return np.searchsorted(cumulated, heights, side="right")
    in_order, order = _in_order(heights)
    places = np.empty_like(heights)
    places[order] = np.searchsorted(cumulated, in_order, side="right")
    return places


def _first_of_each(keys: Ints, *taken: Ints) -> Ints:
    """Return the keys [rows, draws] that are not `taken`, flat and in order, each repeated key of a row only once.

    No key is in two rows, and all keys of a row are below those of the next row.
    """
    in_order, places = _in_order(keys)
    is_new = np.ones(keys.shape, bool)
    is_new[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    for old in taken:
        if len(old):
            is_new &= old[np.minimum(np.searchsorted(old, in_order), len(old) - 1)] != in_order
    is_kept = np.empty(keys.shape, bool)
    np.put_along_axis(is_kept, places, is_new, axis=1)
    return keys[is_kept]


def _in_order(values: Ints) -> tuple[Ints, Ints]:
    """Return `values` (not negative) sorted along the last axis, and the index of each before; the sort is stable.

    If value and index fit into one integer, sorting that integer is several times as fast as an argsort.
    """
    n = values.shape[-1]
    bits = n.bit_length()
    if int(values.max(initial=0)).bit_length() + bits > 63:
        order = np.argsort(values, kind="stable")
        return np.take_along_axis(values, order, axis=-1), order
    packed = np.sort(values << bits | np.arange(n))
    return packed >> bits, packed & ((1 << bits) - 1)


def _append(drawn: Ints, filled: Ints, keys: Ints, n_items: int) -> None:
    """Append the items of `keys` (sorted by row) to each row of `drawn`; items that do not fit are dropped."""
    rows, items = np.divmod(keys, n_items)
    counts = np.bincount(rows, minlength=len(filled))
    place = filled[rows] + np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    fits = place < drawn.shape[1]
    drawn[rows[fits], place[fits]] = items[fits]
    np.minimum(filled + counts, drawn.shape[1], out=filled)


def _draw_rest(rng: np.random.Generator, drawn: Ints, filled: Ints, taken: Ints, weights: Ints) -> None:
    """Fill the rows that rejection sampling left incomplete: the largest Gumbel keys are draws without replacement."""
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
    """Hold counts of the held-out users, or of a part of them; parts can be added.

    For each split of `EVALUATED`: `users`; `repeated`, users whose target is in their own history; `left_out`, users
    without negatives. `unseen` maps a number of unseen items, at most `n_negatives`, to the number of users that have
    it; a user in both splits counts once.
    """

    n_negatives: int
    users: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unseen: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, histories: pl.DataFrame, unseen: Ints, n_negatives: int) -> "HeldOutCounts":
        """Return the counts of `histories` with targets; `unseen` [users] are their numbers of unseen items."""
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
        """Return the largest number of negatives, up to `n_negatives`, for which `percent` of the users have enough
        unseen items.

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
        """Return a line with the number of users left out and the numbers of negatives that keep them, or None."""
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
        """Return the number of negatives that keeps all users and, if `are_many`, the one that keeps 95 % of them."""
        least, most = self.keeps(100), self.keeps(95)
        if are_many and not most:
            return "no number keeps 95 % of them"
        every = f"n_eval_negatives = {least} keeps all" if least else "no number keeps all"
        return f"{every}, {most} keeps 95 %" if are_many and most > least else every


def _largest(n: int) -> str:
    works = "works for at least half of them"
    return f"{n} is the largest number that {works}" if n else f"no number {works}"
