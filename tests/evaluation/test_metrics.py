"""Ranks and metrics as written-out arithmetic."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.ranks import LEFT_OUT, is_ahead
from bert4rec.evaluation.metrics import MISSED, count_ahead, is_finite, ranking_metrics


@settings(deadline=None)
@given(
    scores=st.lists(st.sampled_from([-1.0, 0.0, 0.5, -math.inf]), min_size=1, max_size=12),
    first=st.integers(2, 9),
    target=st.integers(2, 30),
    target_score=st.sampled_from([-1.0, 0.0, 0.5]),
)
def test_the_count_in_one_pass_is_that_of_the_comparison(
    scores: list[float], first: int, target: int, target_score: float
) -> None:
    row, targets, target_scores = torch.tensor([scores]), torch.tensor([target]), torch.tensor([target_score])
    expected = is_ahead(row, torch.arange(first, first + len(scores)), target_scores, targets).sum(1)
    assert count_ahead(row, first, target_scores, targets).tolist() == expected.tolist()
    twice = [values.repeat(2) for values in (target_scores, targets)]
    for rows in (row.repeat(2, 1), row):
        assert count_ahead(rows, first, *twice).tolist() == 2 * expected.tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_numbers_that_are_not_finite_are_found(bad: float) -> None:
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.tensor([1.0, -2.0]))
    assert not is_finite(torch.tensor([[0.1, bad, 0.3]]))


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


def test_who_is_missed_counts_with_nothing_and_who_is_left_out_does_not_count() -> None:
    metrics = ranking_metrics(np.array([2, MISSED, 1, LEFT_OUT, MISSED], np.int32), [1, 10**9])
    assert metrics == {
        "users": 4,
        "HR@1": 1 / 4,
        f"HR@{10**9}": 2 / 4,
        "NDCG@1": 1 / 4,
        f"NDCG@{10**9}": (1 / math.log2(3) + 1) / 4,
        "MRR": (1 / 2 + 1) / 4,
    }
    nothing = {"HR@1": 0.0, "NDCG@1": 0.0, "MRR": 0.0}
    assert ranking_metrics(np.array([MISSED, MISSED], np.int32), [1]) == {"users": 2, **nothing}
