"""Who scores items for users; the ranker makes ranks of the scores."""

from typing import Protocol

import torch
from torch import Tensor

from bert4rec.dataset.reader import Rows
from bert4rec.feed.lookup import Lookup, distinct
from bert4rec.models.ranking_model import RankingModel
from bert4rec.runtime.collectives import Partition


class Scorer(Protocol):
    """Scores items by the histories of users; every process of its `partition` makes the same calls.

    What is known of a user are `width` numbers of type `dtype`, the type of scores too.
    """

    n_items: int
    partition: Partition
    width: int
    dtype: torch.dtype

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What is known of the users of `rows`, [B, width], and their scores [B, n] of the items `ids` [B, n]."""
        ...

    def items(self, ids: Tensor) -> Tensor:
        """What is known of the items `ids` [C], [C, …]."""
        ...

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Of users [B, width] and items [C, …]: a new tensor [B, C]."""
        ...


class ModelScorer:
    """Scores by `model` (unwrapped, perhaps sharded) as it is; `max_len` is its own."""

    def __init__(self, model: RankingModel, *, device: torch.device, max_len: int, precision: str = "fp32") -> None:
        self._model, self._device, self._max_len = model.eval(), device, max_len
        self._is_bf16 = precision == "bf16"
        self.n_items, self.partition = model.item_table.n_items, model.item_table.everyone
        self.width, self.dtype = model.width, torch.float32

    def encode(self, rows: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the model makes of them: hidden states, or what it knows of a user."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._is_bf16):
            batch = self._model.ask(rows, self._max_len, self._model.times).to(self._device)
            candidates, places = distinct(ids.flatten().cpu())
            asking, items = self._model.represent(batch, candidates.to(self._device))
        # In fp32 always: bf16 has so few digits that many scores would tie.
        asking, items = asking.float(), items.float().index_select(0, places.to(self._device))
        return asking, self._model.score_own(asking, items.view(*ids.shape, -1))

    def items(self, ids: Tensor) -> Tensor:
        """Their vectors."""
        return self._model.represent_items(Lookup.of(ids))

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """By the model."""
        return self._model.score(users, items)
