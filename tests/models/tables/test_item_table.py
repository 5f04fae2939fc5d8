"""The item table: one lookup for sequences and candidates, with the scores that training used."""

import pytest
import torch
import torch.nn.functional as F

from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.feed.lookup import Lookup
from tests.models.networks import N_ITEMS, POSITIONS, SEQUENCES, WIDTH, batch, hidden_of, model


@pytest.mark.parametrize("head", ["tied", "linear"])
@pytest.mark.parametrize("output_bias", [True, False])
def test_candidates_give_the_scores_that_training_used(head: str, output_bias: bool) -> None:
    network = model(head=head, output_bias=output_bias)
    asked = batch(SEQUENCES, POSITIONS)
    vectors = network.item_table.candidates(Lookup.of(FIRST_ITEM_ID + torch.arange(N_ITEMS)))
    assert vectors.shape == (N_ITEMS, WIDTH + {"tied": 4, "linear": 1}[head] * output_bias)
    scores = hidden_of(network, asked) @ vectors.T
    torch.testing.assert_close(F.cross_entropy(scores, asked.targets - FIRST_ITEM_ID, reduction="sum"), network(asked))
