"""Scores of items for users, from which the ranker makes ranks."""

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Bools, EvaluationSplit, Indices, Ints, Rows
from bert4rec.feed.batch import Lookup, unique_with_inverse
from bert4rec.models.ranking_model import RankingModel
from bert4rec.runtime.collectives import Partition

ROWS_AT_ONCE = 8192  # that are in memory
UNKNOWN_SCORE = -1e14  # lower than that of any item; finite, as the scores of targets must be


class Scorer(Protocol):
    """Score items by the histories of users; every process of its `partition` makes the same calls.

    What is known of a user are `width` numbers of type `dtype`, the type of scores too.
    """

    n_items: int
    partition: Partition
    width: int
    dtype: torch.dtype

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors [B, width] of the users of `rows`, and their scores [B, n] of the items `ids` [B, n]."""
        ...

    def items(self, ids: Tensor) -> Tensor:
        """Return vectors [C, …] of the items `ids` [C]."""
        ...

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Return a new tensor [B, C] of the scores of users [B, width] and items [C, …]."""
        ...


class ModelScorer:
    """Score by the current weights of `model` (unwrapped, perhaps sharded); `max_len` is its own."""

    def __init__(self, model: RankingModel, *, device: torch.device, max_len: int, precision: str = "fp32") -> None:
        self._model, self._device, self._max_len = model.eval(), device, max_len
        self._is_bf16 = precision == "bf16"
        self.n_items, self.partition = model.item_table.n_items, model.item_table.world
        self.width, self.dtype = model.width, torch.float32

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states or user vectors, and the scores of the items `ids`."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._is_bf16):
            batch = self._model.inference_batch(rows, self._max_len, self._model.times).to(self._device)
            candidates, places = unique_with_inverse(ids.flatten().cpu())
            queries, items = self._model.encode_queries(batch, candidates.to(self._device))
        # In fp32 always: bf16 has so few digits that many scores would tie.
        queries, items = queries.float(), items.float().index_select(0, places.to(self._device))
        return queries, self._model.score_pairs(queries, items.view(*ids.shape, -1))

    def items(self, ids: Tensor) -> Tensor:
        """Return the vectors of items."""
        return self._model.encode_items(Lookup.of(ids))

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the model's scores."""
        return self._model.score(users, items)


class Unknown(NamedTuple):
    """Say which rows [N] of a split have a target that the model does not know, and which no known item before it."""

    targets: Bools
    histories: Bools

    @property
    def missed(self) -> Bools:
        """Return the rows [N] whose target counts as missed."""
        return self.targets | self.histories


class KnownItems:
    """Map the items of a dataset to the `ids` [V] that a model has for them, NO_ITEM for one that it does not know."""

    def __init__(self, ids: Ints) -> None:
        self.ids = ids
        self._unknown: dict[str, Unknown] = {}

    @property
    def n_unknown(self) -> int:
        """Return how many items the model does not know."""
        return int((self.ids == NO_ITEM).sum())

    def of(self, items: Ints) -> Ints:
        """Return the model's ids of `items`, which have the dataset's ids."""
        return self.ids[items]

    def unknown(self, split: EvaluationSplit) -> Unknown:
        """Return what the model does not know of a `split`; its rows are read once."""
        if split.name not in self._unknown:
            found = Unknown(*(np.zeros(len(split), bool) for _ in range(2)))
            for first in range(0, len(split), ROWS_AT_ONCE):
                where = np.arange(first, min(first + ROWS_AT_ONCE, len(split)))
                rows = split.read(where)
                assert rows.targets is not None, "an evaluation split has targets"
                found.targets[where] = self.of(rows.targets) == NO_ITEM
                found.histories[where] = self.known_lengths(rows) == 0
            self._unknown[split.name] = found
        return self._unknown[split.name]

    def known_lengths(self, rows: Rows) -> Indices:
        """Return how many known items the history of each of `rows` has, [B]."""
        of_items = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
        return np.bincount(of_items[self.of(rows.items) != NO_ITEM], minlength=len(rows.lengths))

    def known_part(self, rows: Rows) -> Rows:
        """Return `rows` in the model's ids, without the items that it does not know.

        A history without a known item keeps its length, with any item in each place: no model takes an empty one.
        """
        items, lengths = self.of(rows.items), self.known_lengths(rows)
        is_kept = (items != NO_ITEM) | np.repeat(lengths == 0, rows.lengths)
        items = np.where(items == NO_ITEM, np.int32(0), items)
        return replace(
            rows,
            items=items[is_kept],
            lengths=np.where(lengths == 0, rows.lengths, lengths),
            times=None if rows.times is None else rows.times[is_kept],
        )


class KnownItemsScorer:
    """Score the items of a dataset by the `scorer` of a model with another catalogue.

    An item that the model does not know is dropped from histories and is no candidate: its score is -inf, as a target
    or a negative UNKNOWN_SCORE. A user without a known item has no candidate at all. The last column of what is known
    of a user, and of an item, is 1 for a known one and 0 for another.
    """

    def __init__(self, scorer: Scorer, known: KnownItems) -> None:
        self._scorer, self._known = scorer, known
        self.n_items, self.partition = len(known.ids), scorer.partition
        self.width, self.dtype = scorer.width + 1, scorer.dtype

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is known of the users of `rows`, [B, width], and their scores of the items `ids`, [B, n]."""
        known_ids, is_known = self._translate(ids)
        users, scores = self._scorer.encode(self._known.known_part(rows), known_ids)
        has_history = torch.from_numpy(self._known.known_lengths(rows) > 0).to(users)
        return torch.cat([users, has_history[:, None]], 1), scores.masked_fill(~is_known, UNKNOWN_SCORE)

    def items(self, ids: Tensor) -> Tensor:
        """Return what is known of the items `ids` [C], [C, D + 1]."""
        known_ids, is_known = self._translate(ids)
        vectors = self._scorer.items(known_ids)
        return torch.cat([vectors, is_known[:, None].to(vectors)], 1)

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the scores [B, C] of users [B, width] for items [C, D + 1]."""
        scores = self._scorer.scores(users[:, :-1].contiguous(), items[:, :-1].contiguous())
        return scores.masked_fill((users[:, -1:] == 0) | (items[:, -1] == 0), -torch.inf)

    def _translate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's ids, any for an unknown item, and which items are known."""
        found = torch.from_numpy(self._known.of(ids.cpu().numpy())).to(ids)
        return found.clamp(min=0), found != NO_ITEM
