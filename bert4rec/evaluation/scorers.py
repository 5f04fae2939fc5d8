"""Scorers: the scores of items for users, which the ranker turns into ranks."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.held_out import EvaluationSplit
from bert4rec.dataset.hidden import firsts
from bert4rec.dataset.histories import Rows
from bert4rec.evaluation.batches import assigned, chunks, gathered
from bert4rec.feed.batch import Lookup, unique_with_inverse
from bert4rec.models.ranking_model import RankingModel
from bert4rec.runtime.arrays import Bools, Int32s, Int64s
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.seeded import splitmix64

SCORED_ROWS_AT_ONCE = 8192  # rows in memory
UNKNOWN_SCORE = -1e14  # lower than that of any item, and finite: the ranker requires finite scores of targets


class Scorer(Protocol):
    """Score items for users from their histories; every process of its `partition` makes the same calls.

    A user is encoded as `width` numbers of the dtype `dtype`, which is also the dtype of the scores. `is_rounded`:
    whether `encode` and `scores` may round the score of the same item differently.
    """

    n_items: int
    partition: Partition
    width: int
    dtype: torch.dtype
    is_rounded: bool

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors [B, width] of the users of `rows`, and their scores [B, n] of the items `ids` [B, n].

        The ids are on the CPU, the results on any device.
        """
        ...

    def items(self, ids: Tensor) -> Tensor:
        """Return vectors [C, …] of the items `ids` [C]."""
        ...

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return a new tensor [B, C] of the scores of users [B, width] and items [C, …], from the item `first` on.

        A product has `tile` items, so that it is rounded alike in any part of the catalogue.
        """
        ...


class ModelScorer:
    """Score with the current weights of `model` (unwrapped, possibly sharded); `max_len` is the model's.

    Every process creates one at the same time, because cold items need a lookup in the table.
    """

    def __init__(self, model: RankingModel, *, device: torch.device, max_len: int, precision: str = "fp32") -> None:
        self._model, self._device, self._max_len = model.eval(), device, max_len
        self._is_bf16 = precision == "bf16"
        model.item_table.align_cold_items(device)
        self.n_items, self.partition = model.item_table.n_items, model.item_table.world
        self.width, self.dtype, self.is_rounded = model.width, torch.float32, True

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states or user vectors [B, width], and the scores [B, n] of the items `ids` [B, n]."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._is_bf16):
            batch = self._model.inference_batch(rows, self._max_len, self._model.times).to(self._device)
            candidates, places = unique_with_inverse(ids.flatten())
            queries, items = self._model.encode_queries(batch, candidates.to(self._device))
        # Always in fp32: with the few digits of bf16 many scores would tie.
        queries, items = queries.float(), items.float().index_select(0, places.to(self._device, non_blocking=True))
        return queries, self._model.score_pairs(queries, items.view(*ids.shape, -1))

    def score_pairs(self, users: Tensor, ids: Tensor) -> Tensor:
        """Return the scores [B, n] of the items `ids` [B, n] for users with the vectors [B, width]."""
        candidates, places = unique_with_inverse(ids.flatten())
        items = self.items(candidates.ids.to(self._device)).float()
        pairs = items.index_select(0, places.to(self._device)).view(*ids.shape, -1)
        return self._model.score_pairs(users, pairs)

    def items(self, ids: Tensor) -> Tensor:
        """Return the vectors of the items `ids`."""
        return self._model.encode_items(Lookup.of(ids))

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return the model's scores."""
        tiles = [self._model.score(users, some) for some in items.split(tile)]
        return tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=1)


class EncodedScorer:
    """Score with the model of `scorer` the users of `split`, who are encoded once, in batches of `batch_size`.

    Every process encodes some batches and then holds the vectors of all users. `between` is called before each batch.
    """

    @torch.no_grad()
    def __init__(
        self, scorer: ModelScorer, split: EvaluationSplit, *, batch_size: int, between: Callable[[], None]
    ) -> None:
        self._scorer, self.items, self.scores = scorer, scorer.items, scorer.scores
        self.n_items, self.partition = scorer.n_items, scorer.partition
        self.width, self.dtype, self.is_rounded = scorer.width, scorer.dtype, scorer.is_rounded
        order = np.argsort(split.lengths(np.arange(len(split))), kind="stable")  # keeps padding small
        batches, results = list(chunks(len(split), batch_size)), []
        for number, _ in assigned(len(batches), self.partition):
            between()
            rows = order[batches[number]]
            vectors, _ = scorer.encode(split.read(rows), torch.zeros(len(rows), 1, dtype=torch.int64))
            results.append(F.pad(vectors, (0, 0, 0, batch_size - len(rows))))
        in_order = gathered(torch.stack(results), len(split), self.partition)
        self._vectors = in_order[torch.from_numpy(np.argsort(order)).to(in_order.device)]
        users = split.users_at(np.arange(len(split)))
        self._by_user = np.argsort(users, kind="stable")
        self._users = users[self._by_user]

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors [B, width] of the users of `rows`, and the scores [B, n] of the items `ids` [B, n]."""
        assert rows.users is not None, "an evaluation split has users"
        at = self._by_user[np.searchsorted(self._users, rows.users)]
        users = self._vectors[torch.from_numpy(at).to(self._vectors.device)]
        return users, self._scorer.score_pairs(users, ids)


class Unknown(NamedTuple):
    """Flags of each row [N] of a split: the model does not know the target, or no item of the history."""

    targets: Bools
    histories: Bools

    @property
    def missed(self) -> Bools:
        """Return for each row [N] whether its target counts as missed."""
        return self.targets | self.histories


class KnownItems:
    """Map the items of a dataset to the `ids` [V] of a model, NO_ITEM for an item that the model does not know."""

    def __init__(self, ids: Int32s) -> None:
        self.ids = ids
        self._unknown: dict[str, Unknown] = {}

    @property
    def n_unknown(self) -> int:
        """Return the number of items that the model does not know."""
        return int((self.ids == NO_ITEM).sum())

    def unknown(self, split: EvaluationSplit) -> Unknown:
        """Return the rows of a `split` with unknown targets or histories; the rows are read once and cached."""
        if split.name not in self._unknown:
            unknown = Unknown(*(np.zeros(len(split), bool) for _ in range(2)))
            for where in chunks(len(split), SCORED_ROWS_AT_ONCE):
                rows = split.read(np.arange(where.start, where.stop))
                assert rows.targets is not None, "an evaluation split has targets"
                unknown.targets[where] = self.ids[rows.targets] == NO_ITEM
                unknown.histories[where] = self.known_lengths(rows) == 0
            self._unknown[split.name] = unknown
        return self._unknown[split.name]

    def known_lengths(self, rows: Rows) -> Int64s:
        """Return the number of known items [B] in the history of each of `rows`."""
        row_numbers = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
        return np.bincount(row_numbers[self.ids[rows.items] != NO_ITEM], minlength=len(rows.lengths))

    def translate_rows(self, rows: Rows) -> Rows:
        """Return `rows` in the model's ids, without unknown items.

        A history without a known item keeps its length and gets arbitrary items, since models need a non-empty history.
        """
        items, lengths = self.ids[rows.items], self.known_lengths(rows)
        is_kept = (items != NO_ITEM) | np.repeat(lengths == 0, rows.lengths)
        items = np.where(items == NO_ITEM, np.int32(0), items)
        return replace(
            rows,
            items=items[is_kept],
            lengths=np.where(lengths == 0, rows.lengths, lengths),
            times=None if rows.times is None else rows.times[is_kept],
            events=None if rows.events is None else rows.events[is_kept],
        )


class KnownItemsScorer:
    """Score the items of a dataset with the `scorer` of a model with another catalogue.

    Items that the model does not know are dropped from histories. Their scores are -inf as candidates, and
    UNKNOWN_SCORE as targets or negatives. All candidates of a user without a known item have the score -inf. The last
    column of the vectors of users and items is 1 for known ones, else 0.
    """

    def __init__(self, scorer: Scorer, known: KnownItems) -> None:
        self._scorer, self._known = scorer, known
        self.n_items, self.partition = len(known.ids), scorer.partition
        self.width, self.dtype, self.is_rounded = scorer.width + 1, scorer.dtype, scorer.is_rounded

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors [B, width] of the users of `rows`, and their scores [B, n] of the items `ids` [B, n]."""
        known_ids, is_known = self._translate(ids)
        users, scores = self._scorer.encode(self._known.translate_rows(rows), known_ids)
        has_history = torch.from_numpy(self._known.known_lengths(rows) > 0).to(users, non_blocking=True)
        is_unknown = (~is_known).to(scores.device, non_blocking=True)
        return torch.cat([users, has_history[:, None]], 1), scores.masked_fill(is_unknown, UNKNOWN_SCORE)

    def items(self, ids: Tensor) -> Tensor:
        """Return the vectors [C, D + 1] of the items `ids` [C]."""
        known_ids, is_known = self._translate(ids)
        vectors = self._scorer.items(known_ids)
        return torch.cat([vectors, is_known[:, None].to(vectors)], 1)

    def scores(self, users: Tensor, items: Tensor, first: int, tile: int) -> Tensor:
        """Return the scores [B, C] of users [B, width] for items [C, D + 1]."""
        scores = self._scorer.scores(users[:, :-1].contiguous(), items[:, :-1].contiguous(), first, tile)
        return scores.masked_fill((users[:, -1:] == 0) | (items[:, -1] == 0), -torch.inf)

    def _translate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's ids, arbitrary for an unknown item, and which items are known."""
        model_ids = torch.from_numpy(self._known.ids[ids.cpu().numpy()]).to(ids)
        return model_ids.clamp(min=0), model_ids != NO_ITEM


class OrderlessScorer:
    """Score with `scorer` after histories in random order.

    Each user's order is drawn once, whatever the batches and processes. Times stay at their places; the kinds of events
    go with the items.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer, self.items, self.scores = scorer, scorer.items, scorer.scores
        self.n_items, self.partition = scorer.n_items, scorer.partition
        self.width, self.dtype, self.is_rounded = scorer.width, scorer.dtype, scorer.is_rounded

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors and scores of `scorer` for the users of `rows`."""
        assert rows.users is not None, "an evaluation split has users"
        places = np.arange(len(rows.items)) - firsts(rows.lengths)
        keys = splitmix64(np.repeat(rows.users, rows.lengths).astype(np.uint64), places.astype(np.uint64))
        order = np.lexsort((keys, rows.numbers))
        events = None if rows.events is None else rows.events[order]
        return self._scorer.encode(replace(rows, items=rows.items[order], events=events), ids)
