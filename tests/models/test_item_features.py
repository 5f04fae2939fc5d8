"""Vectors of items with features: the sums written out in NumPy, and their gradients."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bert4rec.dataset.item_features import BagFeature, FeatureRows, FeatureSizes
from bert4rec.feed.batch import Lookup
from bert4rec.feed.features import FeatureReader
from bert4rec.models.item_features import NEVER, FeatureEncoder, FeatureSettings, uniform

D, WIDTH, N_VALUES, VECTOR = 4, 8, 6, 3


class InMemory:
    """Features of five items: a category with values 0 to 2, and a bag with values 3 to 5."""

    sizes = FeatureSizes(N_VALUES, 2.6, VECTOR)
    vector_widths: ClassVar = {"picture": VECTOR}
    bags = (BagFeature("genre", 3), BagFeature("tags", 3))
    values = ([1, 3], [2, 4, 5], [0, 3], [1, 5], [2, 3, 4, 5])
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


@pytest.fixture
def encoder() -> FeatureEncoder:
    torch.manual_seed(1)
    encoder = FeatureEncoder(FeatureSettings(InMemory.sizes, id_dropout=0.5), D, "cpu")
    torch.nn.init.normal_(encoder.values)
    encoder.reader, encoder.seed = FeatureReader(InMemory(), IS_WARM), 3
    return encoder


def by_hand(
    encoder: FeatureEncoder, rows: torch.Tensor, items: list[int], has_id: npt.NDArray[np.bool_]
) -> torch.Tensor:
    assert encoder.projection is not None
    total = []
    for item, row in zip(items, rows, strict=True):
        vector = row * float(has_id[item])
        features = torch.from_numpy(InMemory.vectors[item]) @ encoder.projection.weight.T
        for value, share in zip(InMemory.values[item], InMemory.shares[item], strict=True):
            features = features + share * encoder.values[value]
        total.append(torch.cat([vector[:D] + features, vector[D:]]))
    return torch.stack(total)


def test_an_item_is_its_row_and_the_vectors_of_its_features(encoder: FeatureEncoder) -> None:
    items, rows = [3, 0, 2], torch.randn(3, WIDTH)
    vectors = encoder.eval()(rows, Lookup.of(torch.tensor(items)))
    torch.testing.assert_close(vectors, by_hand(encoder, rows, items, IS_WARM))
    assert vectors[2, D:].eq(0).all()  # a cold item has no bias either


def test_ids_that_are_dropped_depend_on_seed_and_step(encoder: FeatureEncoder) -> None:
    items, rows = list(range(5)), torch.randn(5, WIDTH)
    encoder.step = 9
    has_id = IS_WARM & (uniform(torch.arange(5), 3, 9) >= 0.5).numpy()
    torch.testing.assert_close(encoder(rows, Lookup.of(torch.tensor(items))), by_hand(encoder, rows, items, has_id))
    expected = by_hand(encoder, rows, items, has_id)
    expected[2, D] = NEVER  # the bias of the cold item, which is no target
    torch.testing.assert_close(encoder.catalogue(rows, 0), expected)
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
    for vectors in (encoder(rows, Lookup.of(ids)), encoder.catalogue(rows, first, divisor=4)):
        (vectors * weights).sum().backward()
        found.append([vectors.detach(), rows.grad, *(parameter.grad for parameter in encoder.parameters())])
        rows.grad = None
        encoder.zero_grad()
    found[0][1] = found[0][1] / 4
    torch.testing.assert_close(found[1], found[0])


def test_an_item_without_training_is_never_learnt_by_its_id(encoder: FeatureEncoder) -> None:
    rows = torch.randn(5, WIDTH, requires_grad=True)
    encoder.catalogue(rows, 0).sum().backward()
    assert rows.grad is not None
    assert rows.grad[2].eq(0).all()


@pytest.mark.parametrize(
    ("name", "values", "columns"), [("genre", [0, 1, 2], []), ("tags", [3, 4, 5], []), ("picture", [], [0, 1, 2])]
)
def test_without_a_feature_its_weights_are_zero_for_a_while(
    encoder: FeatureEncoder, name: str, values: list[int], columns: list[int]
) -> None:
    assert encoder.projection is not None
    before = [encoder.values.detach().clone(), encoder.projection.weight.detach().clone()]
    expected = [weights.clone() for weights in before]
    expected[0][values], expected[1][:, columns] = 0, 0
    with encoder.without(name):
        torch.testing.assert_close([encoder.values.data, encoder.projection.weight.data], expected, rtol=0, atol=0)
    with pytest.raises(KeyError), encoder.without(name):
        raise KeyError
    torch.testing.assert_close([encoder.values.data, encoder.projection.weight.data], before, rtol=0, atol=0)


def test_cold_items_are_ranked_by_vectors_as_long_as_the_others_have_in_the_mean(encoder: FeatureEncoder) -> None:
    items, rows = list(range(5)), torch.randn(5, WIDTH)
    encoder.eval().align_cold_items(rows)
    expected = by_hand(encoder, rows, items, IS_WARM)
    expected[2] *= expected[torch.from_numpy(IS_WARM)].norm(dim=1).mean() / expected[2].norm()
    torch.testing.assert_close(encoder(rows, Lookup.of(torch.tensor(items))), expected)
    shown = encoder.train().encode(encoder.reader.read(torch.tensor([2])))  # type: ignore[union-attr]
    torch.testing.assert_close(encoder(rows[2:3], Lookup.of(torch.tensor([2])))[:, :D], shown)
