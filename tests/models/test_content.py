"""Content neighbours: cosines of feature vectors, written out for five items."""

from math import log, sqrt

import numpy as np
import pytest
import torch

from bert4rec.dataset.histories import Rows
from bert4rec.models import content
from bert4rec.models.content import ContentScorer
from bert4rec.runtime.collectives import Partition
from tests.features import InMemory


def rows_of(*histories: list[int]) -> Rows:
    items = np.array([item for items in histories for item in items], np.int32)
    return Rows(items, np.array([len(items) for items in histories]))


def scores_of(features: InMemory, n_items: int, *histories: list[int]) -> list[list[float]]:
    scorer, everything = ContentScorer(features, n_items, Partition()), torch.arange(n_items)
    users, chosen = scorer.encode(rows_of(*histories), everything.expand(len(histories), -1))
    scores = scorer.scores(users, scorer.items(everything))
    assert scores.dtype == users.dtype == scorer.dtype
    assert users.shape == (len(histories), scorer.width)
    assert torch.equal(scores, chosen)
    return scores.tolist()


# A category (values 0 to 2) and tags (3 to 5); 0 and 3 are missing values.
VALUES = [[1, 4], [1, 4, 5], [2, 5], [1, 3], [0, 3]]
NO_VECTORS = np.zeros((5, 0), np.float32)


def test_cosines_written_out() -> None:
    """Item 0 = (category 1, tag 4), item 1 = (category 1, tags 4 and 5), tags of the same rarity (2 items each)."""
    features = InMemory(VALUES, {"category": 3, "tags": 3}, NO_VECTORS)
    half = sqrt(1 / 2)
    vectors = np.array(  # columns: category 1, category 2, tag 4, tag 5
        [[half, 0, half, 0], [half, 0, 1 / 2, 1 / 2], [0, half, 0, half], [1, 0, 0, 0], [0, 0, 0, 0]]
    )
    mean = (vectors[0] + vectors[2]) / 2
    expected = vectors @ mean / np.linalg.norm(mean)
    (alone,), (both,) = scores_of(features, 5, [0]), scores_of(features, 5, [0, 2])
    np.testing.assert_allclose(alone, [1, 1 / 2 + half / 2, 0, half, 0], atol=1e-6)
    np.testing.assert_allclose(both, expected, atol=1e-6)
    assert scores_of(features, 5, [4]) == [[0] * 5]  # nothing is known of the history


def test_rare_values_count_more_and_those_of_all_items_nothing() -> None:
    features = InMemory([[1, 2, 3], [1, 3], [1, 2], [1, 3]], {"tags": 4}, np.zeros((4, 0), np.float32))
    rare, common = log(4 / 2), log(4 / 3)
    length = sqrt(rare**2 + common**2)
    np.testing.assert_allclose(
        scores_of(features, 4, [0])[0], [1, common / length, rare / length, common / length], atol=1e-6
    )


def test_a_ready_made_vector_is_a_part_of_the_same_length() -> None:
    vectors = np.array([[3, 4], [30, 40], [-4, 3], [0, 0], [0, 5]], np.float32)
    features = InMemory(VALUES, {"category": 3, "tags": 3}, vectors)
    third, half = sqrt(1 / 3), sqrt(1 / 2)
    np.testing.assert_allclose(
        scores_of(features, 5, [0])[0],
        [1, (2 + half) / 3, 0, third, 0.8 * third], atol=1e-6,
    )  # fmt: skip
    alone = InMemory([[]] * 5, {}, vectors)
    np.testing.assert_allclose(scores_of(alone, 5, [0])[0], [1, 1, 0, 0, 0.8], atol=1e-6)
    assert half > third


def test_a_process_may_have_no_items() -> None:
    features = InMemory(VALUES, {"category": 3, "tags": 3}, NO_VECTORS)
    assert ContentScorer(features, 5, Partition()).items(torch.arange(0)).shape == (0, 6)  # three numbers at most


def test_items_with_the_same_features_tie_and_no_process_or_batch_changes_a_score() -> None:
    draw = np.random.default_rng(4)
    values = [[*sorted(draw.choice(40, draw.integers(1, 9), replace=False).tolist())] for _ in range(150)]
    values += values
    vectors = np.tile(draw.normal(size=(150, 3)).astype(np.float32), (2, 1))
    features = InMemory(values, {"tags": 40}, vectors)
    histories = [draw.integers(0, 300, n).tolist() for n in (1, 2, 30, 200)]
    scores = scores_of(features, 300, *histories)
    assert [row[:150] for row in scores] == [row[150:] for row in scores]
    assert [scores_of(features, 300, history)[0] for history in histories] == scores


def test_many_values_share_columns_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(4)
    values = [[*sorted(draw.choice(np.arange(1, 600), 20, replace=False).tolist())] for _ in range(200)]
    features = InMemory(values, {"tags": 600}, np.zeros((200, 0), np.float32))
    exact = np.array(scores_of(features, 200, *([item] for item in range(200))))
    monkeypatch.setattr(content, "MAX_COLUMNS", 256)
    scorer = ContentScorer(features, 200, Partition())
    assert scorer.width == 256
    hashed = np.array(scores_of(features, 200, *([item] for item in range(200))))
    errors = (hashed - exact)[~np.eye(200, dtype=bool)]
    assert abs(errors.mean()) < 0.005
    assert errors.std() < 0.08  # about the square root of 1 / 256
