"""Losses: one plain function each, over scores of candidates."""

import torch.nn.functional as F
from torch import Tensor


def softmax_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """The sum of the cross-entropies of `scores` [M, C] and `targets` [M], indices into C; negative ones are ignored.

    The sum, not the mean: the mean is over the positions of all ranks, which only the trainer can count.
    """
    return F.cross_entropy(scores.float(), targets.clamp(min=-1), reduction="sum", ignore_index=-1)
