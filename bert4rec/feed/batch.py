"""A batch: ragged sequences with the positions to predict, or pairs of a user and an item."""

from typing import Any, NamedTuple, TypeAlias

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
        negatives = self.negatives and self.negatives.to(device)
        return Batch(items, lengths, positions, targets, self.n_sequences, negatives)


class Pairs(NamedTuple):
    """M pairs of a user and an item.

    `users` [M] int64; `targets` [M] int64, their items, or PAD_ID where nothing is to be learnt; `ratings` [M] float32,
    where they are wanted; `n_sequences`, how many pairs the global batch has, this rank's among them; `negatives`, for
    a sampled loss.
    """

    users: Tensor
    targets: Tensor
    ratings: Tensor | None = None
    n_sequences: int = 0
    negatives: Negatives | None = None

    def to(self, device: torch.device) -> "Pairs":
        """The same pairs on `device`, as `Batch.to`."""
        users, targets = (tensor.to(device, non_blocking=True) for tensor in self[:2])
        ratings = None if self.ratings is None else self.ratings.to(device, non_blocking=True)
        negatives = self.negatives and self.negatives.to(device)
        return Pairs(users, targets, ratings, self.n_sequences, negatives)


AnyBatch: TypeAlias = Batch | Pairs


def tensors_of(rows: Rows) -> tuple[Tensor, Tensor]:
    """The items [total] of ragged rows, int64, and their lengths [B]."""
    return long(rows.items), torch.from_numpy(rows.lengths)


def long(values: npt.NDArray[Any]) -> Tensor:
    """Numbers as int64."""
    return torch.from_numpy(values.astype(np.int64))
