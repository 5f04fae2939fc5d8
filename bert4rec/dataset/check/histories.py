"""Training histories put together again from their windows, and what the evaluation splits must hold beside them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bert4rec.dataset.check.metadata import Metadata
from bert4rec.dataset.check.rows_in_parts import Array, Bools, Ints, Part, first_true
from bert4rec.dataset.schema import TIMES, table_rows


@dataclass(frozen=True)
class Histories:
    """The training history of each of the users `first` … `first + N - 1`.

    `lengths` [N] int64, 0 for a user without one; `lists`: `items`, `times`, `ratings` of all users end to end.
    """

    first: int
    lengths: Ints
    lists: Mapping[str, Array]

    def rows(self, part: Part) -> Ints:
        """Where the users of the rows of `part` stand in `lengths` [B]."""
        return part.users - self.first

    def select(self, part: Part, name: str) -> Array:
        """The lists `name` of the users of `part`, whose users ascend, end to end."""
        chosen = np.zeros(len(self.lengths), bool)
        chosen[self.rows(part)] = True
        return self.lists[name] if chosen.all() else self.lists[name][np.repeat(chosen, self.lengths)]


@dataclass(frozen=True)
class Targets:
    """The targets of an evaluation split: `given` [N] says which users have one, `items` [N] which it is (else 0).

    `times` [N]: when that was, where it is known.
    """

    given: Bools
    items: Ints
    times: Ints | None = None


def training_histories(train: Part, metadata: Metadata, *, first: int, n_users: int) -> Histories:
    """The histories of the users from `first` on, out of all windows of theirs.

    Raises `DataError` for a window that does not stand where it must, or holds another element where it overlaps.
    """
    overlap = metadata.max_len - metadata.step
    begins = np.diff(train.users, prepend=-1) > 0  # windows with which a user begins
    lengths = _check_windows(train, begins, metadata)
    later = train.starts[~begins]
    if overlap and len(later):
        _check_overlaps(train, later, overlap)
    elif metadata.has_times:
        times = train.lists["times"]
        if (wrong := first_true(times[later] < times[later - 1])) is not None:
            raise train.refusal_at(int(later[wrong]), "times", "earlier than the end of the window before")
    new = np.ones(len(train.lists["items"]), bool)
    new[(later[:, None] + np.arange(overlap)).ravel()] = False
    whole = np.zeros(n_users, np.int64)
    whole[train.users[begins] - first] = lengths
    return Histories(first, whole, {name: values[new] for name, values in train.lists.items()})


def _check_overlaps(train: Part, later: Ints, overlap: int) -> None:
    """The windows that begin at `later`, behind the end of the one before, repeat its last `overlap` elements."""
    for name, values in train.lists.items():
        spans = sliding_window_view(values, overlap)
        if (wrong := first_true((spans[later] != spans[later - overlap]).ravel())) is not None:
            row, place = divmod(wrong, overlap)
            position = int(later[row]) + place
            what = f"the window before has {values[position - overlap]} for the same position"
            raise train.refusal_at(position, name, what)


def _check_windows(train: Part, begins: Bools, metadata: Metadata) -> Ints:
    """The length of each history [users of `train`], from its first window and the number of its windows."""
    user = np.cumsum(begins) - 1
    counts = np.bincount(user)
    starts = np.flatnonzero(begins)
    head = train.lengths[begins]
    alone = counts == 1
    limit = metadata.max_len
    wrong = first_true((head < 1) | (head > limit) | (~alone & (head + metadata.step <= limit)))
    if wrong is not None:
        least = 1 if alone[wrong] else limit - metadata.step + 1
        what = f"the first of {counts[wrong]} windows has {head[wrong]} items, it must have {least} to {limit}"
        raise train.refusal(int(starts[wrong]), what)
    wrong = first_true(~begins & (train.lengths != limit))
    if wrong is not None:
        what = f"a later window has {train.lengths[wrong]} items, not max_len = {limit}"
        raise train.refusal(wrong, what)
    return head + (counts - 1) * metadata.step


def check_validation(part: Part, histories: Histories) -> Targets:
    """The targets of validation. Raises `DataError` for a history that is not the user's training history."""
    _check_lengths(part, histories, np.zeros(len(part), np.int64))
    _check_equal(part, histories, np.ones(len(part.lists["items"]), bool))
    return _targets(part, histories)


def check_test(part: Part, histories: Histories, validation: Targets) -> Targets:
    """The targets of the test.

    Raises `DataError` for a history that is not the training history, behind which stands the validation target of a
    user who has one.
    """
    rows = histories.rows(part)
    validated = validation.given[rows]
    _check_lengths(part, histories, validated.astype(np.int64))
    last = part.ends[validated] - 1
    trained = np.ones(len(part.lists["items"]), bool)
    trained[last] = False
    _check_equal(part, histories, trained)
    for name, targets, what in (
        ("items", validation.items, "target is"),
        (TIMES, validation.times, "target's time is"),
    ):
        if targets is None:
            continue
        expected = targets[rows[validated]]
        if (wrong := first_true(part.lists[name][last] != expected)) is not None:
            raise part.refusal_at(int(last[wrong]), name, f"the validation {what} {expected[wrong]}")
    return _targets(part, histories)


def _check_lengths(part: Part, histories: Histories, extra: Ints) -> None:
    trained = histories.lengths[histories.rows(part)]
    if (row := first_true(trained == 0)) is not None:
        raise part.refusal(row, "this user has no training window")
    if (row := first_true(part.lengths != trained + extra)) is not None:
        beside = " and a validation target" if extra[row] else ""
        what = f"has {part.lengths[row]} items before the target, train {trained[row]} positions of this user{beside}"
        raise part.refusal(row, what)


def _check_equal(part: Part, histories: Histories, trained: Bools) -> None:
    """The elements where `trained` [total] is true are those of the training histories."""
    for name, values in part.lists.items():
        trained_on = histories.select(part, name)
        if (wrong := first_true(values[trained] != trained_on)) is not None:
            place = int(np.flatnonzero(trained)[wrong])
            raise part.refusal_at(place, name, f"the training history has {trained_on[wrong]} there")


def _targets(part: Part, histories: Histories) -> Targets:
    def of_users(values: Array) -> Array:
        found = np.zeros(len(histories.lengths), values.dtype)
        found[histories.rows(part)] = values
        return found

    times = None if part.target_times is None else of_users(part.target_times)
    return Targets(of_users(np.ones(len(part), bool)), of_users(part.targets.astype(np.int64)), times)


def check_unseen(
    part: Part, negatives: Mapping[str, Array], histories: Histories, targets: tuple[Targets, Targets], n_items: int
) -> None:
    """Raises `DataError` for a row of `part` with a negative that its user has taken, in training or as a target.

    `negatives`: name → [D, n], each row sorted.
    """
    n_rows = table_rows(n_items)
    seen = _taken(part, histories, targets, n_rows)
    for name, values in negatives.items():
        drawn = _keys(part.drawn[:, None], values, n_rows).ravel()
        for keys in seen:
            place = np.searchsorted(drawn, keys)
            found = drawn[np.minimum(place, len(drawn) - 1)] == keys if len(drawn) else np.zeros(0, bool)
            if (wrong := first_true(found)) is not None:
                row, item = divmod(int(keys[wrong]), n_rows)
                raise part.refusal(row, f"{name} has item {item}, which this user has taken")


def check_left_out(
    part: Part, histories: Histories, targets: tuple[Targets, Targets], hidden: Ints, metadata: Metadata
) -> None:
    """Raises `DataError` for a row of `part` without negatives whose user has enough unseen items for them.

    `hidden` [N]: interactions of each user that are in no split; each of them may be an item more that was seen.
    """
    rows = np.ones(len(part), bool)
    rows[part.drawn] = False
    if not rows.any():
        return
    n_rows = table_rows(metadata.n_items)
    taken = np.unique(np.concatenate(_taken(part, histories, targets, n_rows)))
    n_taken = np.bincount(taken // n_rows, minlength=len(part)) + hidden[histories.rows(part)]
    unseen, enough = metadata.n_items - n_taken, metadata.n_negatives
    if (row := first_true(rows & (unseen >= enough))) is not None:
        what = f"has no negatives, though its user has {unseen[row]} or more unseen items, enough for {enough}"
        raise part.refusal(row, what)


def check_drawn_alike(validation: Part, test: Part) -> None:
    """Raises `DataError` for a user who has negatives in one of the splits and none in the other."""
    _, in_validation, in_test = np.intersect1d(validation.users, test.users, assume_unique=True, return_indices=True)
    differ = np.isin(in_validation, validation.drawn) != np.isin(in_test, test.drawn)
    if (wrong := first_true(differ)) is not None:
        raise test.refusal(int(in_test[wrong]), "has negatives in one of validation and test only")


def _taken(part: Part, histories: Histories, targets: tuple[Targets, Targets], n_rows: int) -> list[Ints]:
    """The items that the users of `part` have taken, as keys: in training, and as target of the one and other split."""
    users = histories.rows(part)
    taken = [_keys(np.repeat(np.arange(len(part)), histories.lengths[users]), histories.select(part, "items"), n_rows)]
    for split in targets:
        given = np.flatnonzero(split.given[users])
        taken.append(_keys(given, split.items[users[given]], n_rows))
    return taken


def _keys(rows: Ints, items: Array, n_rows: int) -> Ints:
    """One number for each pair of row and item, in the order of the pairs."""
    return rows * n_rows + items.astype(np.int64)
