"""Sample the negatives of held-out users, and count the users with too few unseen items."""

from collections import Counter
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import polars as pl

from bert4rec.dataset.format import EVALUATED
from bert4rec.runtime.arrays import Int32s, Int64s, Integers

SAMPLED_BLOCK_USERS = 4096  # histories in a block; changing it changes the negatives
MAX_ROUNDS = 16  # rounds of rejection sampling before the rest is drawn from a dense table of keys
DENSE_CELLS = 1 << 22  # users × items of that table
UNTRAINED_LOG_WEIGHT = -1e6  # log weight of an item without training positions: it is drawn last
HeldOutCounts: TypeAlias = Counter[tuple[str, Any]]


class SeenItems(NamedTuple):
    """The items, of `n_items`, that each of `n_users` users has seen, as sorted keys: row · n_items + item."""

    keys: Int64s
    n_users: int
    n_items: int

    @classmethod
    def of(cls, histories: pl.DataFrame, n_items: int) -> Self:
        """Return the seen items of the *whole* history of each user (`items`), including held-out items."""
        items = histories["items"]
        rows = np.repeat(np.arange(len(items)), items.list.len().to_numpy())
        keys = rows * n_items + items.explode(empty_as_null=False).to_numpy()
        return cls(np.sort(keys), len(items), n_items)


def draw_negatives(
    seen: SeenItems, cumulated: Integers | None, *, n: int, seed: list[int], rounds: int = MAX_ROUNDS
) -> Int32s:
    """Return `n` distinct unseen items for each user, (users, n), drawn in proportion to the weights of the items.

    `cumulated` [items] are the sums of the weights up to each item; None = equal weights. `seed` is for one block of
    users. Each user must have at least `n` unseen items. An item of weight 0 is drawn only if no other item is left.

    >>> seen = SeenItems.of(pl.DataFrame({"items": [[0, 1]]}), n_items=4)
    >>> draw_negatives(seen, np.cumsum([9, 9, 5, 0]), n=2, seed=[1]).tolist()
    [[2, 3]]
    """
    # Draws with replacement, less those that are seen or already drawn, are distributed as draws without replacement.
    rng, n_items = np.random.default_rng(seed), seen.n_items
    total = n_items if cumulated is None else int(cumulated[-1])
    drawn, filled = np.empty((seen.n_users, n), np.int32), np.zeros(seen.n_users, np.int64)
    before = np.empty(0, np.int64)  # sorted keys of drawn items
    for _ in range(rounds if total else 0):
        open_rows = np.flatnonzero(filled < n)
        if not len(open_rows):
            return drawn
        size = (len(open_rows), n - int(filled.min()))
        items = rng.integers(0, total, size)
        if cumulated is not None:
            items = _reached(cumulated, items.ravel()).reshape(size)
        new = _first_of_each(open_rows[:, None] * n_items + items, seen.keys, before)
        _append(drawn, filled, new, n_items)
        new.sort()
        before = np.insert(before, np.searchsorted(before, new), new)
    if (filled < n).any():
        weights = np.ones(n_items, np.int64) if cumulated is None else np.diff(cumulated, prepend=0)
        _draw_rest(rng, drawn, filled, np.sort(np.concatenate([seen.keys, before])), weights)
    return drawn


def _reached(cumulated: Integers, heights: Int64s) -> Int64s:
    """Return the first index at which `cumulated` is above each of `heights`."""
    in_order, order = _in_order(heights)  # with many items, several times as fast as a search out of order
    places = np.empty_like(heights)
    places[order] = np.searchsorted(cumulated, in_order, side="right")
    return places


def _first_of_each(keys: Int64s, *taken: Int64s) -> Int64s:
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


def _in_order(values: Int64s) -> tuple[Int64s, Int64s]:
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


def _append(drawn: Int32s, filled: Int64s, keys: Int64s, n_items: int) -> None:
    """Append the items of `keys` (sorted by row) to each row of `drawn`; items that do not fit are dropped."""
    rows, items = np.divmod(keys, n_items)
    counts = np.bincount(rows, minlength=len(filled))
    place = filled[rows] + np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    fits = place < drawn.shape[1]
    drawn[rows[fits], place[fits]] = items[fits]
    np.minimum(filled + counts, drawn.shape[1], out=filled)


def _draw_rest(rng: np.random.Generator, drawn: Int32s, filled: Int64s, taken: Int64s, weights: Integers) -> None:
    """Fill the rows that rejection sampling left incomplete: the largest Gumbel keys are draws without replacement."""
    n_items, n = len(weights), drawn.shape[1]
    log_weights = np.where(weights > 0, np.log(np.maximum(weights, 1)), UNTRAINED_LOG_WEIGHT)
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


"""Counts of held-out users: ("users", split); ("repeated_targets", split), users whose target is in their input;
("left_out", split), users without negatives; ("unseen", n), users of any split with n unseen items, or more if n is the
number of negatives."""


def count_held_out(histories: pl.DataFrame, unseen: Int64s, n_negatives: int) -> HeldOutCounts:
    """Return the counts of `histories` with targets; `unseen` [users] are their numbers of unseen items."""
    counts: HeldOutCounts = Counter(("unseen", n) for n in np.minimum(unseen, n_negatives).tolist())
    histories = histories.with_columns(is_left_out=pl.Series(unseen < n_negatives))
    for split in EVALUATED:
        items, place = pl.col("items"), pl.col(split)
        held_out = histories.filter(place >= 0)
        n_input = pl.col("visible").list.get(place) if "visible" in histories.columns else place
        is_repeated = items.list.head(n_input).list.contains(items.list.get(place))
        counts["users", split] = len(held_out)
        counts["repeated_targets", split] = held_out.select(is_repeated.sum()).item()
        counts["left_out", split] = held_out.filter("is_left_out").height
    return counts


def held_out_metadata(counts: HeldOutCounts) -> dict[str, Any]:
    """Return the entries of `metadata.json`."""
    users = {split: counts["users", split] for split in EVALUATED}
    shares = {
        kind: {split: {"users": counts[kind, split], "of": n} for split, n in users.items()}
        for kind in ("repeated_targets", "left_out")
    }
    return {f"{split}_users": n for split, n in users.items()} | shares


def left_out_warning(counts: HeldOutCounts, n_negatives: int) -> str:
    """Return a line with the number of users left out and the numbers of negatives that keep more of them, or ""."""
    unseen = sorted((n, users) for (kind, n), users in counts.items() if kind == "unseen")
    ends = np.cumsum([users for _, users in unseen])
    n_left_out = sum(users for n, users in unseen if n < n_negatives)
    if not n_left_out:
        return ""
    shares: dict[int, int] = {}  # number of negatives → percentage of the users that have as many unseen items
    for percent in (100, 95, 50):
        place = np.searchsorted(ends, ends[-1] * (100 - percent) // 100, side="right")
        shares.setdefault(unseen[place][0], percent)
    keeps = [f"{n:,} keeps {percent} %" for n, percent in shares.items() if 0 < n < n_negatives]
    return (
        f"left out of the ranking among sampled items: {n_left_out:,} of {ends[-1]:,} evaluated users, with fewer than "
        f"{n_negatives:,} unseen items (preprocessing.n_eval_negatives); "
        f"{', '.join(keeps) or 'no smaller number keeps many more'}"
    )
