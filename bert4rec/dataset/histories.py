"""The rows of a dataset: memory-mapped histories, their training windows and pairs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from bert4rec.dataset.columns import PREPARE_AGAIN, Columns, SmallPickle
from bert4rec.dataset.format import (
    EVENTS,
    HISTORIES,
    NO_ITEM,
    NO_TARGET,
    RATINGS,
    TEST_TIED,
    TIMES,
)
from bert4rec.dataset.hidden import Copies, HiddenEvents, copies
from bert4rec.runtime.arrays import Array, Bools, Float32s, Int32s, Int64s
from bert4rec.runtime.errors import DataError

STRIDE = 16  # histories for each number that is kept in memory (half a byte a history); a look-up reads them all


@dataclass(frozen=True)
class Rows:
    """Some rows of a split as ragged arrays.

    `items` [total] int32 are the concatenated items of the rows, `lengths` [B] int64 the number of items of each row.
    Evaluation splits also have `targets` [B], `users` [B] and `negatives[protocol]` [B, n]; the negatives of a user who
    has seen too much of the catalogue are all NO_ITEM, and n is 0 if no row has negatives. If the dataset is read with
    times, `times` [total] and `target_times` [B] are in seconds. If it has kinds of events, `events` [total] are their
    numbers. If events before targets are hidden, `n_visible` [total] says for each position of a training window how
    many of the window's first positions are input when it is predicted. `weights` [total] are those of the positions in
    the loss; None if all are 1.
    """

    items: Int32s
    lengths: Int64s
    targets: Int32s | None = None
    negatives: Mapping[str, Int32s] | None = None
    users: Int32s | None = None
    times: Int64s | None = None
    target_times: Int64s | None = None
    events: Array | None = None
    n_visible: Int64s | None = None
    weights: Float32s | None = None

    @property
    def numbers(self) -> Int64s:
        """Return the number of the row of each position [total]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def part(self, is_kept: Bools) -> Self:
        """Return the rows with some of their positions [total] alone, those that are kept."""
        values = {name: getattr(self, name) for name in ("items", TIMES, EVENTS, "n_visible", "weights")}
        kept = {name: array[is_kept] for name, array in values.items() if array is not None}
        return replace(self, **kept, lengths=np.bincount(self.numbers[is_kept], minlength=len(self.lengths)))

    def n_of(self, items: Int32s) -> Int64s:
        """Return how often each of `items` [B] is in the same one of the rows [B]."""
        return np.bincount(self.numbers[self.items == items[self.numbers]], minlength=len(items))

    def are_repeated(self) -> Bools:
        """Return for each target [B] whether its user has seen it before."""
        assert self.targets is not None, "an evaluation split has targets"
        return self.n_of(self.targets) > 0

    def are_left_out(self, protocol: str) -> Bools:
        """Return for each user [B] whether negatives for `protocol` are missing."""
        assert self.negatives is not None, "an evaluation split has negatives"
        return (self.negatives[protocol] == NO_ITEM).all(axis=1)


class Histories(SmallPickle):
    """The histories of a dataset folder: one row per user, users ascending, all interactions, oldest first.

    Item ids are checked to be below `n_items` when they are read. `read` includes the times only `with_times`. `kinds`
    of events are by number, () if there are none; those with the numbers `target_kinds` are predicted, () = all.
    `hidden` are the events before a target that are no input for its prediction. `fingerprint`: that of the dataset, ""
    if it is not compared. `parts`: the names of the files to read; None for all.
    """

    def __init__(
        self, folder: Path, n_items: int, *, with_times: bool = False, kinds: Sequence[str] = (),
        target_kinds: Sequence[int] = (), hidden: HiddenEvents | None = None, fingerprint: str = "",
        parts: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._n_items, self.with_times = folder / HISTORIES, n_items, with_times
        self.kinds, self.target_kinds, self.hidden = kinds, target_kinds, hidden
        self.fingerprint, self.parts = fingerprint, parts
        self._columns = Columns(self._folder, fingerprint, parts)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def files(self) -> list[str]:
        """Return the name of the file of each part."""
        return self._columns.files

    @property
    def has_times(self) -> bool:
        """Return whether the interactions have times."""
        return TIMES in self._columns.names

    @property
    def has_ratings(self) -> bool:
        """Return whether the interactions have ratings."""
        return RATINGS in self._columns.names

    def test_tied_at(self, rows: Int64s) -> Bools | None:
        """Return whether the test targets [B] of the histories at `rows` [B] are tied; None where the times tell it."""
        return self._columns.numbers_at(TEST_TIED, rows) > 0 if TEST_TIED in self._columns.names else None

    @cached_property
    def users(self) -> Int32s:
        """Return the user of each row [N]."""
        return self._columns.numbers("user")

    def user_rows(self, users: Int64s) -> tuple[Int64s, Bools]:
        """Return for each of `users` [B] the row of the history, and whether there is one; else it is another user's.

        Only the files with these users are opened.
        """
        return self._columns.user_rows(users)

    @property
    def lengths(self) -> Int64s:
        """Return the number of interactions of each row [N]."""
        return self._columns.lengths("items")

    def lengths_at(self, rows: Int64s) -> Int64s:
        """Return the number of interactions [B] of the histories at `rows` [B]."""
        return self._columns.lengths_at("items", rows)

    def users_at(self, rows: Int64s) -> Int32s:
        """Return the users [B] of the histories at `rows` [B]."""
        return self._columns.numbers_at("user", rows)

    def n_train_at(self, rows: Int64s, *, with_target: bool = False) -> Int64s:
        """Return the number of training interactions [B] of the histories at `rows` [B], without a check.

        `with_target`: 0 for a history whose training part has no target.
        """
        n_train = self._columns.numbers_at("n_train", rows).astype(np.int64)
        return n_train * self._have_target_at(rows) if with_target and self.target_kinds else n_train

    def n_train_parts(self, *, with_target: bool = False) -> Iterator[Int64s]:
        """Yield what `n_train_at` returns of all rows in order, some at a time. Raises `DataError`."""
        first = 0
        parts = self._columns.number_parts("n_train"), self._columns.length_parts("items")
        for numbers, lengths in zip(*parts, strict=True):
            n_train = numbers.astype(np.int64)
            self._refuse("n_train", (n_train < 0) | (n_train > lengths), first=first)
            rows = np.arange(first, first := first + len(n_train))
            yield n_train * self._have_target_at(rows) if with_target and self.target_kinds else n_train

    @property
    def n_train(self) -> Int64s:
        """Return the number of training interactions of each row [N]. Raises `DataError`."""
        return np.concatenate([*self.n_train_parts()])

    def _have_target_at(self, rows: Int64s) -> Array:
        """Return 1 for each history at `rows` [B] whose training part has a target, else 0."""
        return self._have_target[rows >> 3] >> (rows & 7).astype(np.uint8) & 1

    @cached_property
    def _have_target(self) -> Array:
        """Return a bit for each history, whether its training part has a target, in bytes."""
        counts = self._columns.counts(EVENTS, self.target_kinds, self.n_train_parts())
        return np.packbits(np.concatenate([n_targets > 0 for n_targets in counts]), bitorder="little")

    def target_parts(self, split: str) -> Iterator[Int32s]:
        """Yield the positions of the targets of an evaluation split, or `NO_TARGET`, by part. Raises `DataError`."""
        first = 0
        for places, lengths in zip(self._columns.number_parts(split), self._columns.length_parts("items"), strict=True):
            self._refuse(split, (places != NO_TARGET) & ((places < 1) | (places >= lengths)), first=first)
            first += len(places)
            yield places

    def target_part(self, split: str, number: int) -> tuple[int, Int32s]:
        """Return the first row of a part, and what `target_parts` yields of it, without a check."""
        return self._columns.part(split, number)

    def targets(self, split: str) -> Int64s:
        """Return the position of each row's target [N] of an evaluation split, or `NO_TARGET`. Raises `DataError`."""
        return np.concatenate([*self.target_parts(split)]).astype(np.int64)

    def read(self, rows: Int64s, starts: Int64s, stops: Int64s) -> Rows:
        """Return the interactions `starts` to `stops` [B] of the histories at `rows` [B].

        Raises `DataError` for an id that is not in the item table: TorchRec would silently accept it.
        """
        items = self.items(self._columns.slices("items", rows, starts, stops))
        times = self.times(rows, starts, stops) if self.with_times else None
        events = self._columns.slices(EVENTS, rows, starts, stops) if self.kinds else None
        return Rows(items, stops - starts, times=times, events=events)

    def n_visible(self, rows: Int64s, starts: Int64s, stops: Int64s) -> Int64s | None:
        """Return for each interaction [total] that `read` returns how many of the first ones are its input.

        None if all before it are.
        """
        if self.hidden is None:
            return None
        times, events = (self._columns.slices(name, rows, starts, stops) for name in (TIMES, EVENTS))
        return self.hidden.n_visible(times, events, stops - starts)

    def copies(self, rows: Int64s, places: Int64s) -> Copies | None:
        """Return what the targets [B] at `places` [B] in the histories at `rows` [B] repeat.

        None without times or target kinds.
        """
        if not self.has_times or not self.target_kinds:
            return None
        starts, lengths = np.zeros_like(places), places + 1
        items, times, events = (self._columns.slices(name, rows, starts, lengths) for name in ("items", TIMES, EVENTS))
        is_target, n_visible = np.isin(events, self.target_kinds), self.n_visible(rows, starts, lengths)
        return copies(items, times, is_target, lengths, lengths.cumsum() - 1, n_visible)

    def all_times(self) -> Iterator[Int64s]:
        """Yield the seconds of all interactions, part by part."""
        return self._columns.values(TIMES)

    def times(self, rows: Int64s, starts: Int64s, stops: Int64s) -> Int64s:
        """Return the seconds [total] of the interactions that `read` returns."""
        return self._columns.slices(TIMES, rows, starts, stops)

    def items_at(self, rows: Int64s, places: Int64s) -> Int32s:
        """Return the item [B] at each of `places` [B] in the histories at `rows` [B]. Raises `DataError` as `read`."""
        return self.items(self._columns.elements("items", rows, places))

    def values_at(self, name: str, rows: Int64s, places: Int64s) -> Array:
        """Return the `TIMES`, `EVENTS` or `RATINGS` [B] at `places` [B] in the histories at `rows` [B]."""
        return self._columns.elements(name, rows, places)

    def items(self, ids: Int32s, *, place: str = "") -> Int32s:
        """Return `ids`; raise `DataError` if one is no item, naming the column `place` (default: items)."""
        if not len(ids) or (ids.min() >= 0 and ids.max() < self._n_items):
            return ids
        wrong = ids[(ids < 0) | (ids >= self._n_items)][0]
        raise DataError(
            f"{place or f'{self._folder}: column items'} has the id {wrong}, outside 0…{self._n_items - 1}; "
            f"`bert4rec check {self._folder.parent}` checks every id; {PREPARE_AGAIN}"
        )

    def _refuse(self, name: str, are_wrong: Bools, *, first: int = 0) -> None:
        if are_wrong.any():
            row = first + int(are_wrong.argmax())
            raise DataError(f"{self._folder}: column {name} is outside the history of row {row}; {PREPARE_AGAIN}")


class _Entries(SmallPickle):
    """The entries, such as windows, that the training parts of `histories` have, numbered history by history.

    The number of the first entry is in memory for one history in `STRIDE`; a look-up counts those of the others.
    """

    _with_target = False  # whether a history without a target has no entries

    def __init__(self, histories: Histories) -> None:
        self.histories = histories

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def _n_entries(self, n_train: Int64s) -> Int64s:
        """Return the number of entries [n] of histories with `n_train` [n] training interactions."""
        return n_train

    @cached_property
    def _firsts(self) -> Int64s:
        """Return the number of the first entry of each `STRIDE`-th history, and the number of all entries."""
        parts, row, n = [], 0, 0
        for n_train in self.histories.n_train_parts(with_target=self._with_target):
            ends = n + np.cumsum(np.append(0, self._n_entries(n_train)))
            parts.append(ends[:-1][-row % STRIDE :: STRIDE].copy())  # a view would keep all of them
            row, n = row + len(n_train), int(ends[-1])
        return np.concatenate([*parts, [n]])

    def _find(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return for the entries with the `numbers` [B]: row, training interactions of its history, and later entries.

        A whole stride is read for each entry.
        """
        strides = np.unique(np.searchsorted(self._firsts, numbers, side="right") - 1)
        rows = (strides[:, None] * STRIDE + np.arange(STRIDE)).ravel()
        rows = np.minimum(rows, len(self.histories) - 1)
        n_train = self.histories.n_train_at(rows, with_target=self._with_target)
        n_before = self._n_entries(n_train).reshape(-1, STRIDE).cumsum(axis=1)
        ends = (self._firsts[strides][:, None] + n_before).ravel()  # these never descend
        at = np.searchsorted(ends, numbers, side="right")
        return rows[at], n_train[at], ends[at] - 1 - numbers


class TrainingWindows(_Entries):
    """The training parts of `histories` in windows of at most `max_len` items, whose ends are `step` items apart.

    The last window of a history ends at the end of its training part, so every interaction is in a window; windows are
    ordered by time. A history without a target has no window. Raises `ValueError` if `step` is not from 1 to `max_len`.
    """

    _with_target = True
    first_number = 0  # of these windows among those of all hosts, if each has its own

    def __init__(self, histories: Histories, *, max_len: int, step: int) -> None:
        if not 1 <= step <= max_len:
            raise ValueError(f"step = {step} must be from 1 to max_len = {max_len}")
        super().__init__(histories)
        self._max_len, self._step = max_len, step

    @cached_property
    def n_items(self) -> int:
        """Return the number of items of all windows; one in two windows counts twice."""
        n_items = n_histories = 0
        for n_train in self.histories.n_train_parts(with_target=True):
            n_items, n_histories = n_items + int(n_train.sum()), n_histories + int((n_train > 0).sum())
        n_overlaps = len(self) - n_histories
        return n_items + n_overlaps * (self._max_len - self._step)

    def lengths(self, indices: Int64s) -> Int64s:
        """Return the number of items [B] of the windows at `indices` [B]."""
        _, starts, stops = self._bounds(indices)
        return stops - starts

    def read(self, indices: Int64s) -> Rows:
        """Return the windows at `indices` [B], in that order. Raises `DataError` for an id that is no item."""
        bounds = self._bounds(indices)
        return replace(self.histories.read(*bounds), n_visible=self.histories.n_visible(*bounds))

    def of_last(self, n_last: Int64s) -> tuple[Int64s, Int64s]:
        """Return the windows with some of the `n_last` [N] last training interactions of each history.

        These are their numbers [B], and how many of the last items of each are among those [B].
        """
        n_train = np.concatenate([*self.histories.n_train_parts(with_target=True)])
        n = self._n_entries(n_train)
        wanted = np.minimum(n, -(-n_last // self._step))
        stops, n_before = np.cumsum(n), np.cumsum(wanted) - wanted
        numbers = np.repeat(stops - wanted - n_before, wanted) + np.arange(wanted.sum())
        n_later = np.repeat(stops - 1, wanted) - numbers
        return numbers, np.minimum(self._max_len, np.repeat(n_last, wanted) - n_later * self._step)

    def _n_entries(self, n_train: Int64s) -> Int64s:
        n_more = np.maximum(0, -(-(n_train - self._max_len) // self._step))
        return np.where(n_train > 0, 1 + n_more, 0)

    def _bounds(self, indices: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the row of each window [B], and its start and stop in the history."""
        rows, n_train, n_later = self._find(indices)
        stops = n_train - n_later * self._step
        return rows, np.maximum(0, stops - self._max_len), stops


class TrainingPairs(_Entries):
    """The pairs of a user and an item in the training parts of `histories`, in their order."""

    def events(self, numbers: Int64s) -> Array:
        """Return the numbers of the kinds of events [B] of the pairs with the `numbers` [B]."""
        return self.histories.values_at(EVENTS, *self._places(numbers))

    def read(self, numbers: Int64s, *, with_ratings: bool = False) -> tuple[Int32s, Int32s, Float32s | None]:
        """Return users, items and, `with_ratings`, ratings [B] of the pairs with the `numbers` [B].

        Raises `DataError` for an id that is no item.
        """
        rows, places = self._places(numbers)
        ratings = self.histories.values_at(RATINGS, rows, places) if with_ratings else None
        return self.histories.users_at(rows), self.histories.items_at(rows, places), ratings

    def _places(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return the row of each pair [B], and its place in the history."""
        rows, n_train, n_later = self._find(numbers)
        return rows, n_train - 1 - n_later
