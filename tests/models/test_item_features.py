"""Vectors of items with features: the sums written out in NumPy, and their gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.feed.batch import Batch, Candidates, Lookup, Pairs
from bert4rec.feed.features import FeatureReader
from bert4rec.feed.negatives import Negatives
from bert4rec.models.item_features import COLD_SCORE, FeatureEncoder, FeatureSettings, uniform
from bert4rec.models.losses import LossSettings
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.sequence_model import Bert4Rec, SASRec
from bert4rec.models.tables import ItemTable
from bert4rec.runtime.arrays import Bools
from bert4rec.sharding.parallelize import initialize
from tests.features import InMemory

D, WIDTH, VECTOR = 4, 8, 3
# Five items with a category (values 0 to 2), tags (3 to 6) and a picture.
VALUES = [[1, 3], [2, 4, 6], [0, 3], [1, 5], [2, 3, 4, 5]]
PICTURES = np.random.default_rng(5).normal(size=(5, VECTOR)).astype(np.float32)
FEATURES = InMemory(VALUES, {"genre": 3, "tags": 4}, PICTURES)
IS_WARM = np.array([True, True, False, True, True])
# Values from which a feature has a table of its own: none, tags, both.
ALL_REPLICATED, TAGS_IN_A_TABLE, ALL_IN_TABLES = 5, 4, 3


@pytest.fixture(params=[ALL_REPLICATED, TAGS_IN_A_TABLE, ALL_IN_TABLES])
def encoder(request: pytest.FixtureRequest) -> FeatureEncoder:
    torch.manual_seed(1)
    settings = FeatureSettings(FEATURES.sizes._replace(tables_from=request.param), id_dropout=0.5)
    encoder = ItemTable(5, D, head="tied", output_bias=True, features=settings, device="cpu").features
    for weight in encoder.parameters():
        torch.nn.init.normal_(weight)
    encoder.reader, encoder.seed = FeatureReader(FEATURES, IS_WARM, request.param), 3
    return encoder


def vectors_of(encoder: FeatureEncoder, rows: Tensor, items: Sequence[int]) -> Tensor:
    return encoder({"item": rows}, {"item": Lookup.of(torch.tensor(items, dtype=torch.long))})["item"]


def by_hand(
    encoder: FeatureEncoder, rows: Tensor, items: Sequence[int], has_id: Bools, without: Sequence[int] = (),
    keeps_picture: bool = True,
) -> Tensor:  # fmt: skip
    """The tables are those of the last features."""
    all_values = torch.cat([encoder.values, *(table.weight for table in encoder.tables.values())])
    total = []
    for item, row in zip(items, rows, strict=True):
        known = FEATURES.read(np.array([item]))
        weights = torch.from_numpy(known.weights * ~np.isin(known.values, without))
        features = keeps_picture * torch.from_numpy(PICTURES[item]) @ encoder.projection.weight.T
        features = features + weights @ all_values[known.values]
        total.append(row * float(has_id[item]) + F.pad(features, (0, len(row) - D)))
    return torch.stack(total)


@pytest.mark.parametrize("step", [None, 9], ids=["evaluation", "a step that drops ids"])
def test_an_item_is_its_row_and_the_vectors_of_its_features(encoder: FeatureEncoder, step: int | None) -> None:
    items, rows = [3, 0, 2, 2], torch.randn(4, WIDTH)
    part = torch.randn(5, WIDTH, requires_grad=True)
    has_id = IS_WARM
    if step is None:
        encoder.eval()
    else:
        encoder.step, has_id = step, IS_WARM & (uniform(torch.arange(5), 3, step) >= 0.5).numpy()
        assert has_id.any()
        assert not has_id[IS_WARM].all()
    torch.testing.assert_close(vectors_of(encoder, rows, items), by_hand(encoder, rows, items, has_id))
    together = {"item": rows[:, :D]}, {"item": Lookup.of(torch.tensor(items))}
    vectors, added = encoder.catalogue(part, 0, 1, *together)
    expected = by_hand(encoder, part, range(5), has_id)
    if step is not None:
        expected[2, D] = COLD_SCORE  # the bias of the cold item, which is no target
    torch.testing.assert_close(vectors, expected)
    torch.testing.assert_close(added["item"], by_hand(encoder, rows[:, :D], items, has_id))
    vectors.sum().backward()
    assert part.grad.any(1).tolist() == has_id.tolist()  # nothing is learnt by an id that does not count


def test_numbers_are_uniform_and_differ_between_steps() -> None:
    numbers = uniform(torch.arange(100_000), 1, 2)
    assert ((numbers >= 0) & (numbers < 1)).all()
    torch.testing.assert_close(torch.histc(numbers, 10, 0, 1) / 1e5, torch.full((10,), 0.1), atol=0.005, rtol=0)
    dropped = [uniform(torch.arange(100_000), 1, step) < 0.3 for step in (2, 3)]
    assert abs(float((dropped[0] & dropped[1]).float().mean()) - 0.09) < 0.005


@pytest.mark.parametrize(("first", "n"), [(0, 5), (1, 3), (2, 0)])
def test_a_part_of_the_catalogue_has_the_same_vectors_and_gradients(
    encoder: FeatureEncoder, first: int, n: int
) -> None:
    encoder.eval()
    rows, weights = torch.randn(n, WIDTH, requires_grad=True), torch.randn(n, WIDTH)
    found = []
    for vectors in (vectors_of(encoder, rows, range(first, first + n)), encoder.catalogue(rows, first, 4, {}, {})[0]):
        (vectors * weights).sum().backward()
        found.append([vectors.detach(), rows.grad, *(parameter.grad for parameter in encoder.parameters())])
        rows.grad = None
        encoder.zero_grad()
    found[0][1] = found[0][1] / 4
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(("name", "values"), [("genre", [0, 1, 2]), ("tags", [3, 4, 5, 6]), ("picture", [])])
def test_a_feature_is_left_out_for_a_while(encoder: FeatureEncoder, name: str, values: list[int]) -> None:
    rows, items = torch.randn(3, WIDTH), [3, 0, 2]
    before = vectors_of(encoder.eval(), rows, items)
    with encoder.reader.without(name):
        found = vectors_of(encoder, rows, items)
    with pytest.raises(KeyError), encoder.reader.without(name):
        raise KeyError
    assert vectors_of(encoder, rows, items).equal(before)
    expected = by_hand(encoder, rows, items, IS_WARM, values, keeps_picture=name != "picture")
    torch.testing.assert_close(found, expected)


def test_cold_items_are_ranked_by_vectors_as_long_as_the_root_mean_square_of_the_others(
    encoder: FeatureEncoder,
) -> None:
    items, rows = list(range(5)), torch.randn(5, WIDTH)
    encoder.eval().align_cold_items(rows)
    expected = by_hand(encoder, rows, items, IS_WARM)
    expected[2] *= (expected[torch.from_numpy(IS_WARM)].square().sum(1).mean().sqrt() / expected[2].norm()).item()
    torch.testing.assert_close(vectors_of(encoder, rows, items), expected)
    in_training = vectors_of(encoder.train(), rows[2:3], [2])
    torch.testing.assert_close(in_training, by_hand(encoder, rows[2:3], [2], IS_WARM))


KINDS: dict[str, tuple[Any, dict[str, str]]] = {
    "sasrec": (SASRec, {"head": "tied"}), "bert4rec": (Bert4Rec, {"head": "linear"}),
    **{form: (MatrixFactorization, {"form": form}) for form in ("dot", "bias", "neural")},
}  # fmt: skip
CASES = [(kind, loss) for kind in KINDS for loss in ("softmax", "sampled_softmax", "gbce", "bpr")]


@pytest.mark.parametrize(("kind", "loss"), [case for case in CASES if case != ("neural", "softmax")])
def test_no_loss_pushes_cold_items_down(kind: str, loss: str) -> None:
    """The items 1 and 4 of a brand of their own are never targets: their scores would only learn to be low."""
    features = InMemory([[0], [2], [1], [0], [2], [1]], {"brand": 3}, np.zeros((6, 0), np.float32))
    shape = {"n_items": 6, "embed_dim": 4, "dropout": 0.0, "features": FeatureSettings(features.sizes), "device": "cpu"}
    targets, negatives = torch.tensor([0, 3, 5]), Negatives(torch.tensor([1, 2, 4]), torch.zeros(3))
    batch: Any = Pairs.between(torch.arange(3), targets)
    sizes = {"n_users": 3}
    if kind in ("sasrec", "bert4rec"):
        batch = Batch.from_items(torch.tensor([2, 0, 3]), torch.tensor([3]), torch.arange(3), targets)
        sizes = {"n_heads": 1, "n_layers": 1, "ffn_dim": 4, "max_len": 6}
    network: RankingModel = KINDS[kind][0](**shape, **KINDS[kind][1], **sizes, loss=LossSettings(loss))
    initialize(network, seed=1)
    is_warm = np.array([True, False, True, True, False, True])
    network.item_table.features.reader = FeatureReader(features, is_warm, 10**6)
    batch = batch._replace(candidates=Candidates.of(targets, negatives) if loss != "softmax" else None)
    network(batch).backward()
    value_gradient = network.item_table.features.values.grad
    assert value_gradient[2].abs().max() < 1e-9
    assert value_gradient[:2].abs().max() > 1e-6
