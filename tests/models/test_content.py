"""Content neighbours: cosines of feature vectors, written out for five items."""

from math import log, sqrt

import numpy as np
import pytest
import torch

from bert4rec.models import content
from bert4rec.models.content import ContentScorer
from bert4rec.runtime.collectives import Partition
from tests.features import InMemory
from tests.models.networks import scores_of

# A category (values 0 to 2) and tags (3 to 5); 0 and 3 are missing values.
VALUES, BAGS = [[1, 4], [1, 4, 5], [2, 5], [1, 3], [0, 3]], {"category": 3, "tags": 3}
PLAIN = InMemory(VALUES, BAGS, np.zeros((5, 0), np.float32))
PICTURES = np.array([[3, 4], [30, 40], [-4, 3], [0, 0], [0, 5]], np.float32)
TAGS = InMemory([[1, 2, 3], [1, 3], [1, 2], [1, 3]], {"tags": 4}, np.zeros((4, 0), np.float32))
THIRD, HALF, RARE, COMMON = sqrt(1 / 3), sqrt(1 / 2), log(4 / 2), log(4 / 3)
LENGTH = sqrt(RARE**2 + COMMON**2)
# Both tags are of the same rarity; columns: category 1, category 2, tag 4, tag 5.
VECTORS = np.array([[HALF, 0, HALF, 0], [HALF, 0, 1 / 2, 1 / 2], [0, HALF, 0, HALF], [1, 0, 0, 0], [0, 0, 0, 0]])
MEAN = (VECTORS[0] + VECTORS[2]) / 2


def scorer_of(features: InMemory, n_items: int) -> ContentScorer:
    return ContentScorer(features, n_items, Partition())


@pytest.mark.parametrize(
    ("features", "history", "expected"),
    [
        (PLAIN, [0], [1, 1 / 2 + HALF / 2, 0, HALF, 0]),
        (PLAIN, [0, 2], VECTORS @ MEAN / np.linalg.norm(MEAN)),
        (PLAIN, [4], [0] * 5),  # nothing is known of the history
        (TAGS, [0], [1, COMMON / LENGTH, RARE / LENGTH, COMMON / LENGTH]),  # a value of all items counts nothing
        (InMemory(VALUES, BAGS, PICTURES), [0], [1, (2 + HALF) / 3, 0, THIRD, 0.8 * THIRD]),
        (InMemory([[]] * 5, {}, PICTURES), [0], [1, 1, 0, 0, 0.8]),
    ],
)
def test_cosines_written_out(features: InMemory, history: list[int], expected: list[float]) -> None:
    (found,) = scores_of(scorer_of(features, len(expected)), history)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_items_with_the_same_features_tie_and_no_process_or_batch_changes_a_score() -> None:
    draw = np.random.default_rng(4)
    values = [[*sorted(draw.choice(40, draw.integers(1, 9), replace=False).tolist())] for _ in range(80)]
    vectors = np.tile(draw.normal(size=(80, 3)).astype(np.float32), (2, 1))
    scorer = scorer_of(InMemory(values + values, {"tags": 40}, vectors), 160)
    histories = [draw.integers(0, 160, n).tolist() for n in (1, 2, 30, 200)]
    scores = scores_of(scorer, *histories)
    assert [row[:80] for row in scores] == [row[80:] for row in scores]
    assert [scores_of(scorer, history)[0] for history in histories] == scores
    assert len(scorer.items(torch.arange(0))) == 0  # of a process without items


def test_many_values_share_columns_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, n = np.random.default_rng(4), 60
    values = [[*sorted(draw.choice(np.arange(1, 600), 20, replace=False).tolist())] for _ in range(n)]
    features, histories = InMemory(values, {"tags": 600}, np.zeros((n, 0), np.float32)), [[item] for item in range(n)]
    exact = np.array(scores_of(scorer_of(features, n), *histories))
    monkeypatch.setattr(content, "MAX_COLUMNS", 256)
    scorer = scorer_of(features, n)
    assert scorer.width == 256
    errors = (np.array(scores_of(scorer, *histories)) - exact)[~np.eye(n, dtype=bool)]
    assert abs(errors.mean()) < 0.005
    assert errors.std() < 0.08  # about the square root of 1 / 256
