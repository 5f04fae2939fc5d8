"""Evaluation: every user's held-out item ranked among the whole catalogue and among sampled negatives.

Batches of users and tiles of the catalogue are cut once, whatever the number of processes, and dealt whole to the
ranks; the ranks of the targets are gathered, and only then become metrics. So 1, 2 and 3 processes give exactly the
same figures. The catalogue streams by, a few thousand items at a time, each scored by the process that (nearly) holds
it: memory grows neither with the catalogue nor with the number of users.

What a user has seen, all that stands before the target, is not ranked in `full`, but for the target itself. Where some
targets have been seen, too, there is also `full_unseen`, which leaves them out like the rest: they are missed. A user
with too few unseen items for negatives is left out of the sampled protocols.

In the same pass the best unseen items of each user can be found: what would be recommended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.ranks import LEFT_OUT, is_ahead
from bert4rec.dataset.reader import Bools, Rows, Split
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.evaluation.batches import cut, dealt
from bert4rec.evaluation.item_tiles import Catalogue, Seen
from bert4rec.evaluation.lists import Lists
from bert4rec.evaluation.metrics import MISSED, count_ahead, is_finite, ranking_metrics
from bert4rec.evaluation.scorers import Scorer
from bert4rec.evaluation.top_k import BestItems
from bert4rec.runtime.errors import DivergenceError

Ranks: TypeAlias = dict[str, npt.NDArray[np.int32]]
"""Protocol → the rank of the target of every row of the split, in its order; or MISSED, or LEFT_OUT."""

Metrics: TypeAlias = dict[str, dict[str, float]]
"""Protocol → metric → value."""

Indices: TypeAlias = npt.NDArray[np.int64]

USERS_PER_PASS = 8192  # whose hidden states are kept while the catalogue streams by once
NOT_FINITE = "the model gives scores that are not finite"


class Ranker:
    """Ranks by what `scorer` says; every process makes the same calls.

    `between` is called between two batches, on all processes; it may raise.
    """

    def __init__(
        self, scorer: Scorer, *, batch_size: int, device: torch.device, between: Callable[[], None] = lambda: None
    ) -> None:
        self._scorer, self._partition, self._catalogue = scorer, scorer.partition, Catalogue(scorer.n_items)
        self._batch_size, self._device, self._between = batch_size, device, between

    def n_batches(self, n_users: int, protocols: Sequence[str]) -> int:
        """How often `between` is called while so many users are ranked."""
        passes = [where.stop - where.start for where in cut(n_users, USERS_PER_PASS)]
        n_encoded = sum(self._partition.largest(len(list(cut(n, self._batch_size)))) for n in passes)
        n_lookups = len(list(self._catalogue.lookups(self._partition))) if "full" in protocols else 0
        return n_encoded + len(passes) * n_lookups

    @torch.no_grad()
    def rank(self, split: Split, protocols: Sequence[str], lists: Lists | None = None) -> Ranks:
        """The ranks of the targets of `split`; with the protocol `full` the best items of each user go to `lists`."""
        ranks = {name: np.zeros(len(split), np.int32) for name in protocols}
        sampled = [name for name in protocols if name != "full"]
        for where in cut(len(split), USERS_PER_PASS):
            rows = np.arange(where.start, where.stop)
            # Rows of like length together, so that little is padded.
            indices = rows[np.argsort(split.lengths(rows), kind="stable")]
            users = self._encode(split, indices, sampled)
            for column, name in enumerate(sampled):
                ranks[name][indices] = users.ranks[:, column].cpu().numpy()
            if "full" in protocols:
                histories = split.read(indices)
                seen = Seen(histories, self._batch_size, self._catalogue, self._device)
                n_best = lists.k if lists else 0
                ahead, best = self._stream(users, seen, n_best)
                ranks["full"][indices] = 1 + ahead.cpu().numpy()
                if lists and best:
                    best = self._unseen(best.of_all(self._partition), seen, n_best)
                    lists.add(indices, best, users.targets - FIRST_ITEM_ID, ahead, histories.are_repeated())
        if lists:
            lists.finish()
        return ranks

    def _encode(self, split: Split, indices: Indices, sampled: Sequence[str]) -> "Users":
        """Every process encodes some batches; all have all in the end."""
        n, scorer, zeros = len(indices), self._scorer, partial(torch.zeros, device=self._device)
        known, scores = zeros(n, scorer.width, dtype=scorer.dtype), zeros(n, dtype=scorer.dtype)
        users = Users(known, zeros(n, dtype=torch.int64), scores, zeros(n, len(sampled), dtype=torch.int32))
        batches = list(cut(n, self._batch_size))
        for number, is_own in dealt(len(batches), self._partition):
            self._between()
            where = batches[number]
            encoded = self._encode_batch(split.read(indices[where]), sampled)
            if is_own:
                for values, of_batch in zip(users, encoded, strict=True):
                    values[where] = of_batch
        for values in users:
            self._partition.sum(values)  # what others encoded is zero here
        if not (is_finite(known) and is_finite(scores)):  # the same on all processes
            raise DivergenceError(NOT_FINITE)
        return users

    def _encode_batch(self, rows: Rows, sampled: Sequence[str]) -> "Users":
        """What is known of some rows, the scores of their targets, and the ranks of these among their own negatives."""
        assert rows.targets is not None, "an evaluation split has targets"
        sets = [rows.targets[:, None], *(_negatives(rows, name) for name in sampled)]
        ids = torch.from_numpy(np.concatenate(sets, axis=1).astype(np.int64)).to(self._device)
        known, scores = self._scorer.encode(rows, ids)
        target_scores, targets = scores[:, 0], ids[:, 0]
        sizes = [negatives.shape[1] for negatives in sets[1:]]
        ranks = torch.ones(len(ids), len(sampled), dtype=torch.int32, device=self._device)
        for column, part in enumerate(zip(scores[:, 1:].split(sizes, 1), ids[:, 1:].split(sizes, 1), strict=True)):
            ranks[:, column] += is_ahead(*part, target_scores, targets).sum(1, dtype=torch.int32)
            ranks[torch.from_numpy(rows.are_left_out(sampled[column])), column] = LEFT_OUT
        return Users(known, targets, target_scores, ranks)

    def _stream(self, users: "Users", seen: Seen, n_best: int) -> tuple[Tensor, BestItems | None]:
        """How many unseen items [U] come before each target, over the whole catalogue; and the best `n_best` of them.

        Where nothing is known of users, these are the best of all, so many that there are `n_best` unseen ones.
        """
        ahead = torch.zeros(len(users.targets), dtype=torch.int32, device=self._device)
        best = self._nothing(len(users.targets), n_best, seen) if n_best else None
        broken = torch.zeros(1, dtype=torch.int32, device=self._device)  # lookups of vectors that are not finite
        add = self._add if self._scorer.width else self._add_for_all
        for tiles in self._catalogue.lookups(self._partition):
            self._between()
            first, last = self._catalogue.items(tiles)
            ids = torch.arange(FIRST_ITEM_ID + first, FIRST_ITEM_ID + last, device=self._device)
            items = self._scorer.items(ids)
            broken += not is_finite(items)
            for group in self._catalogue.groups(tiles):
                start, stop = (bound - first for bound in self._catalogue.items(group))
                add(Part(group, first + start, items[start:stop]), users, seen, ahead, best)
        together = self._partition.sum(torch.cat([ahead, broken]))
        if together[-1]:  # on all processes; had one raised in the loop, the others would wait for it
            raise DivergenceError(NOT_FINITE)
        return together[:-1], best

    def _add(self, part: "Part", users: "Users", seen: Seen, ahead: Tensor, best: BestItems | None) -> None:
        """Count the unseen items of a `part` that come before each target, and offer all of them to `best`."""
        for batch, where in enumerate(cut(len(ahead), self._batch_size)):
            scores = self._scores(users.known[where], part)
            rows, items = seen.at(part.tiles, batch)
            scores[rows, items - part.first] = -torch.inf
            ahead[where] += count_ahead(scores, FIRST_ITEM_ID + part.first, users.scores[where], users.targets[where])
            if best:
                best.offer(where, scores, part.first)

    def _add_for_all(self, part: "Part", users: "Users", seen: Seen, ahead: Tensor, best: BestItems | None) -> None:
        """The same where nothing is known of users: all give the same scores, which are ordered once.

        What each has seen is taken off again; to `best` all is offered.
        """
        scores, n = self._scores(users.known[:1], part), len(part.items)
        ahead += count_ahead(scores, FIRST_ITEM_ID + part.first, users.scores, users.targets)
        for batch, where in enumerate(cut(len(ahead), self._batch_size)):
            rows, items = seen.at(part.tiles, batch)
            cells = (rows * n + items - part.first).unique()  # an item may have been seen twice
            rows, columns = cells // n, cells % n
            targets = users.scores[where][rows], users.targets[where][rows]
            ids = FIRST_ITEM_ID + part.first + columns
            is_before = is_ahead(scores[0, columns, None], ids[:, None], *targets)[:, 0]
            ahead[where].index_add_(0, rows, is_before.int(), alpha=-1)
        if best:
            best.offer(slice(None), scores, part.first)

    def _scores(self, known: Tensor, part: "Part") -> Tensor:
        """Of users with what is `known` of them and the items of a `part`; each tile is a product of its own."""
        of_tiles = [self._scorer.scores(known, items) for items in part.items.split(self._catalogue.tile)]
        return of_tiles[0] if len(of_tiles) == 1 else torch.cat(of_tiles, dim=1)

    def _nothing(self, n_users: int, k: int, seen: Seen) -> BestItems:
        n, k = (n_users, k) if self._scorer.width else (1, min(k + seen.n_most, self._scorer.n_items))
        return BestItems.nothing(n, k, dtype=self._scorer.dtype, device=self._device)

    def _unseen(self, best: BestItems, seen: Seen, k: int) -> BestItems:
        """The best `k` of each user."""
        if self._scorer.width:
            return best
        everything = self._catalogue.tiles
        parts = [
            best.without(*seen.at(everything, batch), where.stop - where.start, k)
            for batch, where in enumerate(cut(seen.n_users, self._batch_size))
        ]
        return BestItems(torch.cat([part.scores for part in parts]), torch.cat([part.indices for part in parts]))


class Part(NamedTuple):
    """Consecutive `tiles` of the catalogue from the item `first` on, counted from 0: what is known of their `items`."""

    tiles: range
    first: int
    items: Tensor


class Users(NamedTuple):
    """U users of a pass: what is `known` of them [U, width], ids and scores [U] of their targets, and their ranks.

    `ranks` are [U, sampled protocols].
    """

    known: Tensor
    targets: Tensor
    scores: Tensor
    ranks: Tensor


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
        for where in cut(len(split), USERS_PER_PASS):
            rows = split.read(np.arange(where.start, where.stop))
            repeated[where], left_out[where] = rows.are_repeated(), rows.are_left_out("popular")
        return cls(repeated, left_out)


def with_unseen(ranks: Ranks, repeated: Bools) -> Ranks:
    """`ranks`, and after `full`, where there are `repeated` targets [N], `full_unseen`, which misses these."""
    if "full" not in ranks or not repeated.any():
        return ranks
    full = ranks["full"]
    return {"full": full, "full_unseen": np.where(repeated, np.int32(MISSED), full)} | ranks


def to_metrics(ranks: Ranks, ks: Sequence[int]) -> Metrics:
    """Protocol → metrics, of the protocols in which there are users."""
    return {name: ranking_metrics(values, ks) for name, values in ranks.items() if (values != LEFT_OUT).any()}
