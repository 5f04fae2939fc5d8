"""The users of a dataset who are held out for validation or test: their inputs, targets and negatives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bert4rec.dataset.columns import PREPARE_AGAIN, Columns, by_number
from bert4rec.dataset.format import EVENTS, NEGATIVE_ITEMS, NO_ITEM, NO_TARGET, PROTOCOLS, TEST, TIMES
from bert4rec.dataset.hidden import Copies
from bert4rec.dataset.histories import Histories, Rows
from bert4rec.runtime.arrays import Array, Bools, Int32s, Int64s
from bert4rec.runtime.errors import DataError

MEASURED_AT_ONCE = 8192  # histories that are in memory while their inputs are measured
TARGET_STREAM = 8  # of random numbers; lower ones are those of a preparation


@dataclass(frozen=True)
class HeldOut:
    """The facts of all users of a split that a report needs, in memory, as `EvaluationSplit` has them."""

    users: Int32s
    all_targets: Int32s
    all_lengths: Int64s
    n_rows: Int64s
    last_items: Int32s
    last_times: Int64s | None
    are_tied: Bools | None
    copies: Copies | None

    def __len__(self) -> int:
        return len(self.users)

    def users_at(self, indices: Int64s) -> Int32s:
        """Return the users [B] of the rows at `indices` [B]."""
        return self.users[indices]

    def targets(self, indices: Int64s) -> Int32s:
        """Return the targets [B] of the rows at `indices` [B]."""
        return self.all_targets[indices]

    def lengths(self, indices: Int64s) -> Int64s:
        """Return the number of items [B] of the input in the histories at `indices` [B]."""
        return self.all_lengths[indices]


class EvaluationSplit:
    """The users of the evaluation split `name`, ascending: histories before the target, targets and negatives.

    Memory holds one number for each record batch of the histories; the users of a batch are found there again.
    """

    def __init__(self, name: str, histories: Histories, folder: Path) -> None:
        self.name, self._histories = name, histories
        self._folder = folder / NEGATIVE_ITEMS
        self._negatives = Columns(self._folder, histories.fingerprint, histories.parts)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def everything(self) -> "EvaluationSplit | HeldOut":
        """Return what is known of all users, to be asked by one process alone."""
        return self

    def load(self) -> None:
        """Let rank zero know of all users what reports tell of them: every process calls this before `everything`."""

    @property
    def n_by_file(self) -> dict[str, int]:
        """Return the number of users in each file of the histories."""
        counts: dict[str, int] = {}
        for name, n in zip(self._histories.files, np.diff(self._firsts).tolist(), strict=True):
            counts[name] = counts.get(name, 0) + n
        return counts

    @property
    def users(self) -> Int32s:
        """Return the user of each row [N]."""
        return self.users_at(np.arange(len(self)))

    def users_at(self, indices: Int64s) -> Int32s:
        """Return the users [B] of the rows at `indices` [B]."""
        return self._histories.users_at(self._find(indices)[0])

    @cached_property
    def users_of_several(self) -> Int32s | None:
        """Return the user of each row [N] if a user may have several, else None."""
        return None

    @property
    def last_times(self) -> Int64s | None:
        """Return the time of the last item of each input [N], in seconds; None if the dataset has no times."""
        if not self._histories.has_times:
            return None
        rows, places = self._all
        return self._histories.values_at(TIMES, rows, self._lengths(rows, places) - 1)

    @property
    def copies(self) -> Copies | None:
        """Return what the targets [N] repeat; None without times or kinds of events that are predicted."""
        parts = [self._histories.copies(*some) for some in _parts(*self._all)]
        found = [part for part in parts if part is not None]
        return Copies(*map(np.concatenate, zip(*found, strict=True))) if found else None

    @property
    def n_rows(self) -> Int64s:
        """Return the number of all rows of each user [N], also from the target on."""
        return self._histories.lengths_at(self._all[0])

    @property
    def last_items(self) -> Int32s:
        """Return the item before each target [N]."""
        rows, places = self._all
        return self._histories.items_at(rows, places - 1)

    @property
    def are_tied(self) -> Bools | None:
        """Return whether each target [N] has the time of the item before it, so that the file alone orders them.

        None if it is unknown: without times, and of the validation if its times, in whole seconds, do not tell; and if
        events before targets are hidden, which those of the target's time are.
        """
        if self._histories.hidden is not None:
            return None
        rows, places = self._all
        stored = self._histories.test_tied_at(rows)
        if stored is not None or not self._histories.has_times:
            return stored if self.name == TEST else None
        times = (self._histories.values_at(TIMES, rows, places - before) for before in (0, 1))
        return np.equal(*times)

    def lengths(self, indices: Int64s) -> Int64s:
        """Return the number of items [B] of the input in the histories at `indices` [B]."""
        return self._lengths(*self._find(indices))

    def _lengths(self, rows: Int64s, places: Int64s) -> Int64s:
        """Return how many interactions [B] are input for the prediction of those at `places` [B], some at a time."""
        return np.concatenate([np.empty(0, np.int64), *(self._n_visible(*some) for some in _parts(rows, places))])

    def _n_visible(self, rows: Int64s, places: Int64s) -> Int64s:
        """Return how many interactions [B] are input for the prediction of those at `places` [B]."""
        n_visible = self._histories.n_visible(rows, np.zeros_like(places), places + 1)
        return places if n_visible is None else n_visible[(places + 1).cumsum() - 1]

    def targets(self, indices: Int64s) -> Int32s:
        """Return the targets [B] of the rows at `indices` [B]. Raises `DataError` for an id that is no item."""
        return self._histories.items_at(*self._find(indices))

    def before(self, indices: Int64s) -> Rows:
        """Return all items before the targets of the rows at `indices` [B], also those that are no input."""
        rows, places = self._find(indices)
        return self._histories.read(rows, np.zeros_like(places), places)

    def read(self, indices: Int64s) -> Rows:
        """Return the rows at `indices` [B], in that order. Raises `DataError` for an id that is no item."""
        histories, (rows, places) = self._histories, self._find(indices)
        before = histories.read(rows, np.zeros_like(places), self._n_visible(rows, places))
        users = histories.users_at(rows)
        at, _ = self._negatives.user_rows(users.astype(np.int64))
        return replace(
            before,
            targets=histories.items_at(rows, places),
            negatives={name: self._equally_many(f"{name}_negatives", at) for name in PROTOCOLS},
            users=users,
            target_times=histories.values_at(TIMES, rows, places) if histories.with_times else None,
        )

    def _equally_many(self, name: str, rows: Int64s) -> Int32s:
        """Return a column of lists as [B, n], an empty list as n NO_ITEM. Raises `DataError` for unequal lengths."""
        lengths = self._negatives.lengths_at(name, rows)
        n, has_some = int(lengths.max(initial=0)), lengths > 0
        values = self._negatives.slices(name, rows, np.zeros_like(lengths), lengths)
        if (lengths[has_some] != n).any():
            raise DataError(f"{self._folder}: column {name} has lists of different lengths; {PREPARE_AGAIN}")
        padded = np.full((len(rows), n), NO_ITEM, np.int32)
        ids = self._histories.items(values, place=f"{self._folder}: column {name}")
        padded[has_some] = ids.reshape(has_some.sum(), n)
        return padded

    @property
    def _all(self) -> tuple[Int64s, Int64s]:
        return self._find(np.arange(len(self)))

    def _find(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Return the rows [B] of held-out users in the histories, and the positions [B] of their targets there."""
        rows, places = np.empty(len(indices), np.int64), np.empty(len(indices), np.int64)
        for part, at in by_number(np.searchsorted(self._firsts, indices, side="right") - 1):
            first, targets = self._histories.target_part(self.name, part)
            held_out = np.flatnonzero(targets != NO_TARGET)[indices[at] - self._firsts[part]]
            rows[at], places[at] = first + held_out, targets[held_out]
        return rows, places

    @cached_property
    def _firsts(self) -> Int64s:
        """Return the number of held-out users before each part of the histories, and of all."""
        counts = (int((targets != NO_TARGET).sum()) for targets in self._histories.target_parts(self.name))
        return np.cumsum([0, *counts])


class ChosenTargets(EvaluationSplit):
    """Read other targets than those of the dataset: at ascending `places` [N] of the histories in `rows` [N]."""

    def __init__(self, name: str, histories: Histories, folder: Path, rows: Int64s, places: Int64s) -> None:
        super().__init__(name, histories, folder)
        self._rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def users_of_several(self) -> Int32s | None:
        """Return the user of each row [N] if one has several, else None; it is asked for by each ranking."""
        return self.users if (np.diff(self._rows) == 0).any() else None

    @property
    def are_tied(self) -> Bools | None:
        """Return None: whole seconds, which a dataset has, do not tell."""
        return None

    def _find(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        return self._rows[indices], self._places[indices]


def later_targets(histories: Histories, folder: Path, *, n: int, seed: int) -> ChosenTargets:
    """Return up to `n` interactions after the training parts, drawn by `seed`."""
    firsts = np.maximum(1, histories.n_train)
    n_later = np.maximum(0, histories.lengths - firsts)
    total = int(n_later.sum())
    drawn = np.random.default_rng(seed).choice(total, min(n, total), replace=False, shuffle=False)
    return _chosen(histories, folder, firsts, n_later, np.sort(drawn))


def targets_from(histories: Histories, folder: Path, which: str, *, instant: int, seed: int) -> ChosenTargets:
    """Return interactions from an `instant` (seconds) on, as in Gusak et al., "Time to Split" (2025).

    `which` is "last" or "random" for one of each user, drawn by `seed`, or "successive" for all. The first interaction
    of a user is never among them. Users need no interaction before the instant.
    """
    firsts = np.maximum(1, _n_before(histories, instant))
    n_later = np.maximum(0, histories.lengths - firsts)
    if which != "successive":
        draw = np.random.default_rng([seed, TARGET_STREAM]).random(len(n_later))
        skipped = n_later - 1 if which == "last" else (draw * n_later).astype(np.int64)
        firsts, n_later = firsts + np.maximum(0, skipped), np.minimum(n_later, 1)
    return _chosen(histories, folder, firsts, n_later, np.arange(n_later.sum()))


def _n_before(histories: Histories, instant: int) -> Int64s:
    """Return how many interactions of each history [N] are before an `instant`; they are in order of time."""
    most = histories.lengths
    least = np.zeros_like(most)
    while len(rows := np.flatnonzero(least < most)):  # bisection, in all histories at once
        middle = (least[rows] + most[rows]) // 2
        is_before = histories.values_at(TIMES, rows, middle) < instant
        least[rows[is_before]] = middle[is_before] + 1
        most[rows[~is_before]] = middle[~is_before]
    return least


def _chosen(histories: Histories, folder: Path, firsts: Int64s, n_of_each: Int64s, numbers: Int64s) -> ChosenTargets:
    """Return the targets with ascending `numbers` among `n_of_each` [H] of the histories, from places `firsts` [H]."""
    ends = np.cumsum(n_of_each)
    rows = np.searchsorted(ends, numbers, side="right")
    return ChosenTargets(TEST, histories, folder, rows, firsts[rows] + numbers - (ends - n_of_each)[rows])


def _parts(rows: Int64s, places: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield `rows` and `places`, some at a time: whole histories of all would not fit into memory."""
    for first in range(0, len(rows), MEASURED_AT_ONCE):
        yield rows[first : first + MEASURED_AT_ONCE], places[first : first + MEASURED_AT_ONCE]


def joined(parts: Sequence[Rows], order: Int64s) -> Rows:
    """Return the rows of all `parts` of an evaluation split, those at `order` [B] among them."""
    lengths = np.concatenate([rows.lengths for rows in parts])
    firsts, n = (lengths.cumsum() - lengths)[order], lengths[order]
    at = np.arange(n.sum()) + np.repeat(firsts - (n.cumsum() - n), n)

    def gathered(name: str, indices: Int64s) -> Array | None:
        values = [getattr(rows, name) for rows in parts]
        return None if values[0] is None else np.concatenate(values)[indices]

    def padded(name: str) -> Int32s:
        negatives = [rows.negatives[name] for rows in parts if rows.negatives is not None]
        most = max(values.shape[1] for values in negatives)
        pads = (np.full((len(values), most - values.shape[1]), NO_ITEM, np.int32) for values in negatives)
        return np.concatenate([np.hstack(pair) for pair in zip(negatives, pads, strict=True)])[order]

    by_position = {name: gathered(name, at) for name in ("items", TIMES, EVENTS)}
    by_row = {name: gathered(name, order) for name in ("targets", "users", "target_times")}
    negatives = None if parts[0].negatives is None else {name: padded(name) for name in parts[0].negatives}
    return Rows(lengths=n, negatives=negatives, **by_position, **by_row)  # type: ignore[arg-type]
