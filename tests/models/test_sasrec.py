"""What makes a model a SASRec."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.feed.lookup import Lookup
from bert4rec.models.sasrec import SASRec
from tests.models.networks import N_ITEMS, model

HISTORY = [5, 6, 7, 8]
TAKEN = [100, 103, 500, 90_000]


@pytest.mark.parametrize("times", ["none", "history", "target"])
def test_what_it_is_trained_on_is_what_it_is_asked(times: str) -> None:
    """The loss of a sequence is the sum of what each of its beginnings, asked for the next item, has to say."""
    network = model(SASRec, times=times)
    with torch.no_grad():
        network.encoder.positions.weight.zero_()  # which count from the end
    taken = None if times == "none" else np.array(TAKEN)
    seconds = None if taken is None else torch.from_numpy(taken)
    batch = SASRec.make_examples(times=times)(torch.tensor(HISTORY), torch.tensor([4]), torch.tensor([0]), 0, seconds)
    vectors = network.item_table.candidates(Lookup.of(FIRST_ITEM_ID + torch.arange(N_ITEMS)))
    expected = torch.zeros(())
    for n in range(1, len(HISTORY)):
        known = {} if taken is None else {"times": taken[:n], "target_times": taken[n : n + 1]}
        asked = SASRec.ask(Rows(np.array(HISTORY[:n], np.int32), np.array([n]), **known), 12, times)
        hidden, _ = network.represent(asked, Lookup.of(torch.tensor([], dtype=torch.int64)))
        expected = expected + F.cross_entropy(hidden @ vectors.T, torch.tensor([HISTORY[n] - FIRST_ITEM_ID]))
    torch.testing.assert_close(network(batch), expected)


def test_a_plan_counts_every_position() -> None:
    assert SASRec.n_targets(64, 3200, mask_prob=0.2) == 3200
