"""Batches, lookups and flat batches: what they hold, how they travel."""

import pickle
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import (
    ID_ROWS,
    LARGEST_COUNTED,
    TENSOR_ALIGNMENT,
    Batch,
    Candidates,
    FlatBatch,
    Lookup,
    Pairs,
    Widths,
    unique_with_inverse,
)
from bert4rec.feed.negatives import Negatives
from tests.feed.shown import tensors_in

NEGATIVES = Negatives(torch.tensor([9, 4, 9]), torch.tensor([-1.0, -2.0, -1.0]))
NONE = torch.tensor([], dtype=torch.int64)


@pytest.mark.parametrize(
    ("shown", "lengths", "positions", "ids", "places", "widths"),
    [
        ([7, NO_ITEM, 3, 7, NO_ITEM, 5], [4, 2], [1, 4], [3, 5, 7], [2, 3, 0, 2, 3, 1], Widths(4, 1)),
        ([NO_ITEM, NO_ITEM], [1, 1], [0, 1], [], [0, 0], Widths(1, 1)),
        ([3, 1, 4, 1, 5, 9], [1, 3, 2], [1, 3, 5], [1, 3, 4, 5, 9], [1, 0, 2, 0, 3, 4], Widths(3, 2)),
        ([3], [1], [], [3], [0], Widths(1, 0)),
    ],
)
def test_equal_items_are_asked_for_once_and_the_mask_token_never(
    shown: list[int], lengths: list[int], positions: list[int], ids: list[int], places: list[int], widths: Widths
) -> None:
    at = torch.tensor(positions, dtype=torch.int64)
    batch = Batch.from_items(torch.tensor(shown), torch.tensor(lengths), at, at)
    assert (batch.items.ids.tolist(), batch.places.tolist(), batch.widths) == (ids, places, widths)


def test_candidates_are_targets_and_negatives_each_once() -> None:
    candidates = Candidates.of(torch.tensor([5, NO_ITEM, 9, 5]), NEGATIVES)
    assert candidates.items.ids.tolist() == [0, 4, 5, 9]
    assert candidates.positives.tolist() == [2, 0, 3, 2]
    assert candidates.negatives.tolist() == [3, 1, 3]
    assert candidates.log_expected.tolist() == [-1.0, -2.0, -1.0]


def test_items_that_are_rated_are_candidates_without_negatives() -> None:
    pairs = Pairs.between(torch.tensor([4, 4, 0]), torch.tensor([7, 3, 7]), torch.tensor([1.0, 2.0, 3.0]))
    assert (pairs.users.ids.tolist(), pairs.places.tolist()) == ([0, 4], [1, 1, 0])
    assert (pairs.candidates.items.ids.tolist(), pairs.candidates.positives.tolist()) == ([3, 7], [1, 0, 1])
    assert len(pairs.candidates.negatives) == 0
    assert Pairs.between(torch.tensor([4]), torch.tensor([7])).candidates is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 3) | st.integers(0, 2**40), max_size=30))
@example([5 * LARGEST_COUNTED - 1, 3, 5 * LARGEST_COUNTED - 1, 0, 3])
@example([5 * LARGEST_COUNTED, 3, 5 * LARGEST_COUNTED, 0, 3])
def test_each_id_comes_once_and_all_come_back(ids: list[int]) -> None:
    """Few and small ones are counted, large ones are sorted."""
    found, places = unique_with_inverse(torch.tensor(ids, dtype=torch.int64))
    assert found.ids.tolist() == sorted({*ids})
    assert found.ids[places].tolist() == ids
    assert {tensor.dtype for tensor in (found.ids, found.lengths, places)} == {torch.int64}


@pytest.mark.parametrize("n", [0, 1, ID_ROWS, 3 * ID_ROWS + 5])
def test_ids_are_spread_evenly_over_the_rows(n: int) -> None:
    lengths = Lookup.of(torch.arange(n)).lengths
    assert (len(lengths), int(lengths.sum())) == (ID_ROWS, n)
    assert int(lengths.max() - lengths.min()) <= 1


TARGETS = torch.tensor([5, 7, 5])
SEQUENCES = Batch.from_items(torch.tensor([3, 1, 4]), torch.tensor([1, 2]), torch.tensor([1]), torch.tensor([9]))
BATCHES: dict[str, Any] = {
    "sequences": SEQUENCES._replace(n_sequences=2),
    "sequences and negatives": SEQUENCES._replace(candidates=Candidates.of(TARGETS, NEGATIVES)),
    "pairs": Pairs.between(torch.tensor([2, 2, 9]), TARGETS),
    "rated pairs": Pairs.between(torch.tensor([2, 2, 9]), TARGETS, torch.tensor([3.5, 1.0, 5.0])),
    "one number everywhere": SEQUENCES._replace(places=torch.tensor([4]).expand(3)),
    "nothing to predict": SEQUENCES._replace(positions=NONE),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_batch_goes_whole_to_another_process_in_one_tensor_and_to_another_device(batch: Any) -> None:
    flat = FlatBatch.of(batch)
    assert tensors_in(flat) == [flat.content]
    assert _described(pickle.loads(pickle.dumps(flat)).unpack()) == _described(batch)
    first, parts = flat.content.data_ptr(), [tensor for tensor in tensors_in(flat.unpack()) if len(tensor)]
    assert {(tensor.data_ptr() - first) % TENSOR_ALIGNMENT for tensor in parts} == {0}  # as torch allocates them
    moved = batch.to(torch.device("meta"))
    assert {tensor.device.type for tensor in tensors_in(moved)} == {"meta"}
    assert [tensor.shape for tensor in tensors_in(moved)] == [tensor.shape for tensor in tensors_in(batch)]
    assert moved.n_sequences == batch.n_sequences


def _described(batch: Any) -> Any:
    """Structure, types and numbers."""
    if isinstance(batch, Tensor):
        return batch.dtype, batch.tolist()
    if isinstance(batch, tuple):
        return type(batch), [_described(part) for part in batch]
    return batch
