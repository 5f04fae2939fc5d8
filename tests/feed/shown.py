"""What a batch shows, id by id."""

import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch


def shown(batch: Batch) -> Tensor:
    """The ids [total] at the positions, with NO_ITEM for the mask token."""
    return torch.cat([batch.items.ids, torch.tensor([NO_ITEM])])[batch.places]
