"""Scores, ratings and losses of matrix factorisations, written out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Candidates, Lookup, Pairs
from bert4rec.feed.negatives import Negatives
from bert4rec.models import matrix_factorization
from bert4rec.models.losses import LossSettings
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.sharding.parallelize import initialize

N_ITEMS, N_USERS, WIDTH = 20, 6, 8
USERS = torch.tensor([0, 5, 5, 2])
PAIRS = Pairs.between(USERS, torch.tensor([0, 19, 1, 7]), torch.tensor([1.0, 5.0, 3.5, 0.5]))
NEGATIVES = Negatives(torch.tensor([2, 7, 18]), torch.zeros(3))
FORMS = ("dot", "bias", "neural")


def factors(form: str = "bias", **changes: Any) -> MatrixFactorization:
    loss_settings = {name: changes.pop(name) for name in ("loss", "rating_range") if name in changes}
    shape = {"n_items": N_ITEMS, "n_users": N_USERS, "embed_dim": WIDTH, "dropout": 0.0}
    network = MatrixFactorization(form=form, loss=LossSettings(**loss_settings), device="cpu", **shape | changes)
    initialize(network, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # zeros would hide a weight that is not used
        for weight in network.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return network


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


def catalogue(network: MatrixFactorization, user: int) -> Tensor:
    return torch.stack([plainly(network, user, item) for item in range(N_ITEMS)])


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_those_of_the_form(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = factors(form)
    expected = torch.stack([catalogue(network, user) for user in USERS.tolist()])
    everything = Lookup.of(torch.arange(N_ITEMS))
    users, items = network.encode_queries(PAIRS, everything)
    assert users.shape == (4, network.width)
    torch.testing.assert_close(network.score(users, items), expected)
    torch.testing.assert_close(network.score_pairs(users, items.expand(4, -1, -1)), expected)
    monkeypatch.setattr(matrix_factorization, "NUMBERS_AT_ONCE", 3 * items.numel())
    with torch.no_grad():  # three users at a time
        torch.testing.assert_close(network.score(users, network.encode_items(everything)), expected)


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


@pytest.mark.parametrize("form", FORMS)
def test_pairs_without_a_target_teach_nothing(form: str) -> None:
    padding = torch.full_like(PAIRS.targets, NO_ITEM)
    nothing = PAIRS._replace(targets=padding, candidates=Candidates.of(padding, NEGATIVES))
    for loss in ("mse", "bpr"):
        network = factors(form, loss=loss)
        found = network(nothing)
        found.backward()
        assert found.item() == 0.0
        assert all(weight.grad is not None and not weight.grad.any() for weight in network.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_every_weight_learns(form: str) -> None:
    for loss in ("mse", "softmax", "sampled_softmax", "gbce", "bpr"):
        if (form, loss) == ("neural", "softmax"):  # refused by the settings
            continue
        network = factors(form, loss=loss)
        network(PAIRS._replace(candidates=Candidates.of(PAIRS.targets, NEGATIVES))).backward()
        still = {name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()}
        assert still <= {"mlp.layers.1.bias"}, loss  # of a ranking: it is the same for all items


@pytest.mark.parametrize("form", ["dot", "bias"])
def test_the_exact_softmax_is_that_of_all_scores(form: str) -> None:
    network = factors(form)
    scores = torch.stack([catalogue(network, user) for user in USERS.tolist()])
    expected = -torch.log_softmax(scores, dim=1)[torch.arange(4), PAIRS.targets].sum()
    torch.testing.assert_close(network(PAIRS), expected)


def test_users_are_asked_by_their_rows() -> None:
    rows = Rows(
        np.array([2, 3, 4], np.int32), np.array([1, 2]), np.array([7, 8], np.int32), {}, np.array([5, 1], np.int32)
    )
    asked = MatrixFactorization.inference_batch(rows, 50)
    assert (asked.users.ids[asked.places].tolist(), asked.targets.tolist()) == ([5, 1], [7, 8])
