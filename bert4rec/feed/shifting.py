"""Sequences as a causal model is trained on them: at each position, what comes next."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bert4rec.dataset.schema import PAD_ID
from bert4rec.feed.batch import Batch
from bert4rec.feed.gaps import since_previous, until_next


@dataclass(frozen=True)
class Shifting:
    """Each sequence without its last item, with the item after each position as its target (SASRec, section 3.1).

    A model that knows `times` is told at each position its own instant and how long before it the item before was
    ("history"), or the instant of the next one and how long until then ("target").
    """

    times: str = "none"

    def __call__(
        self, items: Tensor, lengths: Tensor, sequence_ids: Tensor, epoch: int, seconds: Tensor | None = None
    ) -> Batch:
        """Return what the model is trained on, the same in every `epoch`.

        `items` [total] int64 are the sequences one after another, `lengths` [B] their lengths, `seconds` [total] when
        they were taken. A sequence of one item stays in the batch, with nothing to be predicted.
        """
        ends = lengths.cumsum(0)
        is_alone = lengths == 1
        is_shown = torch.ones(len(items), dtype=torch.bool)
        is_shown[ends[~is_alone] - 1] = False
        targets = items.roll(-1)
        targets[ends[is_alone] - 1] = PAD_ID
        shown, n_shown = items[is_shown], torch.where(is_alone, 1, lengths - 1)
        gaps = instants = None
        if seconds is not None:
            told, known = self._times(seconds, lengths)
            gaps, instants = told[is_shown], known[is_shown]
        return Batch.showing(shown, n_shown, torch.arange(len(shown)), targets[is_shown], gaps, instants)

    def _times(self, seconds: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return gaps and instants of all positions."""
        if self.times == "target":
            gaps = until_next(seconds, lengths)
            return gaps, seconds + gaps
        return since_previous(seconds, lengths), seconds
