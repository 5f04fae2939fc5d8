"""Ranks and metrics as written-out arithmetic."""

import math

import numpy as np
import pytest
import torch

from bert4rec.errors import DivergenceError
from bert4rec.metrics import ranking_metrics, ranks_among, ranks_in_catalogue

# Scores of the items 2 … 6 for two users.
SCORES = torch.tensor([[0.9, 0.5, 0.7, 0.5, 0.1], [0.2, 0.2, 0.2, 0.2, 0.2]])
NONE = torch.tensor([], dtype=torch.int64)


def test_rank_is_one_plus_the_better_ones() -> None:
    ranks = ranks_in_catalogue(SCORES[:1], torch.tensor([4]), NONE, NONE)
    assert ranks.tolist() == [2]  # only item 2 (.9) is ahead of item 4 (.7)


def test_seen_items_are_not_in_the_way_but_the_target_always_counts() -> None:
    rows, seen = torch.tensor([0, 0]), torch.tensor([2, 4])
    assert ranks_in_catalogue(SCORES[:1], torch.tensor([6]), rows, seen).tolist() == [3]  # 3 and 5 are ahead
    assert ranks_in_catalogue(SCORES[:1], torch.tensor([4]), rows, seen).tolist() == [1]  # seen, and the target


def test_ties_go_to_the_lower_id() -> None:
    targets = torch.tensor([3, 5])
    assert ranks_in_catalogue(SCORES, targets, NONE, NONE).tolist() == [3, 4]
    assert ranks_in_catalogue(SCORES, torch.tensor([5, 2]), NONE, NONE).tolist() == [4, 1]
    negatives = torch.tensor([[5, 6], [2, 6]])
    assert ranks_among(SCORES, targets, negatives).tolist() == [1, 2]


def test_negatives_alone_count() -> None:
    assert ranks_among(SCORES[:1], torch.tensor([6]), torch.tensor([[3, 4]])).tolist() == [3]


def test_a_model_that_says_nothing_does_no_better_than_chance() -> None:
    targets = torch.arange(2, 102)
    ranks = ranks_in_catalogue(torch.zeros(100, 100), targets, NONE, NONE)
    assert ranking_metrics(ranks.numpy(), [10])["HR@10"] == 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_finite_raise(bad: float) -> None:
    scores = torch.tensor([[0.1, bad, 0.3]])
    with pytest.raises(DivergenceError, match="not finite"):
        ranks_in_catalogue(scores, torch.tensor([2]), NONE, NONE)
    with pytest.raises(DivergenceError, match="not finite"):
        ranks_among(scores, torch.tensor([2]), torch.tensor([[3]]))


def test_metrics_as_written_out() -> None:
    metrics = ranking_metrics(np.array([1, 2, 5, 11], np.int32), [1, 5, 10])
    assert metrics == {
        "users": 4,
        "HR@1": 1 / 4,
        "HR@5": 3 / 4,
        "HR@10": 3 / 4,
        "NDCG@1": 1 / 4,
        "NDCG@5": pytest.approx((1 + 1 / math.log2(3) + 1 / math.log2(6)) / 4),
        "NDCG@10": pytest.approx((1 + 1 / math.log2(3) + 1 / math.log2(6)) / 4),
        "MRR": pytest.approx((1 + 1 / 2 + 1 / 5 + 1 / 11) / 4),
    }
