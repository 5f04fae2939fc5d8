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

    A model that knows `times` is told at each position how long ago the item before was ("history"), or when the next
    one comes ("target").
    """

    times: str = "none"

    def __call__(
        self, items: Tensor, lengths: Tensor, sequence_ids: Tensor, epoch: int, seconds: Tensor | None = None
    ) -> Batch:
        """What the model is trained on, the same in every `epoch`.

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
        gaps = None if seconds is None else self._gaps(seconds, lengths)[is_shown]
        return Batch.showing(shown, n_shown, torch.arange(len(shown)), targets[is_shown], gaps)

    def _gaps(self, seconds: Tensor, lengths: Tensor) -> Tensor:
        return (until_next if self.times == "target" else since_previous)(seconds, lengths)
