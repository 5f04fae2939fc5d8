"""Evaluation: every user's held-out item ranked among the whole catalogue and among sampled negatives.

Batches of users and tiles of the catalogue are cut once, whatever the number of processes, and dealt whole to the
ranks; the ranks of the targets are gathered, and only then become metrics. So 1, 2 and 3 processes give exactly the
same figures. The catalogue streams by, a few thousand items at a time, each scored by the process that (nearly) holds
it: memory grows neither with the catalogue nor with the number of users.

What a user has seen, all that stands before the target, is not ranked in `full`, but for the target itself. Where some
targets have been seen, too, `full_unseen` stands beside it: there they are left out like the rest, and missed. A user
with too few unseen items for negatives is left out of the sampled protocols.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.reader import LEFT_OUT, Bools, Rows, Split
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.evaluation.item_tiles import Catalogue, Seen
from bert4rec.evaluation.metrics import (
    MISSED,
    NOT_FINITE,
    check_finite,
    count_ahead,
    is_ahead,
    is_finite,
    ranking_metrics,
)
from bert4rec.models.sequence_model import SequenceModel
from bert4rec.runtime.errors import DivergenceError

Ranks: TypeAlias = dict[str, npt.NDArray[np.int32]]
"""Protocol → the rank of the target of every row of the split, in its order; or MISSED, or LEFT_OUT."""

Metrics: TypeAlias = dict[str, dict[str, float]]
"""Protocol → metric → value."""

Indices: TypeAlias = npt.NDArray[np.int64]

ITEMS_AT_ONCE = 2**20  # sorted at once for the popularity baseline
USERS_PER_PASS = 8192  # whose hidden states are held while the catalogue streams by once


class ModelRanker:
    """Ranks by `model` (unwrapped, perhaps sharded) as it is; every process makes the same calls.

    `between` is called between two batches, on all processes; it may raise.
    """

    def __init__(
        self, model: SequenceModel, *, batch_size: int, device: torch.device, max_len: int, precision: str = "fp32",
        between: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._model, self._partition = model, model.item_table.partition
        self._catalogue = Catalogue(model.item_table.n_items)
        self._batch_size, self._device, self._max_len, self._precision = batch_size, device, max_len, precision
        self._between = between

    @torch.no_grad()
    def rank(self, split: Split, protocols: Sequence[str]) -> Ranks:
        """The ranks of the targets of `split`."""
        self._model.eval()
        ranks = {name: np.zeros(len(split), np.int32) for name in protocols}
        for where in _cut(len(split), USERS_PER_PASS):
            rows = np.arange(where.start, where.stop)
            # Rows of like length together, so that little is padded.
            indices = rows[np.argsort(split.lengths(rows), kind="stable")]
            for name, values in self._pass(split, indices, protocols).items():
                ranks[name][indices] = values.cpu().numpy()
        return ranks

    def _pass(self, split: Split, indices: Indices, protocols: Sequence[str]) -> dict[str, Tensor]:
        """Ranks [U] of the rows at `indices`."""
        sampled = [name for name in protocols if name != "full"]
        users = self._encode(split, indices, sampled)
        ranks = {name: users.ranks[:, column] for column, name in enumerate(sampled)}
        if "full" in protocols:
            seen = Seen(split.read(indices), self._batch_size, self._catalogue, self._device)
            ranks["full"] = 1 + self._count_ahead(users, seen)
        return ranks

    def _encode(self, split: Split, indices: Indices, sampled: Sequence[str]) -> "Users":
        """Every process encodes some batches; all have all in the end."""
        users = Users.empty(len(indices), self._model.item_table.width, len(sampled), self._device)
        batches = list(_cut(len(indices), self._batch_size))
        for first in range(0, len(batches), self._partition.n_processes):
            self._between()
            mine = first + self._partition.rank
            # A rank without a batch of its own runs another's: the lookups of a sharded table need every process.
            where = batches[min(mine, len(batches) - 1)]
            encoded = self._encode_batch(split.read(indices[where]), sampled)
            if mine < len(batches):
                users.put(where, encoded)
        for values in (users.hidden, users.targets, users.scores, users.ranks):
            self._partition.sum(values)  # what others encoded is zero here
        check_finite(users.hidden, users.scores)
        return users

    def _encode_batch(self, rows: Rows, sampled: Sequence[str]) -> "Users":
        """Hidden states and target scores of some rows, and the ranks among their own negatives."""
        assert rows.targets is not None, "an evaluation split has targets"
        sets = [rows.targets[:, None], *(_negatives(rows, name) for name in sampled)]
        ids = torch.from_numpy(np.concatenate(sets, axis=1).astype(np.int64)).to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bf16"):
            batch = self._model.ask(rows, self._max_len).to(self._device)
            hidden, vectors = self._model.represent(batch, ids.flatten())
        # In fp32 always: bf16 has so few digits that many scores would tie.
        hidden = hidden.float()
        scores = (vectors.view(*ids.shape, -1) * hidden[:, None]).sum(2)
        target_scores, targets = scores[:, 0], ids[:, 0]
        sizes = [negatives.shape[1] for negatives in sets[1:]]
        ranks = torch.ones(len(ids), len(sampled), dtype=torch.int32, device=self._device)
        for column, part in enumerate(zip(scores[:, 1:].split(sizes, 1), ids[:, 1:].split(sizes, 1), strict=True)):
            ranks[:, column] += is_ahead(*part, target_scores, targets).sum(1, dtype=torch.int32)
            ranks[torch.from_numpy(rows.are_left_out(sampled[column])), column] = LEFT_OUT
        return Users(hidden, targets, target_scores, ranks)

    def _count_ahead(self, users: "Users", seen: Seen) -> Tensor:
        """How many unseen items [U] come before each target, over the whole catalogue."""
        ahead = torch.zeros(len(users.targets), dtype=torch.int32, device=self._device)
        broken = torch.zeros(1, dtype=torch.int32, device=self._device)  # lookups of vectors that are not finite
        for tiles in self._catalogue.lookups(self._partition):
            self._between()
            first, last = self._catalogue.items(tiles)
            ids = torch.arange(FIRST_ITEM_ID + first, FIRST_ITEM_ID + last, device=self._device)
            vectors = self._model.item_table.candidates(ids)
            broken += not is_finite(vectors)
            for tile in tiles:
                start, stop = (bound - first for bound in self._catalogue.items(range(tile, tile + 1)))
                for number, where in enumerate(_cut(len(ahead), self._batch_size)):
                    scores = users.hidden[where] @ vectors[start:stop].T
                    scores[seen.at(tile, number)] = -torch.inf
                    ahead[where] += count_ahead(scores, ids[start], users.scores[where], users.targets[where])
        together = self._partition.sum(torch.cat([ahead, broken]))
        if together[-1]:  # on all processes; had one raised in the loop, the others would wait for it
            raise DivergenceError(NOT_FINITE)
        return together[:-1]


@dataclass(frozen=True)
class Users:
    """U users of a pass: hidden states [U, d], ids and scores [U] of their targets, ranks [U, sampled protocols]."""

    hidden: Tensor
    targets: Tensor
    scores: Tensor
    ranks: Tensor

    @classmethod
    def empty(cls, n: int, width: int, n_sampled: int, device: torch.device) -> "Users":
        """`n` users of whom nothing is known."""
        return cls(
            torch.zeros(n, width, device=device),
            torch.zeros(n, dtype=torch.int64, device=device),
            torch.zeros(n, device=device),
            torch.zeros(n, n_sampled, dtype=torch.int32, device=device),
        )

    def put(self, where: slice, others: "Users") -> None:
        """Write `others` at `where`."""
        self.hidden[where], self.targets[where] = others.hidden, others.targets
        self.scores[where], self.ranks[where] = others.scores, others.ranks


def rank_by_popularity(popularity: npt.NDArray[np.integer], split: Split, protocols: Sequence[str]) -> Ranks:
    """Ranks where every item scores its number of training positions, `popularity` [n_items], for every user."""
    place = _places(popularity)
    ranks = {name: np.zeros(len(split), np.int32) for name in protocols}
    for where in _cut(len(split), USERS_PER_PASS):
        rows = split.read(np.arange(len(split))[where])
        for name in protocols:
            ranks[name][where] = _ranks_by_place(place, rows, name)
    return ranks


def _places(popularity: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """The place of each item among all by popularity, from 0, ties by id: a counting sort, so that only itself is held.

    >>> _places(np.array([5, 0, 7, 5])).tolist()
    [1, 3, 0, 2]
    """
    counts = np.bincount(popularity)
    next_place = len(popularity) - np.cumsum(counts)  # of the items with each count: as many have a larger one
    places = np.empty(len(popularity), np.int32)
    for where in _cut(len(popularity), ITEMS_AT_ONCE):
        part = popularity[where]
        order = np.argsort(part, kind="stable")
        counts_in_order = part[order]
        nth = np.arange(len(part)) - np.searchsorted(counts_in_order, counts_in_order)
        places[where.start + order] = next_place[counts_in_order] + nth
        next_place += np.bincount(part, minlength=len(next_place))
    return places


def _ranks_by_place(place: npt.NDArray[np.int32], rows: Rows, protocol: str) -> npt.NDArray[np.int32]:
    """Ranks by the `place` that each item has among all, from 0; seen items leave theirs to those that follow."""
    assert rows.targets is not None, "an evaluation split has targets"
    own = place[rows.targets - FIRST_ITEM_ID]
    if protocol != "full":
        ranks = 1 + (place[_negatives(rows, protocol) - FIRST_ITEM_ID] < own[:, None]).sum(1, dtype=np.int32)
        return np.where(rows.are_left_out(protocol), np.int32(LEFT_OUT), ranks)
    users = np.repeat(np.arange(len(own)), rows.lengths)
    seen = np.unique(np.stack([users, place[rows.items - FIRST_ITEM_ID]]), axis=1)  # an item may have been seen twice
    is_before = seen[1] < own[seen[0]]
    return own + 1 - np.bincount(seen[0][is_before], minlength=len(own)).astype(np.int32)


def _negatives(rows: Rows, protocol: str) -> npt.NDArray[np.int32]:
    """The negatives [B, n]; of a user who has none the target itself, so that all ids are those of items."""
    assert rows.targets is not None, "an evaluation split has targets"
    assert rows.negatives is not None, "an evaluation split has negatives"
    return np.where(rows.are_left_out(protocol)[:, None], rows.targets[:, None], rows.negatives[protocol])


@dataclass(frozen=True)
class HeldOut:
    """What is known of a split of N users before anything is ranked.

    `repeated` [N]: whose target stands in the user's own history; `left_out` [N]: who has no negatives.
    """

    repeated: Bools
    left_out: Bools

    @classmethod
    def of(cls, split: Split) -> "HeldOut":
        """Look at every row of `split`, in bounded memory."""
        repeated, left_out = (np.zeros(len(split), bool) for _ in range(2))
        for where in _cut(len(split), USERS_PER_PASS):
            rows = split.read(np.arange(where.start, where.stop))
            repeated[where], left_out[where] = rows.are_repeated(), rows.are_left_out("popular")
        return cls(repeated, left_out)


def with_unseen(ranks: Ranks, repeated: Bools) -> Ranks:
    """`ranks`, and behind `full`, where there are `repeated` targets [N], `full_unseen`, which misses these."""
    if "full" not in ranks or not repeated.any():
        return ranks
    full = ranks["full"]
    return {"full": full, "full_unseen": np.where(repeated, np.int32(MISSED), full)} | ranks


def to_metrics(ranks: Ranks, ks: Sequence[int]) -> Metrics:
    """Protocol → metrics, of the protocols in which there are users."""
    return {name: ranking_metrics(values, ks) for name, values in ranks.items() if (values != LEFT_OUT).any()}


def _cut(n: int, size: int) -> Iterator[slice]:
    """0 … n in slices of `size`, the last perhaps smaller."""
    for first in range(0, n, size):
        yield slice(first, min(first + size, n))
