"""A batch: ragged sequences, and the positions to predict."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.reader import Rows
from bert4rec.feed.negatives import Negatives


class Batch(NamedTuple):
    """Sequences to encode and the positions to predict.

    `items` [total] int64, the sequences one after another; `lengths` [B] int64; `positions` [M] int64, indices into
    `items`, ascending; `targets` [M] int64, the items that were there, or PAD_ID where nothing is to be predicted;
    `n_sequences`, how many the global batch has, this rank's among them; `negatives`, for a sampled loss.
    """

    items: Tensor
    lengths: Tensor
    positions: Tensor
    targets: Tensor
    n_sequences: int = 0
    negatives: Negatives | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`; asynchronous from pinned memory, into which the loader brings named tuples."""
        items, lengths, positions, targets = (tensor.to(device, non_blocking=True) for tensor in self[:4])
        negatives = self.negatives and Negatives(*(tensor.to(device, non_blocking=True) for tensor in self.negatives))
        return Batch(items, lengths, positions, targets, self.n_sequences, negatives)


def tensors_of(rows: Rows) -> tuple[Tensor, Tensor]:
    """The items [total] of ragged rows, int64, and their lengths [B]."""
    return long(rows.items), torch.from_numpy(rows.lengths)


def long(values: npt.NDArray[Any]) -> Tensor:
    """Numbers as int64."""
    return torch.from_numpy(values.astype(np.int64))
