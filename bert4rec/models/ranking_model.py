"""The base class of every model that ranks items: tables, queries, scores, loss, training data and size.

The model does not depend on the number of processes: parallelism is applied from outside. Shapes: M positions to
predict, C candidates, D = the width of queries and items.
"""

from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bert4rec.config.kinds import KINDS, Kind, needs_negatives
from bert4rec.dataset.histories import Rows, TrainingWindows
from bert4rec.feed.batch import AnyBatch, Lookup, weights_of
from bert4rec.feed.batches import Examples
from bert4rec.models.losses import SAMPLED_LOSSES, LossSettings, PartSizes, Sampled, softmax_loss
from bert4rec.models.tables import CataloguePart, IdExchange, ItemTable, Table


class RankingModel(nn.Module):
    """Scores items for queries; the loss is "softmax" or one of `SAMPLED_LOSSES`.

    A subclass encodes queries and items; it may also replace the scores, which are dot products by default.
    """

    kind: ClassVar[Kind]
    times = "none"  # the setting model.times
    score_numel_factor = 1  # values in memory per score of a sampled loss

    def __init__(self, item_table: ItemTable, loss: LossSettings) -> None:
        super().__init__()
        self.item_table, self.loss, self.gbce_calibration = item_table, loss.loss, loss.gbce_calibration
        self.needs_negatives = needs_negatives(self.loss)

    @classmethod
    def examples(cls, windows: TrainingWindows, **settings: Any) -> Examples:
        """Return the training examples: the `windows`, or the pairs of their histories.

        `settings`: `loss`, `rating_validation`, and the keywords of `Masking`, including `times` and `event_weights`.
        """
        raise NotImplementedError

    def n_positions(self, batch_size: int) -> int:
        """Return the maximum number of positions of `batch_size` examples."""
        raise NotImplementedError

    @staticmethod
    def inference_batch(rows: Rows, max_len: int, times: str = "none") -> AnyBatch:
        """Return the inference batch of rows of an evaluation split; `times` is the model's setting."""
        raise NotImplementedError

    def encode_queries(self, batch: Any, candidates: Lookup) -> tuple[Tensor, Tensor]:
        """Return the queries [M, D] at the batch's positions, and the vectors [C, D] of the `candidates`."""
        raise NotImplementedError

    def encode_for_catalogue(self, batch: Any) -> tuple[Tensor, CataloguePart]:
        """Return the queries [M, d], without columns for the item bias, and this process's part of the catalogue."""
        raise NotImplementedError

    def encode_items(self, items: Lookup) -> Tensor:
        """Return the vectors [C, D] of the `items`."""
        return self.item_table.candidates(items)

    def score(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return the scores [M, C] of items [C, D] for queries [M, D]."""
        return queries @ items.T

    def score_pairs(self, queries: Tensor, items: Tensor) -> Tensor:
        """Return the scores [..., n] of queries [..., D] with their own items [..., n, D]."""
        return (items * queries.unsqueeze(-2)).sum(-1)

    @property
    def width(self) -> int:
        """Return the width D of queries and items."""
        return self.item_table.width

    def forward(self, batch: Any) -> Tensor:
        """Return the sum of the losses of the positions times their weights; those with target NO_ITEM are ignored."""
        if self.item_table.features is not None:
            self.item_table.features.step = batch.step
        return self._sampled_loss(batch) if self.needs_negatives else self._exact_loss(batch)

    def _exact_loss(self, batch: Any) -> Tensor:
        queries, part = self.encode_for_catalogue(batch)
        partition, sizes = self.item_table.partition, None
        if partition.n_processes > 1:  # without counts, the host waits for the device
            n_positions = batch.counts and partition.select(batch.counts)
            counts = n_positions or partition.counts(len(queries), queries.device)
            sizes = PartSizes(counts, partition.largest(self.item_table.n_items))
        return softmax_loss(
            queries, part.vectors, batch.targets, partition, first=part.first, averaged=part.is_averaged,
            weights=batch.weights, sizes=sizes,
        )  # fmt: skip

    def _sampled_loss(self, batch: AnyBatch) -> Tensor:
        candidates = batch.candidates
        assert candidates is not None, f"{self.loss} needs negatives"
        queries, items = self.encode_queries(batch, candidates.items)
        targets, negatives = (items.index_select(0, places) for places in (candidates.positives, candidates.negatives))
        positive = self.score_pairs(queries, targets[:, None])[:, 0].float()
        negative = self.score(queries, negatives).float()
        is_masked = candidates.positives[:, None] == candidates.negatives
        if self.item_table.features is not None:  # as in the softmax: cold items would only learn to be scored low
            are_cold = self.item_table.features.are_cold(candidates.items)
            is_masked = is_masked | are_cold.index_select(0, candidates.negatives)
        negative = negative.masked_fill(is_masked, -torch.inf)
        scores = Sampled(positive, negative, candidates.log_expected, self.item_table.n_items, self.gbce_calibration)
        return (SAMPLED_LOSSES[self.loss](scores) * weights_of(batch)).sum()

    def lookups(self, batch: Any) -> list[tuple[Table, dict[str, Lookup]]]:
        """Return the lookups of `forward` that depend on the batch alone, in order: each table and its ids."""
        raise NotImplementedError

    def begin_lookups(self, batch: Any) -> None:
        """Begin the lookups of a later `forward` of the same tensors of `batch`: the processes exchange id counts."""
        for table, lookups in self.lookups(batch):
            table.begin(lookups, batch.arrived)

    def send_ids(self) -> None:
        """Send the ids of the lookups that have begun."""
        for exchange in self._exchanges():
            exchange.send()

    def discard_lookups(self) -> None:
        """Complete and discard the lookups that have begun, if their `forward` is not called."""
        for exchange in self._exchanges():
            exchange.discard()

    def _exchanges(self) -> list[IdExchange]:
        return [table.exchange for table in self.tables if table.exchange is not None]

    @property
    def tables(self) -> list[Table]:
        """Return the tables that can be sharded."""
        return [module for module in self.modules() if isinstance(module, Table)]

    def lookups_per_step(self, *, n_positions: int, n_candidates: int) -> dict[str, int]:
        """Return feature → number of ids that a process looks up per step."""
        raise NotImplementedError

    def activation_numel(self, n_positions: int, n_targets: int) -> int:
        """Return the number of values that a step keeps for backward, without looked-up vectors and scores."""
        raise NotImplementedError


def model_class(kind: str) -> type[RankingModel]:
    """Return the class of a `kind` of trained models."""
    module, _, name = KINDS[kind].model.rpartition(".")
    return getattr(import_module(module), name)
