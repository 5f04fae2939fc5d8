"""Batches come out of a parcel as they went in."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from bert4rec.feed.batch import Batch, Candidates, Pairs
from bert4rec.feed.loaders.parcel import ALIGNMENT, Parcel
from bert4rec.feed.negatives import Negatives
from bert4rec.training.loop.transfer import tensors_in

TARGETS = torch.tensor([5, 7, 5])
NEGATIVES = Negatives(torch.tensor([3, 4]), torch.tensor([0.5, 0.25]))
SEQUENCES = Batch.showing(torch.tensor([3, 1, 4]), torch.tensor([1, 2]), torch.tensor([1]), torch.tensor([9]))
BATCHES: dict[str, Any] = {
    "sequences": SEQUENCES._replace(n_sequences=2),
    "sequences and negatives": SEQUENCES._replace(candidates=Candidates.of(TARGETS, NEGATIVES)),
    "pairs": Pairs.between(torch.tensor([2, 2, 9]), TARGETS),
    "rated pairs": Pairs.between(torch.tensor([2, 2, 9]), TARGETS, torch.tensor([3.5, 1.0, 5.0])),
    "one number everywhere": SEQUENCES._replace(places=torch.tensor([4]).expand(3)),
    "nothing to predict": SEQUENCES._replace(positions=torch.tensor([], dtype=torch.int64)),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_what_went_in_comes_out(batch: Any) -> None:
    found = Parcel.of(batch).unpack()
    assert _described(found) == _described(batch)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_parcel_takes_one_tensor_to_another_process_however_many_are_in_it(batch: Any) -> None:
    parcel = Parcel.of(batch)
    assert list(tensors_in(parcel)) == [parcel.content]
    assert _described(pickle.loads(pickle.dumps(parcel)).unpack()) == _described(batch)


def test_tensors_begin_where_torch_would_let_them_begin() -> None:
    parcel = Parcel.of(BATCHES["sequences and negatives"])
    first = parcel.content.data_ptr()
    assert {(tensor.data_ptr() - first) % ALIGNMENT for tensor in tensors_in(parcel.unpack()) if len(tensor)} == {0}


def _described(batch: Any) -> Any:
    """Structure, types and numbers."""
    if isinstance(batch, Tensor):
        return batch.dtype, batch.tolist()
    if isinstance(batch, tuple):
        return type(batch), [_described(part) for part in batch]
    return batch
