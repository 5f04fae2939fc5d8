"""Batches, lookups and parcels: what they hold, how they travel."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
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
    tensors_of,
    unique_with_inverse,
)
from bert4rec.feed.negatives import Negatives
from tests.feed.shown import tensors_in

NEGATIVES = Negatives(torch.tensor([9, 4, 9]), torch.tensor([-1.0, -2.0, -1.0]))


def test_equal_items_are_asked_for_once_and_the_mask_token_never() -> None:
    shown = torch.tensor([7, NO_ITEM, 3, 7, NO_ITEM, 5])
    batch = Batch.from_items(shown, torch.tensor([4, 2]), torch.tensor([1, 4]), torch.tensor([8, 9]))
    assert batch.items.ids.tolist() == [3, 5, 7]
    assert batch.places.tolist() == [2, 3, 0, 2, 3, 1]


def test_a_batch_of_mask_tokens_asks_for_nothing() -> None:
    masks = torch.tensor([NO_ITEM, NO_ITEM])
    batch = Batch.from_items(masks, torch.tensor([1, 1]), torch.arange(2), torch.tensor([8, 9]))
    assert (batch.items.ids.tolist(), batch.places.tolist()) == ([], [0, 0])


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


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors(part)] if isinstance(value, tuple) else []


def test_a_batch_moves_whole() -> None:
    batch = Batch.from_items(torch.tensor([2, 1]), torch.tensor([2]), torch.tensor([1]), torch.tensor([3]))
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


@settings(deadline=None)
@given(st.lists(st.integers(0, 3) | st.integers(0, 2**40), max_size=30))
def test_each_id_comes_once_and_all_come_back(ids: list[int]) -> None:
    """Few and small ones are counted, large ones are sorted."""
    found, places = unique_with_inverse(torch.tensor(ids, dtype=torch.int64))
    assert found.ids.tolist() == sorted({*ids})
    assert found.ids[places].tolist() == ids
    assert {tensor.dtype for tensor in (found.ids, found.lengths, places)} == {torch.int64}


@pytest.mark.parametrize("largest", [5 * LARGEST_COUNTED - 1, 5 * LARGEST_COUNTED])
def test_both_ways_agree(largest: int) -> None:
    found, places = unique_with_inverse(torch.tensor([largest, 3, largest, 0, 3]))
    assert (found.ids.tolist(), places.tolist()) == ([0, 3, largest], [2, 1, 2, 0, 1])


@pytest.mark.parametrize("n", [0, 1, ID_ROWS, 3 * ID_ROWS + 5])
def test_ids_are_spread_evenly_over_the_rows(n: int) -> None:
    lengths = Lookup.of(torch.arange(n)).lengths
    assert (len(lengths), int(lengths.sum())) == (ID_ROWS, n)
    assert int(lengths.max() - lengths.min()) <= 1


TARGETS = torch.tensor([5, 7, 5])
DRAWN = Negatives(torch.tensor([3, 4]), torch.tensor([0.5, 0.25]))


def test_a_batch_knows_its_longest_sequence_and_the_most_positions_of_one() -> None:
    batch = Batch.from_items(
        torch.tensor([3, 1, 4, 1, 5, 9]), torch.tensor([1, 3, 2]), torch.tensor([1, 3, 5]), torch.tensor([9, 8, 7])
    )
    assert batch.widths == Widths(longest=3, most_positions=2)
    none = torch.tensor([], dtype=torch.int64)
    nothing = Batch.from_items(torch.tensor([3]), torch.tensor([1]), none, none)
    assert nothing.widths == Widths(longest=1, most_positions=0)


SEQUENCES = Batch.from_items(torch.tensor([3, 1, 4]), torch.tensor([1, 2]), torch.tensor([1]), torch.tensor([9]))
BATCHES: dict[str, Any] = {
    "sequences": SEQUENCES._replace(n_sequences=2),
    "sequences and negatives": SEQUENCES._replace(candidates=Candidates.of(TARGETS, DRAWN)),
    "pairs": Pairs.between(torch.tensor([2, 2, 9]), TARGETS),
    "rated pairs": Pairs.between(torch.tensor([2, 2, 9]), TARGETS, torch.tensor([3.5, 1.0, 5.0])),
    "one number everywhere": SEQUENCES._replace(places=torch.tensor([4]).expand(3)),
    "nothing to predict": SEQUENCES._replace(positions=torch.tensor([], dtype=torch.int64)),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_parcel_takes_one_tensor_to_another_process_however_many_are_in_it(batch: Any) -> None:
    parcel = FlatBatch.of(batch)
    assert tensors_in(parcel) == [parcel.content]
    assert _described(pickle.loads(pickle.dumps(parcel)).unpack()) == _described(batch)


def test_tensors_begin_where_torch_would_let_them_begin() -> None:
    parcel = FlatBatch.of(BATCHES["sequences and negatives"])
    first = parcel.content.data_ptr()
    assert {
        (tensor.data_ptr() - first) % TENSOR_ALIGNMENT for tensor in tensors_in(parcel.unpack()) if len(tensor)
    } == {0}


def _described(batch: Any) -> Any:
    """Structure, types and numbers."""
    if isinstance(batch, Tensor):
        return batch.dtype, batch.tolist()
    if isinstance(batch, tuple):
        return type(batch), [_described(part) for part in batch]
    return batch
