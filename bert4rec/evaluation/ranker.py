"""Evaluation: rank every user's held-out item among the whole catalogue and among sampled negatives.

Batches of users and tiles of the catalogue do not depend on the number of processes, and each belongs to one process.
The ranks of the targets are gathered before metrics are computed, so 1, 2 and 3 processes give exactly the same
metrics. The catalogue is scored in tiles of a few thousand items, each by the process that (nearly) holds it: memory
grows neither with the catalogue nor with the number of users.

The protocol `full` ranks as the recommender of the run does. The seen-item filter leaves out none of the items before
the target, all of them, or those that people do not take again: these are not ranked, and as a target they are missed.
A user with too few unseen items for negatives is left out of the sampled protocols.

The same pass can find the best items of each user: the recommendations.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.format import LEFT_OUT, outranks
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.dataset.histories import Rows
from bert4rec.evaluation.batches import assigned, chunks, gathered
from bert4rec.evaluation.metrics import MISSED, Lists, count_outranking, is_finite, ranking_metrics
from bert4rec.evaluation.scorers import Scorer
from bert4rec.evaluation.seen_items import LeavesOut, are_left_out
from bert4rec.evaluation.tiles import Catalogue, Equal, Seen, Twins
from bert4rec.evaluation.top_k import TopK
from bert4rec.feed.batch import unique_with_inverse
from bert4rec.runtime.arrays import Bools, Int32s, Int64s
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DivergenceError

Ranks: TypeAlias = dict[str, Int32s]
"""Protocol → the rank of the target of each row of the split, or MISSED, or LEFT_OUT."""

Metrics: TypeAlias = dict[str, dict[str, float]]
"""Protocol → metric → value."""

USERS_PER_PASS = 8192  # users whose hidden states are in memory during one pass over the catalogue
NOT_FINITE = "the scores of the model are not finite"


class Ranker:
    """Ranks items by the scores of `scorer`; every process makes the same calls.

    Seen items that `leaves_out_seen` leaves out are neither ranked nor listed, and missed as targets. `between` is
    called between two batches, on all processes; it may raise.
    """

    def __init__(
        self, scorer: Scorer, *, batch_size: int, device: torch.device, leaves_out_seen: LeavesOut = True,
        between: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._scorer, self._partition, self._catalogue = scorer, scorer.partition, Catalogue(scorer.n_items)
        self._batch_size, self._device, self._between = batch_size, device, between
        self._leaves_out_seen = leaves_out_seen

    def n_batches(self, n_users: int, protocols: Sequence[str]) -> int:
        """Return the number of calls of `between` while `n_users` are ranked."""
        passes = [where.stop - where.start for where in chunks(n_users, USERS_PER_PASS)]
        n_encoded = sum(self._partition.largest(len(list(chunks(n, self._batch_size)))) for n in passes)
        n_lookups = len(list(self._catalogue.lookups(self._partition))) if "full" in protocols else 0
        return n_encoded + len(passes) * n_lookups

    @torch.no_grad()
    def rank(self, split: EvaluationSplit, protocols: Sequence[str], lists: Lists | None = None) -> Ranks:
        """Return the ranks of the targets of `split`; with the protocol `full` the best items go to `lists`."""
        ranks = {name: np.zeros(len(split), np.int32) for name in protocols}
        sampled = [name for name in protocols if name != "full"]
        for where in chunks(len(split), USERS_PER_PASS):
            rows = np.arange(where.start, where.stop)
            # Rows of similar length share a batch, which keeps padding small.
            indices = rows[np.argsort(split.lengths(rows), kind="stable")]
            users, local = self._encode(split, indices, sampled)
            for column, name in enumerate(sampled):
                ranks[name][indices] = users.ranks[:, column].cpu().numpy()
            if "full" in protocols:
                rank = self._rank_each if self._scorer.width else self._rank_alike
                full = 1 + rank(users, local, indices, lists)
                ranks["full"][indices] = full.masked_fill_(users.missed, MISSED).cpu().numpy()
        if lists:
            lists.finish()
        return ranks

    @torch.no_grad()
    def best(self, split: EvaluationSplit, indices: Int64s, k: int) -> TopK:
        """Return the `k` best items of the rows `indices` of `split`, targets included; missing ones score -inf."""
        users, local = self._encode(split, indices, [])
        n_seen, best = len(local.items) - len(local.places), self._nothing(len(indices), k)  # the targets come last
        seen = local._replace(users=local.users[:n_seen], items=local.items[:n_seen])
        self._stream(users, self._seen(seen, len(indices)), best)
        return best.merge_all(self._partition)

    def _encode(self, split: EvaluationSplit, indices: Int64s, sampled: Sequence[str]) -> tuple["Users", "Own"]:
        """Return all users of a pass, each batch encoded by one process, and the data that this process has read."""
        n, size, width = len(indices), min(self._batch_size, len(indices)), self._scorer.width
        batches, zeros = list(chunks(n, size)), partial(torch.zeros, device=self._device)
        n_turns, read = self._partition.largest(len(batches)), []
        floats = zeros(n_turns, size, width + 1, dtype=self._scorer.dtype)
        numbers = zeros(n_turns, size, 2 + len(sampled), dtype=torch.int32)
        for turn, (number, is_own) in enumerate(assigned(len(batches), self._partition)):
            self._between()
            rows = split.read(indices[batches[number]])
            encoded = self._encode_batch(rows, sampled)
            if is_own:
                read.append((batches[number].start, rows))
                for values, batch_values in zip((floats[turn], numbers[turn]), encoded, strict=True):
                    values[: len(batch_values)] = batch_values
        floats, numbers = (gathered(local, n, self._partition) for local in (floats, numbers))
        if not is_finite(floats):  # the same on all processes
            raise DivergenceError(NOT_FINITE)
        vectors, scores = floats[:, :width].contiguous(), floats[:, width].contiguous()
        users = Users(vectors, numbers[:, 0].long(), scores, numbers[:, 1] > 0, numbers[:, 2:])
        return users, Own.of(read, self._leaves_out_seen)

    def _encode_batch(self, rows: Rows, sampled: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return user vectors with the target's score [B, width + 1], and [B, 2 + sampled protocols] integers.

        The integers are the target, whether it is missed, and its rank among the negatives of each sampled protocol.
        """
        assert rows.targets is not None, "an evaluation split has targets"
        sets = [rows.targets[:, None], *(_negatives(rows, name) for name in sampled)]
        ids = torch.from_numpy(np.concatenate(sets, axis=1).astype(np.int64))
        vectors, scores = (self._on_device(values) for values in self._scorer.encode(rows, ids))
        ids = self._on_device(ids)
        sizes = [negatives.shape[1] for negatives in sets[1:]]
        ranks = torch.ones(len(ids), len(sampled), dtype=torch.int32, device=self._device)
        for column, part in enumerate(zip(scores[:, 1:].split(sizes, 1), ids[:, 1:].split(sizes, 1), strict=True)):
            ranks[:, column] += outranks(*part, scores[:, 0], ids[:, 0]).sum(1, dtype=torch.int32)
            left_out = self._on_device(torch.from_numpy(rows.are_left_out(sampled[column])))
            ranks[:, column].masked_fill_(left_out, LEFT_OUT)
        missed = rows.are_repeated() & are_left_out(self._leaves_out_seen, rows.targets)
        missed_ranks = [self._on_device(torch.from_numpy(missed[:, None])).int(), ranks]
        return torch.cat([vectors, scores[:, :1]], 1), torch.cat([ids[:, :1].int(), *missed_ranks], 1)

    def _on_device(self, values: Tensor) -> Tensor:
        return values.to(self._device, non_blocking=True)

    def _rank_each(self, users: "Users", local: "Own", indices: Int64s, lists: Lists | None) -> Tensor:
        """Return how many items [U] outrank each target; the best items are added to `lists`."""
        best = self._nothing(len(indices), lists.k) if lists else None
        ahead = self._stream(users, self._seen(local, len(indices)), best)
        if lists and best:
            share = self._partition.of(len(indices))
            places = torch.arange(share.start, share.stop, device=self._device)
            self._add_lists(lists, indices, places, best.merge_share(self._partition), users, ahead)
        return ahead

    def _rank_alike(self, users: "Users", local: "Own", indices: Int64s, lists: Lists | None) -> Tensor:
        """Return the same as `_rank_each` if all users have the same scores, which are sorted once.

        Each process then subtracts the excluded items of its users that outrank their targets.
        """
        n_most = int(self._partition.stack(torch.tensor(local.n_most)).max())
        best = self._nothing(1, min(lists.k + n_most, self._scorer.n_items)) if lists else None
        ahead = self._stream(users, None, best)
        places, rows, items = (torch.from_numpy(values).to(self._device) for values in local.distinct())
        seen_before = torch.zeros_like(ahead)
        scores = self._scorer.scores(users.known[:1], self._scorer.items(items), 0, max(1, len(items)))[0]
        targets = users.scores[places][rows], users.targets[places][rows]
        is_before = outranks(scores[:, None], items[:, None], *targets)[:, 0]
        ahead -= self._partition.sum(seen_before.index_add_(0, places[rows], is_before.int()))
        if lists and best:
            unseen = self._unseen(best.merge_all(self._partition), rows, items, len(places), lists.k)
            self._add_lists(lists, indices, places, unseen, users, ahead)
        return ahead

    def _seen(self, local: "Own", n_users: int) -> Seen:
        """Return the excluded items in this process's tiles, received from the processes that have read the users."""
        users, items = local.places[local.users].astype(np.int32), local.items
        shares, n_processes = self._partition.parts(len(self._catalogue.tiles)), self._partition.n_processes
        owners = self._catalogue.owners(items, shares)
        order = np.argsort(owners.astype(np.min_scalar_type(n_processes)), kind="stable")
        pairs = torch.from_numpy(np.column_stack([users, items])[order])
        users, items = self._partition.exchange(pairs, np.bincount(owners, minlength=n_processes).tolist()).numpy().T
        return Seen(users, items, n_users, self._catalogue, shares[self._partition.rank], self._device)

    def _targets(self, targets: Int64s) -> Seen:
        """Return which of the `targets` [U] are in this process's tiles."""
        tiles = self._partition.of(len(self._catalogue.tiles))
        first, last = self._catalogue.items(tiles)
        local = np.flatnonzero((targets >= first) & (targets < last))
        return Seen(
            local.astype(np.int32), targets[local].astype(np.int32), len(targets), self._catalogue, tiles, self._device
        )

    def _twins(self, targets: Tensor) -> Twins:
        """Return the keys of the `targets` [U] on the CPU, from one lookup; every process makes the same."""
        distinct, places = unique_with_inverse(targets)
        ids = self._on_device(distinct.ids)
        return Twins(ids, self._scorer.items(ids), self._on_device(places))

    def _stream(self, users: "Users", seen: Seen | None, best: TopK | None) -> Tensor:
        """Return how many items [U] of the whole catalogue outrank each target; all items update `best`.

        The pairs of `seen` are neither counted nor added to `best`. Raises `DivergenceError`.
        """
        ahead = torch.zeros(len(users.targets), dtype=torch.int32, device=self._device)
        broken = torch.zeros(1, dtype=torch.int32, device=self._device)  # lookups with values that are not finite
        on_host = users.targets.cpu()
        targets = seen and self._targets(on_host.numpy())
        twins = self._twins(on_host) if self._scorer.is_rounded else None
        for tiles in self._catalogue.lookups(self._partition):
            self._between()
            first, last = self._catalogue.items(tiles)
            items = self._scorer.items(torch.arange(first, last, device=self._device))
            broken += ~is_finite(items)
            equal = twins.among(first, items) if twins else None
            for group in self._catalogue.groups(tiles):
                start, stop = (bound - first for bound in self._catalogue.items(group))
                part = Part(group, first + start, items[start:stop], equal.between(start, stop) if equal else None)
                self._add(part, users, seen, targets, ahead, best)
        sums = self._partition.sum(torch.cat([ahead, broken]))
        if sums[-1]:  # raised on all processes: if one raised in the loop, the other ones would wait for it
            raise DivergenceError(NOT_FINITE)
        return sums[:-1]

    def _add(
        self, part: "Part", users: "Users", seen: Seen | None, targets: Seen | None, ahead: Tensor, best: TopK | None
    ) -> None:
        """Count the items of a `part` that outrank each of the `targets`, and update `best`, without `seen` items.

        Without `seen`, the scores are the same for all users, and so is the list.
        """
        for number, where in enumerate(seen.parts if seen else [slice(None)]):
            known = users.known[where if seen else slice(1)]
            scores = self._scorer.scores(known, part.items, part.first, self._catalogue.tile)
            if part.equal:
                part.equal.tie(scores, where, users.scores)
            if seen:
                rows, items = seen.at(part.tiles, number)
                # Not a number of Python's: the host would wait for its copy to a GPU.
                scores.index_put_((rows, items - part.first), scores.new_full((), -torch.inf))
            rows_of_targets = targets.at(part.tiles, number)[0] if targets else None
            ahead[where] += count_outranking(
                scores, part.first, users.scores[where], users.targets[where], rows_of_targets
            )
            if best:
                best.update(where, scores, part.first)

    def _nothing(self, n_users: int, k: int) -> TopK:
        return TopK.nothing(n_users, k, dtype=self._scorer.dtype, device=self._device)

    def _unseen(self, best: TopK, rows: Tensor, items: Tensor, n_users: int, k: int) -> TopK:
        """Return the best `k` for each of `n_users` without the excluded `items` [n] of `rows` [n], ascending."""
        bounds = torch.searchsorted(rows, torch.arange(n_users + 1, device=self._device)).tolist()
        parts = [TopK.nothing(0, k, dtype=best.scores.dtype, device=self._device)]
        for where in chunks(n_users, self._batch_size):
            pairs, n = slice(bounds[where.start], bounds[where.stop]), where.stop - where.start
            parts.append(best.without(rows[pairs] - where.start, items[pairs], n, k))
        return TopK(torch.cat([part.scores for part in parts]), torch.cat([part.indices for part in parts]))

    def _add_lists(
        self, lists: Lists, indices: Int64s, places: Tensor, best: TopK, users: "Users", ahead: Tensor
    ) -> None:
        """Add the lists of the users at `places` [B] of a pass, with their `best` items without the targets."""
        rows, missed = indices[places.cpu().numpy()], users.missed[places].cpu().numpy()
        lists.add(rows, best, users.targets[places], users.scores[places], ahead[places], missed)


class Part(NamedTuple):
    """Consecutive `tiles` of the catalogue, their first item, counted from 0, and the vectors of their `items`.

    `equal`: those of the items that are twins of targets, if any of this lookup are.
    """

    tiles: range
    first: int
    items: Tensor
    equal: Equal | None


class Users(NamedTuple):
    """The U users of a pass: vectors `known` [U, width], ids and scores [U] of the targets, and sampled ranks.

    `missed` [U]: whether the target is a seen item that is left out; `ranks` are [U, sampled protocols].
    """

    known: Tensor
    targets: Tensor
    scores: Tensor
    missed: Tensor
    ranks: Tensor


class Own(NamedTuple):
    """The `places` [B] in a pass of the users that this process has read, and their excluded items.

    Excluded are the target and the seen items that are left out: pairs of `users` [n], indices into `places`, and
    `items` [n]. `n_most` is the largest number of pairs of a user.
    """

    places: Int64s
    users: Int32s
    items: Int32s
    n_most: int

    @classmethod
    def of(cls, read: Sequence[tuple[int, Rows]], leaves_out: LeavesOut) -> "Own":
        """Return the data of the batches `read`, each given with the place of its first user, in order."""
        nothing = np.zeros(0, np.int64)
        places = [np.arange(first, first + len(rows.lengths)) for first, rows in read]
        seen = [rows.part(are_left_out(leaves_out, rows.items)) for _, rows in read]
        lengths = np.concatenate([nothing, *(rows.lengths for rows in seen)])
        numbers = np.arange(len(lengths), dtype=np.int32)
        users = np.concatenate([np.repeat(numbers, lengths), numbers])
        targets = [rows.targets for rows in seen if rows.targets is not None]
        items = np.concatenate([nothing.astype(np.int32), *(rows.items for rows in seen), *targets])
        most = int(lengths.max(initial=0)) + 1
        return cls(np.concatenate([nothing, *places]), users, items, most)

    def distinct(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return `places`, and the distinct pairs of users and items, ordered by user."""
        n_items = int(self.items.max(initial=0)) + 1
        pairs = np.sort(self.users.astype(np.int64) * n_items + self.items)
        return self.places, *np.divmod(pairs[np.flatnonzero(np.diff(pairs, prepend=-1))], n_items)


def _negatives(rows: Rows, protocol: str) -> Int32s:
    """Return the negatives [B, n]; those of a user without negatives are the target, so that all ids are items."""
    assert rows.targets is not None, "an evaluation split has targets"
    assert rows.negatives is not None, "an evaluation split has negatives"
    return np.where(rows.are_left_out(protocol)[:, None], rows.targets[:, None], rows.negatives[protocol])


def repeated_targets(split: EvaluationSplit, partition: Partition) -> Bools:
    """Return for each user [N] of this process's part of `split` whether its target is in its history."""
    part = partition.of(len(split))
    repeated = np.zeros(len(part), bool)
    for where in chunks(partition.largest(len(split)), USERS_PER_PASS):  # as many calls on each process
        repeated[where] = split.read(np.array(part[where], np.int64)).are_repeated()
    return repeated


def to_metrics(ranks: Ranks, ks: Sequence[int]) -> Metrics:
    """Return protocol → metrics, for the protocols that have users."""
    return {name: ranking_metrics(values, ks) for name, values in ranks.items() if (values != LEFT_OUT).any()}
