"""Rows of lists, and what a batch shows, id by id."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Batch, mapped


def rows_of(items: Sequence[Sequence[int]], **others: Any) -> Rows:
    """The rows of these lists; of the `others`, such as times, each is a list a row, too."""
    arrays = {name: np.array([value for row in lists for value in row]) for name, lists in others.items()}
    flat = np.array([item for row in items for item in row], np.int32)
    return Rows(flat, np.array([*map(len, items)]), **arrays)


def shown(batch: Batch) -> Tensor:
    """The ids [total] at the positions, with NO_ITEM for the mask token."""
    return torch.cat([batch.items.ids, torch.tensor([NO_ITEM])])[batch.places]


def tensors_in(batch: Any) -> list[Tensor]:
    """All tensors of nested named tuples."""
    tensors: list[Tensor] = []
    mapped(batch, Tensor, tensors.append)
    return tensors
