"""Sequences as a causal model is trained on them: at each position, what comes next."""

import torch
from torch import Tensor

from bert4rec.dataset.schema import PAD_ID
from bert4rec.feed.batch import Batch


def shift_items(items: Tensor, lengths: Tensor, sequence_ids: Tensor, epoch: int) -> Batch:
    """Each sequence without its last item, with the item after each position as its target (SASRec, section 3.1).

    `items` [total] int64 are the sequences one after another, `lengths` [B] their lengths. A sequence of one item stays
    in the batch, with nothing to be predicted. The same in every `epoch`.
    """
    ends = lengths.cumsum(0)
    is_alone = lengths == 1
    is_shown = torch.ones(len(items), dtype=torch.bool)
    is_shown[ends[~is_alone] - 1] = False
    targets = items.roll(-1)
    targets[ends[is_alone] - 1] = PAD_ID
    shown = items[is_shown]
    return Batch.showing(shown, torch.where(is_alone, 1, lengths - 1), torch.arange(len(shown)), targets[is_shown])
