"""Bert4Rec: Sun et al. 2019, "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations"."""

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from bert4rec.dataset.reader import Rows
from bert4rec.feed.batch import Batch
from bert4rec.feed.batches import MakeExamples
from bert4rec.feed.inference import with_mask
from bert4rec.feed.masking import Masking
from bert4rec.models.sequence_model import SequenceModel


class Bert4Rec(SequenceModel):
    """A bidirectional transformer that predicts the items at masked positions.

    The mask token's vector is a parameter of its own, on every process. As a row of the table it was a fifth of all
    lookups, and they went to one process.
    """

    title = "Bert4Rec"
    is_causal = False

    def __init__(self, *, embed_dim: int, device: torch.device | str = "meta", **settings: Any) -> None:
        super().__init__(embed_dim=embed_dim, device=device, **settings)
        self.mask_vector = nn.Parameter(torch.empty(embed_dim, device=device))

    def _with_tokens(self, vectors: Tensor) -> Tensor:
        """With the mask token's vector behind the last of the items, where `Batch.places` has it."""
        return torch.cat([vectors, self.mask_vector[None]])

    @staticmethod
    def make_examples(**settings: Any) -> MakeExamples:
        """Masked sequences."""
        return Masking(**{field.name: settings[field.name] for field in fields(Masking)})

    @staticmethod
    def n_targets(n_sequences: int, n_positions: int, *, mask_prob: float) -> int:
        """The mean, and one more a sequence."""
        return min(n_positions, math.ceil(n_positions * mask_prob) + n_sequences)

    @staticmethod
    def ask(rows: Rows, max_len: int) -> Batch:
        """The mask token after each history."""
        return with_mask(rows, max_len)
