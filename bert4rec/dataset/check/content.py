"""The three splits side by side, user by user, against each other and against the tables."""

from typing import NamedTuple

import numpy as np

from bert4rec.dataset.check.histories import (
    Histories,
    Targets,
    check_drawn_alike,
    check_left_out,
    check_test,
    check_unseen,
    check_validation,
    training_histories,
)
from bert4rec.dataset.check.metadata import REMAKE, Metadata
from bert4rec.dataset.check.reader import SplitReader
from bert4rec.dataset.check.rows_in_parts import Bools, Ints, Part, first_true, refusal
from bert4rec.dataset.check.tables import TableReader, check_originals
from bert4rec.dataset.check.tally import Tally, add, check_found, check_items
from bert4rec.dataset.check.windows import check_negatives, check_rows
from bert4rec.dataset.schema import ITEMS, MIN_EVALUATED, ORACLE, SPLITS, USERS
from bert4rec.runtime.console import NO_BAR, ProgressBar
from bert4rec.runtime.errors import DataError

USERS_AT_ONCE = 1 << 12  # much more would leave the processor's cache


class Chunk(NamedTuple):
    """All that the folder holds of the users `first` … `first + N - 1`; `counts` [N]: their interactions."""

    first: int
    counts: Ints
    train: Part
    validation: Part
    test: Part


class Folder:
    """The open splits and tables of a folder, read side by side.

    Raises `DataError` where a file is of another form than the dataset's, and while reading for what is wrong there.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._splits = [SplitReader(metadata, name) for name in SPLITS]
        self._users = TableReader(metadata.folder / USERS, ("user", "count"), metadata.n_users)
        tested = metadata.counts["test_users"]
        self._oracle = TableReader(metadata.folder / ORACLE, ("user",), tested) if ORACLE in metadata.files else None
        self.items = TableReader(metadata.folder / ITEMS, ("item", "count", "train_count"), metadata.n_items)
        self.n_read = 0  # users

    def read(self) -> Chunk:
        """The next users, as many as a bounded memory holds."""
        first = self.n_read
        self.n_read = min(first + USERS_AT_ONCE, self._metadata.n_users)
        train, validation, test = (split.take(self.n_read) for split in self._splits)
        self._check_oracle(test)
        return Chunk(first, self._counts(first, self.n_read - first), train, validation, test)

    def _counts(self, first: int, n: int) -> Ints:
        """The interactions of the next `n` users [n]."""
        table, place = self._users.take(n), self._metadata.folder / USERS
        if (wrong := first_true(table["user"] != np.arange(first, first + n))) is not None:
            raise refusal(place, first + wrong, int(table["user"][wrong]), f"user {first + wrong} must stand here")
        least = 0 if self._metadata.sparse_users else 1
        if (wrong := first_true(table["count"] < least)) is not None:
            what = f"count is {table['count'][wrong]}, must be {least} or more"
            raise refusal(place, first + wrong, first + wrong, what)
        return table["count"]

    def _check_oracle(self, test: Part) -> None:
        """The ranks stand in the order of the test."""
        if self._oracle is None:
            return
        users = self._oracle.take(len(test))["user"]
        if len(users) < len(test):
            raise test.refusal(len(users), f"{ORACLE} has no row of this user")
        if (wrong := first_true(users != test.users)) is not None:
            what = f"user {test.users[wrong]} must stand here, as in test"
            raise refusal(self._metadata.folder / ORACLE, test.first + wrong, int(users[wrong]), what)


def check_content(metadata: Metadata) -> Tally:
    """Check every row of the splits and the tables, and the counts of `metadata.json`; returns what was counted.

    Raises `DataError` for what is found wrong first: a row, or that one is missing.
    """
    folder, tally, n = Folder(metadata), Tally.empty(metadata), metadata.n_users
    with ProgressBar(n, form=NO_BAR) as bar:
        while folder.n_read < n:
            _check_chunk(metadata, folder.read(), tally)
            if bar.is_due():
                done = folder.n_read
                bar.show(done, f"checked {done:,} of {n:,} users ({done / n:.0%}, {bar.seconds:.0f} s)")
    check_items(metadata, folder.items, tally)
    check_originals(metadata.folder / USERS, metadata.n_users)
    check_originals(metadata.folder / ITEMS, metadata.n_items)
    check_found(metadata, tally)
    return tally


def _check_chunk(metadata: Metadata, chunk: Chunk, tally: Tally) -> None:
    for part in (chunk.train, chunk.validation, chunk.test):
        check_rows(part, metadata)
    histories = training_histories(chunk.train, metadata, first=chunk.first, n_users=len(chunk.counts))
    validation = check_validation(chunk.validation, histories)
    test = check_test(chunk.test, histories, validation)
    hidden = _check_counts(metadata, chunk, histories, validation, test)
    for part in (chunk.validation, chunk.test):
        check_unseen(part, check_negatives(part), histories, (validation, test), metadata.n_items)
        check_left_out(part, histories, (validation, test), hidden, metadata)
    check_drawn_alike(chunk.validation, chunk.test)
    by_time = metadata.split == "time"
    able = histories.lengths + validation.given >= 2 if by_time else chunk.counts >= MIN_EVALUATED
    _count(chunk, histories, able, tally)


def _check_counts(metadata: Metadata, chunk: Chunk, histories: Histories, validation: Targets, test: Targets) -> Ints:
    """Every user has the rows, and in them as many interactions, as its count demands; how many are in none [N]."""
    if metadata.split == "leave_one_out":
        _check_tested(metadata, chunk, test)
    for part in (chunk.validation, chunk.test):
        if metadata.split == "none" and len(part):
            raise part.refusal(0, "with preprocessing.split = none there is no evaluation")
    stored = histories.lengths + validation.given + test.given
    # What a user does after the target of a test by time is in no split, and a user who begins after its instant is
    # in none either.
    partly = test.given | (stored == 0) if metadata.split == "time" else np.zeros(len(stored), bool)
    wrong = first_true(np.where(partly, stored > chunk.counts, stored != chunk.counts))
    if wrong is not None:
        what = f"count is {chunk.counts[wrong]}, the splits hold {stored[wrong]} interactions"
        raise refusal(metadata.folder / USERS, chunk.first + wrong, chunk.first + wrong, what)
    return chunk.counts - stored


def _check_tested(metadata: Metadata, chunk: Chunk, test: Targets) -> None:
    """Leave-one-out tests the users with enough interactions, and validates no other."""
    able: Bools = chunk.counts >= MIN_EVALUATED
    if (wrong := first_true(able & ~test.given)) is not None:
        user, count = chunk.first + wrong, chunk.counts[wrong]
        raise DataError(f"{metadata.folder / 'test'}: no row of user {user}, who has {count} interactions; {REMAKE}")
    for part in (chunk.validation, chunk.test):
        counts = chunk.counts[part.users - chunk.first]
        if (row := first_true(counts < MIN_EVALUATED)) is not None:
            raise part.refusal(row, f"this user has {counts[row]} interactions, evaluation needs {MIN_EVALUATED}")


def _count(chunk: Chunk, histories: Histories, able: Bools, tally: Tally) -> None:
    items = histories.lists["items"]
    add(tally.trained, items)
    add(tally.targets, chunk.validation.targets)
    add(tally.targets, chunk.test.targets)
    tally.rows += int(chunk.counts.sum())
    tally.windows += len(chunk.train)
    tally.validated += len(chunk.validation)
    tally.tested += len(chunk.test)
    tally.able += int(able.sum())
    for name, part in (("validation", chunk.validation), ("test", chunk.test)):
        tally.shares["repeated_targets"][name] += int(part.repeated.sum())
        tally.shares["left_out"][name] += len(part) - len(part.drawn)
    tally.overlaps += len(chunk.train.lists["items"]) - len(items)
