"""Scores as written-out arithmetic, and the same to the last bit by whichever way they are asked for."""

import numpy as np
import pytest
import torch

from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.models.untrained.histories import TrainingHistories
from bert4rec.models.untrained.transition_scorer import TransitionScorer
from bert4rec.models.untrained.transitions import Transitions
from bert4rec.runtime.collectives import Partition
from tests.models.untrained.windows import dataset_of


def scorer_of(histories: list[list[int]], n_items: int, *, n_last_items: int, smoothing: float) -> TransitionScorer:
    dataset = dataset_of(histories, n_items=n_items)
    transitions = Transitions.count(TrainingHistories(dataset), reach=n_last_items, decay=0.5)
    settings = {"decay": 0.5, "smoothing": smoothing, "n_last_items": n_last_items}
    return TransitionScorer(transitions, dataset.popularity, Partition(), **settings)


def rows_of(*histories: list[int]) -> Rows:
    items = np.array([item for items in histories for item in items], np.int32) + FIRST_ITEM_ID
    return Rows(items, np.array([len(items) for items in histories]))


def scores_of(scorer: TransitionScorer, rows: Rows) -> list[list[float]]:
    everything = FIRST_ITEM_ID + torch.arange(scorer.n_items)
    users, chosen = scorer.encode(rows, everything.expand(len(rows.lengths), -1))
    scores = scorer.scores(users, scorer.items(everything))
    assert torch.equal(scores, chosen)
    return scores.tolist()


def test_a_chain_is_smoothed_by_popularity() -> None:
    """Of six positions the items 0, 1 and 2 have 3, 2 and 1; item 3 none."""
    scorer = scorer_of([[0, 1, 0, 1], [0, 2]], 4, n_last_items=1, smoothing=1.0)
    after_0 = [(0 + 3 / 6) / (3 + 1), (2 + 2 / 6) / 4, (1 + 1 / 6) / 4, 0]
    after_1 = [(1 + 3 / 6) / (1 + 1), (0 + 2 / 6) / 2, (0 + 1 / 6) / 2, 0]
    never_left = [3 / 6, 2 / 6, 1 / 6, 0]  # nothing has followed item 2
    found = scores_of(scorer, rows_of([1, 2, 0], [1], [2], [0, 3]))
    np.testing.assert_allclose(found, [after_0, after_1, never_left, never_left], rtol=1e-15)


def test_a_graph_adds_up_several_last_items() -> None:
    """0 → 1 twice, 1 → 0 and 1 → 2 once; 0 → 0 and 1 → 1 two places apart, which counts half."""
    scorer = scorer_of([[0, 1, 0, 1], [1, 2]], 3, n_last_items=2, smoothing=2.0)
    shares = np.array([2, 3, 1]) / 6
    of_0 = (np.array([0.5, 2, 0]) + 2 * shares) / (2.5 + 2)
    of_1 = (np.array([1, 0.5, 1]) + 2 * shares) / (2.5 + 2)
    of_2 = shares  # nothing has followed it
    found = scores_of(scorer, rows_of([2, 0, 1], [1, 0], [0], [1, 2]))
    np.testing.assert_allclose(found, [of_1 + 0.5 * of_0, of_0 + 0.5 * of_1, of_0, of_2 + 0.5 * of_1], rtol=1e-15)


@pytest.mark.parametrize("n_last_items", [1, 3, 10])
def test_scores_of_tiles_are_those_of_single_items_to_the_last_bit(n_last_items: int) -> None:
    """Else a target would be better or worse than an item with which it ties."""
    random = np.random.default_rng(n_last_items)
    histories = [random.integers(0, 40, size).tolist() for size in random.integers(1, 30, 60)]
    scorer = scorer_of(histories, 40, n_last_items=n_last_items, smoothing=0.3)
    rows = rows_of(*histories[:20], [7])
    everything = FIRST_ITEM_ID + torch.arange(40)
    users, chosen = scorer.encode(rows, everything.expand(21, -1))
    for start in range(0, 40, 7):
        tile = everything[start : start + 7]
        assert torch.equal(scorer.scores(users, scorer.items(tile)), chosen[:, start : start + 7])
    for first in range(0, 21, 5):
        assert torch.equal(scorer.scores(users[first : first + 5], everything), chosen[first : first + 5])


def test_without_any_transition_popularity_is_all_there_is() -> None:
    scorer = scorer_of([[0], [1], [1]], 3, n_last_items=2, smoothing=5.0)
    assert scores_of(scorer, rows_of([0])) == [[1 / 3, 2 / 3, 0.0]]
