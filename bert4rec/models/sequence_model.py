"""A sequence model: an encoder between the item table and the scores.

Shapes: N positions in all, U distinct items at them, M positions to predict, C candidates, d = embed_dim, D = d and the
columns of a bias.
"""

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from bert4rec.config.kinds import KINDS
from bert4rec.dataset.histories import Rows, TrainingWindows
from bert4rec.feed.batch import Batch, Lookup
from bert4rec.feed.batches import Examples, MakeExamples, Windows
from bert4rec.feed.inference import append_mask_batch, causal_batch
from bert4rec.feed.masking import Masking, Shifting
from bert4rec.models.losses import SOFTMAX, LossSettings
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import CataloguePart, ItemTable, Table
from bert4rec.models.transformer import Encoder, EncoderSettings, append_ones


class SequenceModel(RankingModel):
    """A transformer over item sequences whose hidden states are scored against the items.

    Differences from the papers, each for a reason: blocks normalise first (pre-LN), which trains without warm-up, and
    what enters the first is normalised, so that no item is lost beside what blocks add; attention knows how far apart
    two items are, by rotary positions, or positions count from the end; logits are computed for the positions to
    predict only, and so are the queries of the last block, since nothing else is read from it. `encoder`: its settings.
    """

    def __init__(
        self, *, n_items: int, head: str, output_bias: bool, loss: LossSettings = SOFTMAX,
        device: torch.device | str = "meta", **encoder: Any,
    ) -> None:  # fmt: skip
        settings = EncoderSettings(**encoder)
        embed_dim = settings.embed_dim
        super().__init__(ItemTable(n_items, embed_dim, head=head, output_bias=output_bias, device=device), loss)
        # On every process: as a row of the table it was a fifth of all lookups, and they went to one process.
        self.mask_vector = nn.Parameter(torch.empty(embed_dim, device=device)) if self.kind.has_mask_token else None
        self.times = settings.times
        self.encoder = Encoder(settings, is_causal=self.kind.is_causal, device=device)

    @staticmethod
    def make_examples(**settings: Any) -> MakeExamples:
        """Return what is to be predicted of sequences; `settings` as for `examples`."""
        raise NotImplementedError

    @classmethod
    def examples(cls, windows: TrainingWindows, **settings: Any) -> Examples:
        """Return the windows as sequences."""
        return Windows(windows, cls.make_examples(**settings))

    @classmethod
    def inference_batch(cls, rows: Rows, max_len: int, times: str = "none") -> Batch:
        """Return the histories, each with the mask token behind it if the kind has one."""
        return (append_mask_batch if cls.kind.has_mask_token else causal_batch)(rows, max_len, times)

    def n_positions(self, batch_size: int) -> int:
        """Return the positions of the longest sequences."""
        return batch_size * self.encoder.max_len

    def encode_queries(self, batch: Batch, candidates: Lookup) -> tuple[Tensor, Tensor]:
        """Return hidden states [M, D] at the batch's positions and vectors [C, D] of the `candidates`."""
        vectors, of_candidates = self.item_table.look_up_items(batch.items, candidates)
        return self._encode(vectors, batch), of_candidates

    def encode_for_catalogue(self, batch: Batch) -> tuple[Tensor, CataloguePart]:
        """Return hidden states [M, D], and this process's part of the catalogue."""
        vectors, part = self.item_table.look_up_catalogue(batch.items)
        return self._encode(vectors, batch), part

    def lookups(self, batch: Batch) -> list[tuple[Table, dict[str, Lookup]]]:
        """Return items and candidates; where the whole catalogue is scored, the items."""
        candidates = batch.candidates and batch.candidates.items
        if candidates is None and self.item_table.head is None and self.item_table.dense_shard is None:
            return []  # with the rows of a part of the catalogue, in one round
        return [(self.item_table, self.item_table.lookups(batch.items, candidates))]

    def _encode(self, vectors: Tensor, batch: Batch) -> Tensor:
        """Return hidden states [M, D] for vectors [U, d] of the distinct items."""
        if self.mask_vector is not None:  # where `Batch.places` has it
            vectors = torch.cat([vectors, self.mask_vector[None]])
        at_positions = vectors.index_select(0, batch.places)
        hidden = self.encoder(at_positions, batch.lengths, batch.positions, batch.gaps, batch.instants)
        return append_ones(hidden, self.item_table.width)

    def lookups_per_step(self, *, n_positions: int, n_candidates: int) -> dict[str, int]:
        """Return the ids of each feature of the tables in a step of a process."""
        return {"item": n_positions, "candidate": n_candidates}

    def activation_numel(self, n_positions: int, n_targets: int) -> int:
        """Return numbers that a step keeps for backward, without vectors that are looked up and scores."""
        return self.encoder.activation_numel(n_positions, n_targets)


class Bert4Rec(SequenceModel):
    """A bidirectional transformer that predicts the items at masked positions."""

    kind = KINDS["bert4rec"]

    @staticmethod
    def make_examples(**settings: Any) -> MakeExamples:
        """Return masked sequences."""
        return Masking(**{field.name: settings[field.name] for field in fields(Masking) if field.name in settings})

    @staticmethod
    def n_targets(n_sequences: int, n_positions: int, *, mask_prob: float) -> int:
        """Return the mean number of masked positions, and one more a sequence."""
        return min(n_positions, math.ceil(n_positions * mask_prob) + n_sequences)


class SASRec(SequenceModel):
    """A causal transformer that predicts at each position the item that comes next.

    With any of the losses: the paper's one negative a position was what held it back (gSASRec: Petrov and Macdonald
    2023; "Turning Dross Into Gold Loss": Klenitskiy and Vasilev 2023). The blocks are those of `SequenceModel`.
    """

    kind = KINDS["sasrec"]

    @staticmethod
    def make_examples(*, times: str = "none", **settings: Any) -> MakeExamples:
        """Return sequences and what comes after each of their positions."""
        return Shifting(times)

    @staticmethod
    def n_targets(n_sequences: int, n_positions: int, *, mask_prob: float) -> int:
        """Return `n_positions`: each position is predicted."""
        return n_positions
