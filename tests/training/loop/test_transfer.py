"""Batches on their way to the device; the way to a GPU is tested in tests/cuda."""

import torch

from bert4rec.feed.batch import Batch, Candidates
from bert4rec.feed.negatives import Negatives
from bert4rec.training.loop.transfer import Transfer, tensors_in


def make_batch() -> Batch:
    shown, targets = torch.tensor([5, 1, 5, 7]), torch.tensor([6])
    batch = Batch.showing(shown, torch.tensor([3, 1]), torch.tensor([1]), targets)
    return batch._replace(candidates=Candidates.of(targets, Negatives(torch.tensor([9, 6]), torch.zeros(2))))


def test_a_batch_arrives_as_it_was_sent() -> None:
    batch, transfer = make_batch(), Transfer(torch.device("cpu"))
    pairs = zip(tensors_in(transfer.bring(batch)), tensors_in(batch), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_all_its_tensors_are_found() -> None:
    """Those of the shown items, the places, lengths, positions and targets, the candidates' items and places."""
    found = [tensor.tolist() for tensor in tensors_in(make_batch())]
    assert [found[0], *found[2:6]] == [[5, 7], [0, 2, 0, 1], [3, 1], [1], [6]]
    assert [found[6], *found[8:]] == [[6, 9], [0], [1, 0], [0.0, 0.0]]
