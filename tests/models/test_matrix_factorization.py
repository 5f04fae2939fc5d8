"""Scores, ratings and losses of matrix factorisations, written out."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Lookup, Pairs
from bert4rec.models import matrix_factorization
from bert4rec.models.matrix_factorization import MatrixFactorization
from tests.models.networks import N_ITEMS, WIDTH, factors

USERS = torch.tensor([0, 5, 5, 2])
PAIRS = Pairs.between(USERS, torch.tensor([0, 19, 1, 7]), torch.tensor([1.0, 5.0, 3.5, 0.5]))
FORMS = ("dot", "bias", "neural")


def plainly(network: MatrixFactorization, user: int, item: int) -> Tensor:
    """The score of an item, without what is the same for all items."""
    u = network.user_table.weight[user]
    v = network.item_table.weight[item]
    if network.mlp is None:
        return u[:WIDTH] @ v[:WIDTH] + (v[WIDTH] if network.form == "bias" else 0)
    first = torch.cat([network.mlp.of_user.weight, network.mlp.of_item.weight], dim=1)
    x = first @ torch.cat([u, v]) + network.mlp.of_user.bias
    for layer in network.mlp.layers:
        x = layer(torch.relu(x))
    return x[0]


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_those_of_the_form(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = factors(form)
    expected = torch.stack(
        [torch.stack([plainly(network, user, item) for item in range(N_ITEMS)]) for user in USERS.tolist()]
    )
    everything = Lookup.of(torch.arange(N_ITEMS))
    users, items = network.encode_queries(PAIRS, everything)
    assert users.shape == (4, network.width)
    torch.testing.assert_close(network.score(users, items), expected)
    torch.testing.assert_close(network.score_pairs(users, items.expand(4, -1, -1)), expected)
    monkeypatch.setattr(matrix_factorization, "NUMBERS_AT_ONCE", 3 * items.numel())
    with torch.no_grad():  # three users at a time
        torch.testing.assert_close(network.score(users, network.encode_items(everything)), expected)
    if form != "neural":  # which has no softmax
        loss = -torch.log_softmax(expected, dim=1)[torch.arange(4), PAIRS.targets].sum()
        torch.testing.assert_close(network(PAIRS), loss)


@pytest.mark.parametrize("rating_range", [[], [0.0, 5.5], [1.0, 3.0]])
@pytest.mark.parametrize("form", FORMS)
def test_ratings_and_their_squared_error_written_out(form: str, rating_range: list[float]) -> None:
    network = factors(form, loss="mse", rating_range=rating_range)
    expected = torch.stack([plainly(network, *pair) for pair in zip(USERS, PAIRS.targets, strict=True)])
    if form == "bias":
        expected = expected + network.user_table.weight[USERS, WIDTH]
    if form != "neural":
        expected = expected + network.rating_bias
    if rating_range:
        low, high = rating_range
        expected = low + (high - low) / (1 + torch.exp(-expected))
    torch.testing.assert_close(network.rate(PAIRS), expected)
    torch.testing.assert_close(network(PAIRS), (expected - PAIRS.ratings).square().sum())


def test_users_are_asked_by_their_rows() -> None:
    items, lengths, targets, users = np.array([2, 3, 4]), np.array([1, 2]), np.array([7, 8]), np.array([5, 1])
    asked = MatrixFactorization.inference_batch(Rows(items, lengths, targets, {}, users), 50)
    assert (asked.users.ids[asked.places].tolist(), asked.targets.tolist()) == ([5, 1], [7, 8])
