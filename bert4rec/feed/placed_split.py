"""The held-out users of a dataset whose parts are on several hosts: their rows travel to the process that asks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert4rec.dataset.held_out import EvaluationSplit, HeldOut, joined
from bert4rec.dataset.hidden import Copies
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.placement import Placement
from bert4rec.runtime.arrays import Int32s, Int64s
from bert4rec.runtime.collectives import exchange_objects


class PlacedSplit(EvaluationSplit):
    """The users of an evaluation split of the whole dataset, ascending; `own` are those whose parts this host has.

    Every process makes the same calls at the same time, each for rows of its choice: hosts read their own parts for
    one another. So the users of a batch, and all figures, are those of a whole dataset.
    """

    def __init__(self, own: EvaluationSplit, placement: Placement) -> None:
        self.name, self._own, self._placement = own.name, own, placement
        owners, counts = np.array([*placement.owners.values()]), np.array(placement.held_out[own.name])
        self._hosts, self._starts = owners, np.cumsum([0, *counts])
        self._own_starts = np.zeros_like(counts)  # of each part, among the rows of its host
        for host in range(len(placement.hosts)):
            self._own_starts[owners == host] = np.cumsum([0, *counts[owners == host]])[:-1]
        self._everything: HeldOut | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def everything(self) -> HeldOut:
        """Return what is known of all users, on rank zero after `load`."""
        assert self._everything is not None, "loaded before, and on rank zero"
        return self._everything

    def load(self) -> None:
        """Let rank zero know of all users what reports tell of them."""
        is_first = self._placement.place == 0
        sent = (self._own_rows(), _about_all(self._own)) if is_first else None
        received = exchange_objects([sent, *[None] * (self._placement.n_processes - 1)])
        if self._placement.rank:
            return
        rows, facts = zip(*(report for report in received if report is not None), strict=True)
        order = np.argsort(np.concatenate(rows))
        self._everything = HeldOut(*(_in_order(values, order) for values in zip(*facts, strict=True)))

    def users_at(self, indices: Int64s) -> Int32s:
        """Return the users [B] of the rows at `indices` [B]."""
        return self._ask("users_at", indices)

    def lengths(self, indices: Int64s) -> Int64s:
        """Return the number of items [B] of the input in the histories at `indices` [B]."""
        return self._ask("lengths", indices)

    def targets(self, indices: Int64s) -> Int32s:
        """Return the targets [B] of the rows at `indices` [B]."""
        return self._ask("targets", indices)

    def read(self, indices: Int64s) -> Rows:
        """Return the rows at `indices` [B], in that order."""
        return self._ask("read", indices)

    def _ask(self, method: str, indices: Int64s) -> Any:
        """Return what a `method` returns of the rows at `indices` [B], from the hosts that have them."""
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        hosts, rows = self._hosts[parts], indices - self._starts[parts] + self._own_starts[parts]
        order, placement = np.argsort(hosts, kind="stable"), self._placement
        asked = [rows[:0] for _ in range(placement.n_processes)]
        readers = [placement.reader(host) for host in range(len(placement.hosts))]
        for host, reader in enumerate(readers):
            asked[reader] = rows[hosts == host]
        read = getattr(self._own, method)
        answers = exchange_objects([read(some) if len(some) else None for some in exchange_objects(asked)])
        found = [read(rows[:0]), *(answers[reader] for reader in readers if answers[reader] is not None)]
        places = np.argsort(order)
        return joined(found, places) if isinstance(found[0], Rows) else np.concatenate(found)[places]

    def _own_rows(self) -> Int64s:
        """Return the rows of this host's users."""
        starts = zip(self._starts[:-1].tolist(), self._starts[1:].tolist(), self._hosts.tolist(), strict=True)
        own = [np.arange(first, stop) for first, stop, host in starts if host == self._placement.host]
        return np.concatenate([np.empty(0, np.int64), *own])


def _about_all(split: EvaluationSplit) -> tuple[Any, ...]:
    """Return the values of `HeldOut` for the users of a `split`."""
    indices = np.arange(len(split))
    known = split.users, split.targets(indices), split.lengths(indices), split.n_rows, split.last_items
    return *known, split.last_times, split.are_tied, split.copies


def _in_order(parts: Sequence[Any], order: Int64s) -> Any:
    """Return the values of all hosts at `order` [N]; None for what no user has."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    if isinstance(known[0], Copies):
        return Copies(*(np.concatenate(values)[order] for values in zip(*known, strict=True)))
    return np.concatenate(known)[order]
