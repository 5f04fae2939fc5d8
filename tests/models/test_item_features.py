"""Vectors of items with features: the sums written out in NumPy, and their gradients."""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bert4rec.dataset.item_features import BagFeature, FeatureRows, FeatureSizes
from bert4rec.feed.batch import Batch, Candidates, Lookup, Pairs
from bert4rec.feed.features import FeatureReader
from bert4rec.feed.negatives import Negatives
from bert4rec.models.item_features import COLD_SCORE, FeatureEncoder, FeatureSettings, uniform
from bert4rec.models.losses import LossSettings
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.sequence_model import Bert4Rec, SASRec
from bert4rec.sharding.parallelize import initialize
from tests.features import InMemory as OfBrands

D, WIDTH, VECTOR = 4, 8, 3


class InMemory:
    """Features of five items: a category with values 0 to 2, and a bag with values 3 to 6."""

    vector_widths: ClassVar = {"picture": VECTOR}
    bags = (BagFeature("genre", 3), BagFeature("tags", 4, 1.6))
    sizes = FeatureSizes(bags, VECTOR)
    values = ([1, 3], [2, 4, 6], [0, 3], [1, 5], [2, 3, 4, 5])
    shares = ([1, 1], [1, 2**-0.5, 2**-0.5], [1, 1], [1, 1], [1, *[3**-0.5] * 3])
    vectors = np.random.default_rng(5).normal(size=(5, VECTOR)).astype(np.float32)

    def read(self, items: npt.NDArray[np.int64]) -> FeatureRows:
        values, shares = [self.values[item] for item in items], [self.shares[item] for item in items]
        return FeatureRows(
            values=np.array([value for bag in values for value in bag], np.int64),
            lengths=np.array([len(bag) for bag in values], np.int64),
            weights=np.array([share for bag in shares for share in bag], np.float32),
            vectors=self.vectors[items],
        )


IS_WARM = np.array([True, True, False, True, True])


# Values from which a feature has a table of its own: none, tags, both.
ALL_REPLICATED, TAGS_IN_A_TABLE, ALL_IN_TABLES = 5, 4, 3


class Whole(torch.nn.Module):
    """The vectors of all values of a feature."""

    def __init__(self, n_values: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(n_values, D))

    def look_up(self, lookups: dict[str, Lookup]) -> dict[str, torch.Tensor]:
        for lookup in lookups.values():
            assert lookup.ids.tolist() == sorted(set(lookup.ids.tolist()))
        return {name: self.weight[lookup.ids] for name, lookup in lookups.items()}


@pytest.fixture(params=[ALL_REPLICATED, TAGS_IN_A_TABLE, ALL_IN_TABLES])
def encoder(request: pytest.FixtureRequest) -> FeatureEncoder:
    torch.manual_seed(1)
    sizes = InMemory.sizes._replace(tables_from=request.param)
    encoder = FeatureEncoder(FeatureSettings(sizes, id_dropout=0.5), D, "cpu")
    encoder.tables.update({name: Whole(bag.n_values) for name, bag in sizes.tables.items()})
    torch.nn.init.normal_(encoder.values)
    encoder.reader, encoder.seed = FeatureReader(InMemory(), IS_WARM, request.param), 3
    return encoder


def all_values(encoder: FeatureEncoder) -> torch.Tensor:
    """Return the vectors of all values: the tables are those of the last features."""
    return torch.cat([encoder.values, *(table.weight for table in encoder.tables.values())])


def vectors_of(encoder: FeatureEncoder, rows: torch.Tensor, items: list[int]) -> torch.Tensor:
    found: torch.Tensor = encoder({"item": rows}, {"item": Lookup.of(torch.tensor(items, dtype=torch.long))})["item"]
    return found


def by_hand(
    encoder: FeatureEncoder, rows: torch.Tensor, items: list[int], has_id: npt.NDArray[np.bool_]
) -> torch.Tensor:
    total = []
    for item, row in zip(items, rows, strict=True):
        vector = row * float(has_id[item])
        features = torch.from_numpy(InMemory.vectors[item]) @ encoder.projection.weight.T
        for value, share in zip(InMemory.values[item], InMemory.shares[item], strict=True):
            features = features + share * all_values(encoder)[value]
        total.append(torch.cat([vector[:D] + features, vector[D:]]))
    return torch.stack(total)


def test_an_item_is_its_row_and_the_vectors_of_its_features(encoder: FeatureEncoder) -> None:
    items, rows = [3, 0, 2], torch.randn(3, WIDTH)
    vectors = vectors_of(encoder.eval(), rows, items)
    torch.testing.assert_close(vectors, by_hand(encoder, rows, items, IS_WARM))
    assert vectors[2, D:].eq(0).all()  # a cold item has no bias either


def test_ids_that_are_dropped_depend_on_seed_and_step(encoder: FeatureEncoder) -> None:
    items, rows = list(range(5)), torch.randn(5, WIDTH)
    encoder.step = 9
    has_id = IS_WARM & (uniform(torch.arange(5), 3, 9) >= 0.5).numpy()
    torch.testing.assert_close(vectors_of(encoder, rows, items), by_hand(encoder, rows, items, has_id))
    expected = by_hand(encoder, rows, items, has_id)
    expected[2, D] = COLD_SCORE  # the bias of the cold item, which is no target
    torch.testing.assert_close(encoder.catalogue(rows, 0)[0], expected)
    assert has_id.any()
    assert not has_id[IS_WARM].all()


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
    rows, ids = torch.randn(n, WIDTH, requires_grad=True), torch.arange(first, first + n)
    weights = torch.randn(n, WIDTH)
    found = []
    for vectors in (vectors_of(encoder, rows, ids.tolist()), encoder.catalogue(rows, first, divisor=4)[0]):
        (vectors * weights).sum().backward()
        found.append([vectors.detach(), rows.grad, *(parameter.grad for parameter in encoder.parameters())])
        rows.grad = None
        encoder.zero_grad()
    found[0][1] = found[0][1] / 4
    torch.testing.assert_close(found[1], found[0])


def test_an_item_without_training_is_never_learnt_by_its_id(encoder: FeatureEncoder) -> None:
    rows = torch.randn(5, WIDTH, requires_grad=True)
    encoder.catalogue(rows, 0)[0].sum().backward()
    assert rows.grad[2].eq(0).all()


@pytest.mark.parametrize(
    ("name", "values", "columns"), [("genre", [0, 1, 2], []), ("tags", [3, 4, 5, 6], []), ("picture", [], [0, 1, 2])]
)
def test_without_a_feature_items_are_those_of_zero_weights_for_a_while(
    encoder: FeatureEncoder, name: str, values: list[int], columns: list[int]
) -> None:
    rows, items = torch.randn(3, WIDTH), [3, 0, 2]
    before = vectors_of(encoder.eval(), rows, items)
    with encoder.without(name):
        found = vectors_of(encoder, rows, items)
    with pytest.raises(KeyError), encoder.without(name):
        raise KeyError
    assert vectors_of(encoder, rows, items).equal(before)
    with torch.no_grad():
        encoder.projection.weight[:, columns] = 0
        n_replicated = len(encoder.values)
        encoder.values[[value for value in values if value < n_replicated]] = 0
        for table in encoder.tables.values():
            weight = table.weight
            assert isinstance(weight, torch.nn.Parameter)
            first = 3 if len(weight) == 4 else 0
            weight[[value - first for value in values if first <= value < first + len(weight)]] = 0
    torch.testing.assert_close(found, vectors_of(encoder, rows, items), rtol=0, atol=0)


def test_one_call_gives_a_part_of_the_catalogue_and_the_items_of_a_batch(encoder: FeatureEncoder) -> None:
    encoder.eval()
    part, rows = torch.randn(2, WIDTH), torch.randn(3, D)
    items = Lookup.of(torch.tensor([4, 1, 1]))
    vectors, added = encoder.catalogue(part, 3, rows={"item": rows}, lookups={"item": items})
    torch.testing.assert_close(vectors, by_hand(encoder, part, [3, 4], IS_WARM))
    torch.testing.assert_close(added["item"], by_hand(encoder, rows, [4, 1, 1], IS_WARM))


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


KINDS = {
    "sasrec": {"head": "tied"}, "bert4rec": {"head": "linear"}, "dot": {"form": "dot"}, "bias": {"form": "bias"},
    "neural": {"form": "neural"},
}  # fmt: skip


@pytest.mark.parametrize("loss", ["softmax", "sampled_softmax", "gbce", "bpr"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_loss_pushes_cold_items_down(kind: str, loss: str) -> None:
    """The items 1 and 4 of a brand of their own are never targets: their scores would only learn to be low."""
    if (kind, loss) == ("neural", "softmax"):
        pytest.skip("has no softmax")
    is_warm = np.array([True, False, True, True, False, True])
    features = OfBrands([[0], [2], [1], [0], [2], [1]], {"brand": 3}, np.zeros((6, 0), np.float32))
    shape = {"n_items": 6, "embed_dim": 4, "dropout": 0.0, "features": FeatureSettings(features.sizes), "device": "cpu"}
    targets, negatives = torch.tensor([0, 3, 5]), Negatives(torch.tensor([1, 2, 4]), torch.zeros(3))
    network: RankingModel
    if kind in ("sasrec", "bert4rec"):
        network = {"sasrec": SASRec, "bert4rec": Bert4Rec}[kind](
            **shape, **KINDS[kind], n_heads=1, n_layers=1, ffn_dim=4, max_len=6, loss=LossSettings(loss)
        )
        batch: Any = Batch.from_items(torch.tensor([2, 0, 3]), torch.tensor([3]), torch.arange(3), targets)
    else:
        network = MatrixFactorization(**shape, **KINDS[kind], n_users=3, loss=LossSettings(loss))
        batch = Pairs.between(torch.arange(3), targets)
    initialize(network, seed=1)
    network.item_table.features.reader = FeatureReader(features, is_warm, 10**6)
    batch = batch._replace(candidates=Candidates.of(targets, negatives) if loss != "softmax" else None)
    network(batch).backward()
    value_gradient = network.item_table.features.values.grad
    assert value_gradient[2].abs().max() < 1e-9
    assert value_gradient[:2].abs().max() > 1e-6
