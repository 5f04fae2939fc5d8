"""Sequence models: an encoder between the item table and the scores.

Shapes: N positions in total, U distinct items, M positions to predict, C candidates, d = embed_dim, D = d plus the
columns of the item bias.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bert4rec.config.kinds import KINDS
from bert4rec.dataset.histories import Rows, TrainingWindows
from bert4rec.feed.batch import Batch, Lookup
from bert4rec.feed.batches import Examples, MakeExamples, Windows
from bert4rec.feed.inference import append_mask_batch, causal_batch
from bert4rec.feed.masking import Masking, Shifting
from bert4rec.models.item_features import FeatureSettings
from bert4rec.models.losses import SOFTMAX, LossSettings
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import CataloguePart, ItemTable, Table
from bert4rec.models.transformer import Encoder, EncoderSettings, append_ones


class SequenceModel(RankingModel):
    """A transformer over item sequences whose hidden states are scored against the items.

    Differences from the papers:

    - Blocks normalise their input (pre-LN), which trains without warm-up. The input of the first block can be
      normalised too: rare items have small embeddings, which the residual stream would dominate.
    - Positions are rotary, so that attention depends on the distance of two items, or they count from the end.
    - A learned bias per item, which is its popularity apart from its embedding, is added to the scores.
    - Logits are computed only for the positions to predict, and so are the queries of the last block.

    `encoder`: the settings of the encoder; `features`: those of the item features, if the items have any.
    """

    def __init__(
        self, *, n_items: int, head: str, loss: LossSettings = SOFTMAX, features: FeatureSettings | None = None,
        device: torch.device | str = "meta", **encoder: Any,
    ) -> None:  # fmt: skip
        settings = EncoderSettings(**encoder)
        embed_dim = settings.embed_dim
        item_table = ItemTable(n_items, embed_dim, head=head, output_bias=True, features=features, device=device)
        super().__init__(item_table, loss)
        # Replicated: as a row of the table, the mask token was a fifth of all lookups, all served by one process.
        self.mask_vector = nn.Parameter(torch.empty(embed_dim, device=device)) if self.kind.has_mask_token else None
        self.times = settings.times
        self.encoder = Encoder(settings, is_causal=self.kind.is_causal, device=device)

    make_examples: ClassVar[Callable[..., MakeExamples]]
    """Returns the function that makes batches of sequences; its settings are those of `examples`."""

    @classmethod
    def examples(cls, windows: TrainingWindows, **settings: Any) -> Examples:
        """Return the windows as training sequences."""
        return Windows(windows, cls.make_examples(**settings))

    @classmethod
    def inference_batch(cls, rows: Rows, max_len: int, times: str = "none") -> Batch:
        """Return the histories as a batch, each followed by the mask token if the kind has one."""
        return (append_mask_batch if cls.kind.has_mask_token else causal_batch)(rows, max_len, times)

    def n_positions(self, batch_size: int) -> int:
        """Return the number of positions of `batch_size` sequences of maximum length."""
        return batch_size * self.encoder.max_len

    def encode_queries(self, batch: Batch, candidates: Lookup) -> tuple[Tensor, Tensor]:
        """Return the hidden states [M, D] at the batch's positions and the vectors [C, D] of the `candidates`."""
        vectors, candidate_vectors = self.item_table.look_up_items(batch.items, candidates)
        return append_ones(self._encode(vectors, batch), self.item_table.width), candidate_vectors

    def encode_for_catalogue(self, batch: Batch) -> tuple[Tensor, CataloguePart]:
        """Return the hidden states [M, d], and this process's part of the catalogue."""
        vectors, part = self.item_table.look_up_catalogue(batch.items)
        return self._encode(vectors, batch), part

    def lookups(self, batch: Batch) -> list[tuple[Table, dict[str, Lookup]]]:
        """Return the lookups of items and, if the batch has any, candidates."""
        candidates = batch.candidates and batch.candidates.items
        if candidates is None and self.item_table.head is None and self.item_table.dense_shard is None:
            return []  # `look_up_catalogue` combines them with the rows of its part, which the batch does not list
        return self.item_table.all_lookups(batch.items, candidates)

    def _encode(self, vectors: Tensor, batch: Batch) -> Tensor:
        """Return the hidden states [M, d] for the vectors [U, d] of the distinct items."""
        if self.mask_vector is not None:  # after the items, as in `Batch.places`
            vectors = torch.cat([vectors, self.mask_vector[None]])
        at_positions = self.encoder.add_events(vectors.index_select(0, batch.places), batch.events)
        return self.encoder(at_positions, batch.lengths, batch.positions, batch.gaps, batch.instants, batch.widths)

    def lookups_per_step(self, *, n_positions: int, n_candidates: int) -> dict[str, int]:
        """Return feature → number of ids that a process looks up per step."""
        return {"item": n_positions, "candidate": n_candidates}

    def activation_numel(self, n_positions: int, n_targets: int) -> int:
        """Return the number of values that a step keeps for backward, without looked-up vectors and scores."""
        return self.encoder.activation_numel(n_positions, n_targets)


class Bert4Rec(SequenceModel):
    """A bidirectional transformer that predicts the items at masked positions."""

    kind = KINDS["bert4rec"]

    @staticmethod
    def make_examples(**settings: Any) -> MakeExamples:
        """Return the function that masks sequences."""
        return Masking(**{field.name: settings[field.name] for field in fields(Masking) if field.name in settings})


class SASRec(SequenceModel):
    """A causal transformer that predicts the next item at each position.

    It takes any of the losses: the paper's single negative per position limits its accuracy (gSASRec: Petrov and
    Macdonald 2023; "Turning Dross Into Gold Loss": Klenitskiy and Vasilev 2023). The blocks are those of
    `SequenceModel`.
    """

    kind = KINDS["sasrec"]

    @staticmethod
    def make_examples(*, times: str = "none", event_weights: Sequence[float] = (), **settings: Any) -> MakeExamples:
        """Return the function that makes sequences with the next item of each position as its target."""
        return Shifting(times, event_weights)
