"""A batch: ragged sequences, and the positions at which something is to be said."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert4rec.dataset.reader import Rows
from bert4rec.feed.negatives import Negatives


@dataclass(frozen=True)
class Batch:
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
        """The same batch on `device`; asynchronous from pinned memory."""
        return self._of(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory (called by the loader)."""
        return self._of(Tensor.pin_memory)

    def _of(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            move(self.items),
            move(self.lengths),
            move(self.positions),
            move(self.targets),
            self.n_sequences,
            self.negatives.map(move) if self.negatives else None,
        )


def tensors_of(rows: Rows) -> tuple[Tensor, Tensor]:
    """The items [total] of ragged rows, int64, and their lengths [B]."""
    return long(rows.items), torch.from_numpy(rows.lengths)


def long(values: npt.NDArray[Any]) -> Tensor:
    """Numbers as int64."""
    return torch.from_numpy(values.astype(np.int64))
