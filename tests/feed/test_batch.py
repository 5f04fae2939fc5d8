"""Batches: what moves with them."""

import numpy as np
import torch

from bert4rec.dataset.reader import Rows
from bert4rec.feed.batch import Batch, tensors_of


def test_a_batch_moves_whole() -> None:
    batch = Batch(torch.tensor([2, 1]), torch.tensor([2]), torch.tensor([1]), torch.tensor([3]))
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved, name).device.type for name in ("items", "lengths", "positions", "targets")} == {"meta"}


def test_ragged_rows_become_tensors_of_64_bits() -> None:
    items, lengths = tensors_of(Rows(np.array([5, 6, 7], np.int32), np.array([2, 1])))
    assert (items.tolist(), lengths.tolist()) == ([5, 6, 7], [2, 1])
    assert items.dtype == lengths.dtype == torch.int64
