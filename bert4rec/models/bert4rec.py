"""Bert4Rec: Sun et al. 2019, "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations"."""

import math
from dataclasses import fields
from typing import Any

from bert4rec.feed.batches import MakeExamples
from bert4rec.feed.masking import Masking
from bert4rec.models.sequence_model import SequenceModel


class Bert4Rec(SequenceModel):
    """A bidirectional transformer that predicts the items at masked positions."""

    title = "Bert4Rec"
    is_causal = False
    has_mask_token = True

    @staticmethod
    def make_examples(**settings: Any) -> MakeExamples:
        """Return masked sequences."""
        return Masking(**{field.name: settings[field.name] for field in fields(Masking) if field.name in settings})

    @staticmethod
    def n_targets(n_sequences: int, n_positions: int, *, mask_prob: float) -> int:
        """Return the mean number of masked positions, and one more a sequence."""
        return min(n_positions, math.ceil(n_positions * mask_prob) + n_sequences)
