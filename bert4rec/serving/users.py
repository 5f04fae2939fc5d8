"""Find the users of a dataset by their original ids, and read their histories."""

import difflib
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec.dataset.format import USERS, kinds_of, n_forgotten
from bert4rec.dataset.histories import Histories as DatasetHistories
from bert4rec.dataset.id_tables import UNKNOWN, IdTable, to_numpy
from bert4rec.dataset.ids import canonical_value
from bert4rec.dataset.reader import read_metadata, require_times
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import ArgumentError, did_you_mean, join_names, pluralize
from bert4rec.serving.histories import AT_ONCE, Histories, History, ItemIds, TimedHistory
from bert4rec.serving.stored_items import StoredItemIds

NEAR = 0.8  # smallest similarity of an id that a message offers, as difflib measures it
N_EXAMPLES = 3  # ids that a message shows
MOST_COMPARED = 100_000  # users among whom the nearest id is looked for, which takes about a second

logger = logging.getLogger(__name__)


class UserHistories:
    """Read the histories of the users of a dataset `folder`, with the original `ids` of the items.

    Histories are whole and include the held-out targets. If the dataset extends the one of `ids`, its new items are in
    them, too. `with_times`: histories are `TimedHistory` with the query time `at` (None: the time of the last item).
    `with_events`: they are `TimedHistory` with the kinds of events. Raises `DataError` if the dataset has no times.
    """

    def __init__(
        self, folder: Path, ids: ItemIds, *, with_times: bool = False, at: float | None = None,
        with_events: bool = False,
    ) -> None:  # fmt: skip
        metadata = read_metadata(folder)
        if with_times:
            require_times(folder, metadata)
        self._with_times, self._at = with_times, at
        kinds = kinds_of(metadata) if with_events else ()
        self._histories = DatasetHistories(
            folder, metadata["items"], with_times=with_times, kinds=kinds, fingerprint=metadata["fingerprint"]
        )
        self._users, self._n_forgotten = IdTable(folder, metadata, USERS), n_forgotten(metadata, USERS)
        self._ids = StoredItemIds(folder) if metadata["items"] > len(ids) else ids

    def __len__(self) -> int:
        return len(self._users) - self._n_forgotten

    @property
    def are_numbers(self) -> bool:
        """Return whether the ids of users are whole numbers; otherwise they are text."""
        return self._users.are_numbers

    def all(self) -> Iterator[Histories]:
        """Yield the histories of all users who are not forgotten, by dense id."""
        parts = (known.slice(at, AT_ONCE) for part in self._users.parts(["user", "original"])
                 for known in (part.filter(part["original"].is_valid()),)
                 for at in range(0, len(known), AT_ONCE))  # fmt: skip
        for part in parts:
            yield list(zip(part["original"].to_pylist(), self._items(to_numpy(part["user"])), strict=True))

    def of(self, names: Sequence[Any], *, allow_unknown: bool = False) -> Histories:
        """Return the users with these original ids and their histories.

        Raises `ArgumentError` for a user who is not in the dataset; with `allow_unknown` such a user has no items, with
        a warning.
        """
        values, found = self.find(names)
        if unknown := [str(name) for name, history in zip(names, found, strict=True) if history is None]:
            what = f"{len(unknown):,} of {pluralize(len(names), 'user')} not in the dataset: {join_names(unknown)}"
            if not allow_unknown:
                raise ArgumentError(f"{what}; {self._expected(unknown[0])}")
            logger.warning(what)
        nothing: History = TimedHistory([], [], self._at) if self._with_times else []
        return [
            (name, nothing) if history is None else (value, history)
            for name, value, history in zip(names, values, found, strict=True)
        ]

    def find(self, names: Sequence[Any]) -> tuple[list[Any], list[History | None]]:
        """Return the original ids that the `names` of users mean, and their histories; None for an unknown user."""
        values = [canonical_value(name, is_number=self.are_numbers) for name in names]
        users = self._users.find(values)
        histories = iter(self._items(users[users != UNKNOWN]))
        return values, [None if user == UNKNOWN else next(histories) for user in users]

    def _expected(self, unknown: str) -> str:
        """Return the end of a message about an `unknown` user: what ids look like, and the nearest one."""
        n_shown = len(self) if len(self) <= MOST_COMPARED else N_EXAMPLES
        shown = np.arange(n_shown + self._n_forgotten)
        known = self._users.rows(shown, ["original"])["original"].drop_null().to_pylist()
        examples = join_names(known[:N_EXAMPLES])
        near = difflib.get_close_matches(unknown, map(str, known), n=1, cutoff=NEAR)
        return f"expected: an id as in the interactions, such as {examples}{did_you_mean(near)}"

    def _items(self, users: Int64s) -> list[History]:
        """Return the histories of `users`, by dense id."""
        if not len(users):
            return []
        histories = self._histories
        rows, are_there = histories.user_rows(users)
        lengths = np.where(are_there, histories.lengths_at(rows), 0)  # a user may have none
        interactions = histories.read(rows, np.zeros_like(lengths), lengths)
        items = self._ids.of(interactions.items.tolist())
        bounds = list(itertools.pairwise(itertools.accumulate(lengths.tolist(), initial=0)))
        if interactions.times is None and interactions.events is None:
            return [items[first:last] for first, last in bounds]
        times = () if interactions.times is None else interactions.times.tolist()
        numbers = () if interactions.events is None else interactions.events.tolist()
        events = tuple(histories.kinds[number] for number in numbers)
        return [TimedHistory(items[i:j], times[i:j], self._at, events[i:j]) for i, j in bounds]
