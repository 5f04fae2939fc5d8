"""Who scores: what is known of users and items gives the scores that are ranked."""

import numpy as np
import torch

from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.evaluation.scorers import ModelScorer, Scorer
from bert4rec.models.untrained.popularity import PopularityScorer
from bert4rec.models.untrained.transition_scorer import TransitionScorer
from bert4rec.models.untrained.transitions import Pairs, Transitions
from bert4rec.runtime.collectives import Partition
from tests.models.networks import N_ITEMS, model

ROWS = Rows(items=np.array([5, 6, 7, 8, 9], np.int32), lengths=np.array([2, 3]), targets=np.array([3, 4], np.int32))


def scorers() -> list[Scorer]:
    counts = np.arange(N_ITEMS)[::-1] + 2**24  # of which float32 would make ties
    keys = np.arange(0, N_ITEMS**2, 3)
    pairs = Pairs(keys, np.sqrt(keys + 1).astype(np.float32))
    totals = np.bincount(keys // N_ITEMS, pairs.weights, minlength=N_ITEMS)
    graph = TransitionScorer(
        Transitions(N_ITEMS, pairs, totals), counts, Partition(), n_last_items=4, decay=0.7, smoothing=3.0
    )
    return [ModelScorer(model(), device=torch.device("cpu"), max_len=12), PopularityScorer(counts, Partition()), graph]


@torch.no_grad()
def test_the_scores_of_the_catalogue_are_those_of_chosen_items() -> None:
    everything = FIRST_ITEM_ID + torch.arange(N_ITEMS)
    chosen = torch.tensor([[3, 20, 3], [39, 2, 11]])
    for scorer in scorers():
        users, of_chosen = scorer.encode(ROWS, chosen)
        scores = scorer.scores(users, scorer.items(everything))
        assert users.shape == (2, scorer.width)
        assert users.dtype == scores.dtype == scorer.dtype
        assert scores.shape == (2, scorer.n_items) == (2, N_ITEMS)
        torch.testing.assert_close(scores.gather(1, chosen - FIRST_ITEM_ID), of_chosen)
        assert scores[0, 0] != scores[0, 1]


def test_scores_can_be_written_to() -> None:
    """What users have seen is struck out."""
    scorer = PopularityScorer(np.array([3, 1]), Partition())
    users, _ = scorer.encode(ROWS, torch.tensor([[2], [3]]))
    scores = scorer.scores(users, scorer.items(torch.tensor([2, 3])))
    scores[0, 1] = -torch.inf
    assert scores.tolist() == [[3.0, -torch.inf], [3.0, 1.0]]
