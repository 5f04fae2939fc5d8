"""Which rows of a table a batch needs: each once, and where each of them is wanted.

Worked out by whoever reads the batch, beside the training where there are loader processes: an id that comes often
then travels once, its gradients are added up before they travel, and no GPU has to be waited for.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

ID_ROWS = 64  # rows of a KeyedJaggedTensor over which ids are spread that belong to nobody in particular
# With a table of places, for ids up to so many times their number; that was faster than a sort for 13,000 ids up to
# 1,000,000 (0.03 … 0.3 ms against 0.5 … 0.9).
LARGEST_COUNTED = 64


class Lookup(NamedTuple):
    """`ids` [U] int64 of rows of a table, and `lengths` [ID_ROWS], of the rows that they make in a KeyedJaggedTensor.

    The tensor itself is made beside the table: to import TorchRec takes a loader process seconds and memory, to make
    it takes microseconds.
    """

    ids: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, ids: Tensor) -> "Lookup":
        """Return the lookup of `ids`."""
        return cls(ids, spread(len(ids), ids.device))

    def to(self, device: torch.device) -> "Lookup":
        """Return it on `device`, asynchronously from pinned memory."""
        return Lookup(*(tensor.to(device, non_blocking=True) for tensor in self))


def spread(n_ids: int, device: torch.device) -> Tensor:
    """Return even lengths of `ID_ROWS` rows with `n_ids` ids: fbgemm shards each row by a thread."""
    return (torch.arange(ID_ROWS + 1, device=device) * n_ids // ID_ROWS).diff()


def distinct(ids: Tensor) -> tuple[Lookup, Tensor]:
    """Return the distinct ones of `ids` [N] int64, ascending, and which of them stands at each place, [N] int64.

    `ids` are on the CPU and not below 0.

    >>> found, places = distinct(torch.tensor([7, 2, 7]))
    >>> found.ids.tolist(), places.tolist()
    ([2, 7], [1, 0, 1])
    """
    numbers = ids.numpy()
    if len(numbers) and numbers.max() < LARGEST_COUNTED * len(numbers):
        is_there = np.zeros(numbers.max() + 1, bool)
        is_there[numbers] = True
        found = np.flatnonzero(is_there)
        place_of = np.empty(len(is_there), np.int64)
        place_of[found] = np.arange(len(found))
        places = place_of[numbers]
    else:
        found, places = np.unique(numbers, return_inverse=True)
    return Lookup.of(torch.from_numpy(found)), torch.from_numpy(places)
