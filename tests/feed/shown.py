"""What a batch shows, id by id."""

from typing import Any

import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch, mapped


def shown(batch: Batch) -> Tensor:
    """The ids [total] at the positions, with NO_ITEM for the mask token."""
    return torch.cat([batch.items.ids, torch.tensor([NO_ITEM])])[batch.places]


def tensors_in(batch: Any) -> list[Tensor]:
    """All tensors of nested named tuples."""
    tensors: list[Tensor] = []
    mapped(batch, Tensor, tensors.append)
    return tensors
