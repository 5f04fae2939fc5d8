"""Batches: what they ask tables for, and what moves with them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import FIRST_ITEM_ID, MASK_ID, PAD_ID
from bert4rec.feed.batch import Batch, Candidates, Pairs, tensors_of
from bert4rec.feed.negatives import Negatives

NEGATIVES = Negatives(torch.tensor([9, 4, 9]), torch.tensor([-1.0, -2.0, -1.0]))


def test_equal_items_are_asked_for_once_and_the_mask_token_never() -> None:
    shown = torch.tensor([7, MASK_ID, 3, 7, MASK_ID, 5])
    batch = Batch.showing(shown, torch.tensor([4, 2]), torch.tensor([1, 4]), torch.tensor([8, 9]))
    assert batch.items.ids.tolist() == [3, 5, 7]
    assert batch.places.tolist() == [2, 3, 0, 2, 3, 1]


def test_a_batch_of_mask_tokens_asks_for_nothing() -> None:
    masks = torch.tensor([MASK_ID, MASK_ID])
    batch = Batch.showing(masks, torch.tensor([1, 1]), torch.arange(2), torch.tensor([8, 9]))
    assert (batch.items.ids.tolist(), batch.places.tolist()) == ([], [0, 0])


def test_candidates_are_targets_and_negatives_each_once() -> None:
    candidates = Candidates.of(torch.tensor([5, PAD_ID, 9, 5]), NEGATIVES)
    assert candidates.items.ids.tolist() == [FIRST_ITEM_ID, 4, 5, 9]
    assert candidates.positives.tolist() == [2, 0, 3, 2]
    assert candidates.negatives.tolist() == [3, 1, 3]
    assert candidates.log_expected.tolist() == [-1.0, -2.0, -1.0]


def test_items_that_are_rated_are_candidates_without_negatives() -> None:
    pairs = Pairs.between(torch.tensor([4, 4, 0]), torch.tensor([7, 3, 7]), torch.tensor([1.0, 2.0, 3.0]))
    assert (pairs.users.ids.tolist(), pairs.places.tolist()) == ([0, 4], [1, 1, 0])
    assert pairs.candidates is not None
    assert (pairs.candidates.items.ids.tolist(), pairs.candidates.positives.tolist()) == ([3, 7], [1, 0, 1])
    assert len(pairs.candidates.negatives) == 0
    assert Pairs.between(torch.tensor([4]), torch.tensor([7])).candidates is None


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors(part)] if isinstance(value, tuple) else []


def test_a_batch_moves_whole() -> None:
    batch = Batch.showing(torch.tensor([2, 1]), torch.tensor([2]), torch.tensor([1]), torch.tensor([3]))
    pairs = Pairs.between(torch.tensor([0]), torch.tensor([3]), torch.tensor([0.5]))
    for whole in (batch, pairs):
        whole = whole._replace(n_sequences=7, candidates=Candidates.of(whole.targets, NEGATIVES))
        moved = whole.to(torch.device("meta"))
        assert {tensor.device.type for tensor in tensors(moved)} == {"meta"}
        assert [tensor.shape for tensor in tensors(moved)] == [tensor.shape for tensor in tensors(whole)]
        assert moved.n_sequences == 7


def test_ragged_rows_become_tensors_of_64_bits() -> None:
    items, lengths = tensors_of(Rows(np.array([5, 6, 7], np.int32), np.array([2, 1])))
    assert (items.tolist(), lengths.tolist()) == ([5, 6, 7], [2, 1])
    assert items.dtype == lengths.dtype == torch.int64
