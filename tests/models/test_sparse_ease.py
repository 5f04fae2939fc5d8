"""EASE of large catalogues: least squares on a neighbourhood of each item."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bert4rec.dataset.format import NO_ITEM
from bert4rec.models import sparse_ease, transitions
from bert4rec.models.baselines import TrainingHistories
from bert4rec.models.ease import REGULARIZATIONS, USUAL
from bert4rec.models.prior_rows import Rows, ease_rows
from bert4rec.models.sparse_ease import sparse_ease_rows
from bert4rec.runtime.collectives import Partition
from tests.models.test_untrained import dataset_of

N_ITEMS = 12


def as_matrix(rows: Rows, n_items: int) -> NDArray[np.float32]:
    found = np.zeros((len(rows.ids), n_items + 1), np.float32)
    np.put_along_axis(found, np.where(rows.ids == NO_ITEM, n_items, rows.ids), rows.values, 1)
    return found[:, :-1]


def random_dataset(seed: int, *, has_kinds: bool) -> Any:
    random = np.random.default_rng(seed)
    histories = [np.minimum(random.geometric(0.2, n) - 1, N_ITEMS - 1).tolist() for n in random.integers(1, 15, 60)]
    events = [random.integers(1, 3, len(history)).tolist() for history in histories]
    kinds: dict[str, Any] = {"events": events, "target_kinds": [2]} if has_kinds else {}
    are_targets = [[not has_kinds or event == 2 for event in of_user] for of_user in events]
    return dataset_of(histories, n_items=N_ITEMS, **kinds), histories, are_targets


@pytest.mark.parametrize("has_kinds", [False, True], ids=["all are predicted", "some kinds are predicted"])
@pytest.mark.parametrize("size", [1, 3, N_ITEMS])
def test_weights_are_least_squares_of_the_items_that_are_most_often_together(
    size: int, has_kinds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_ease, "NEIGHBOURHOOD", size)
    dataset, histories, are_targets = random_dataset(size, has_kinds=has_kinds)
    has, wants = np.zeros((len(histories), N_ITEMS)), np.zeros((len(histories), N_ITEMS))
    for user, (items, are) in enumerate(zip(histories, are_targets, strict=True)):
        has[user, items] = 1
        wants[user, [item for item, is_target in zip(items, are, strict=True) if is_target]] = 1
    expected = np.zeros((N_ITEMS, N_ITEMS))
    for item in range(N_ITEMS):
        together = has.T @ wants[:, item]
        others = sorted((o for o in range(N_ITEMS) if o != item and together[o]), key=lambda o: -together[o])[:size]
        gram = has[:, others].T @ has[:, others] + REGULARIZATIONS[USUAL] * np.eye(len(others))
        expected[others, item] = np.linalg.solve(gram, together[others])
    found = as_matrix(
        sparse_ease_rows(TrainingHistories(dataset), dataset.splits["validation"], Partition(), N_ITEMS), N_ITEMS
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_with_the_whole_catalogue_as_neighbourhood_it_is_ease() -> None:
    random = np.random.default_rng(0)
    likes = random.permuted(np.tile(np.arange(30), (200, 1)), axis=1)[:, :12].tolist()  # each pair is in some
    dataset = dataset_of(likes, n_items=30)
    histories, validation = TrainingHistories(dataset), dataset.splits["validation"]
    ((_, exact),) = ease_rows(histories, validation, 64)
    found = sparse_ease_rows(histories, validation, Partition(), 64)
    np.testing.assert_allclose(as_matrix(found, 30), as_matrix(exact, 30), atol=2e-6)


@pytest.mark.long
def test_the_parts_in_which_pairs_are_counted_change_nothing(
    small_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories, validation = TrainingHistories(small_dataset), small_dataset.splits["validation"]
    together = sparse_ease_rows(histories, validation, Partition(), 5)
    for module, name, value in (
        (sparse_ease, "DISTINCT_AT_ONCE", 50),
        (sparse_ease, "EXPANDED_AT_ONCE", 7),
        (transitions, "POSITIONS_AT_ONCE", 10),
    ):
        monkeypatch.setattr(module, name, value)
    in_parts = sparse_ease_rows(TrainingHistories(small_dataset), validation, Partition(), 5)
    np.testing.assert_array_equal(in_parts.ids, together.ids)
    np.testing.assert_array_equal(in_parts.values, together.values)


def test_weights_stay_small_where_most_common_histories_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without all pairs the matrix is not one of histories; its inverse would have weights far above 1."""
    monkeypatch.setattr(sparse_ease, "NEIGHBOURHOOD", 60)
    monkeypatch.setattr(sparse_ease, "KEPT", 60)
    random = np.random.default_rng(0)
    likes = random.permuted(np.tile(np.arange(200), (1500, 1)), axis=1)[:, :80].tolist()
    dataset = dataset_of(likes, n_items=200)
    found = sparse_ease_rows(TrainingHistories(dataset), dataset.splits["validation"], Partition(), 64)
    assert 0 < np.abs(found.values).max() < 1
