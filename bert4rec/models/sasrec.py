"""SASRec: Kang and McAuley 2018, "Self-Attentive Sequential Recommendation"."""

from typing import Any

from bert4rec.feed.batches import MakeExamples
from bert4rec.feed.shifting import Shifting
from bert4rec.models.sequence_model import SequenceModel


class SASRec(SequenceModel):
    """A causal transformer that predicts at each position the item that comes next.

    With any of the losses: the paper's one negative a position was what held it back (gSASRec: Petrov and Macdonald
    2023; "Turning Dross Into Gold Loss": Klenitskiy and Vasilev 2023). The blocks are those of `SequenceModel`.
    """

    title = "SASRec"
    is_causal = True
    has_mask_token = False

    @staticmethod
    def make_examples(*, times: str = "none", **settings: Any) -> MakeExamples:
        """Return sequences and what comes after each of their positions."""
        return Shifting(times)

    @staticmethod
    def n_targets(n_sequences: int, n_positions: int, *, mask_prob: float) -> int:
        """Return `n_positions`: each position is predicted."""
        return n_positions
