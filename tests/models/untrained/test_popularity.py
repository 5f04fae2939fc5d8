"""Popularity, of all time and of late, worked out by hand."""

import random

import numpy as np
import pytest
import torch

from bert4rec.models.untrained.histories import TrainingHistories
from bert4rec.models.untrained.popularity import PopularityScorer, in_order, newest_from, recent_counts
from bert4rec.runtime.collectives import Partition
from tests.models.untrained.windows import dataset_of


def test_scores_can_be_written_to() -> None:
    """What users have seen is struck out."""
    scorer = PopularityScorer(np.array([3, 1]), Partition())
    scores = scorer.scores(torch.empty(2, 0), scorer.items(torch.tensor([2, 3])))
    scores[0, 1] = -torch.inf
    assert scores.tolist() == [[3.0, -torch.inf], [3.0, 1.0]]


def test_without_times_the_last_of_every_user_count() -> None:
    """Of 4, 1, 5 and 0 interactions half are the last 2, 1, 3 and none."""
    histories = [[0, 1, 2, 3], [2], [3, 3, 0, 2, 2], []]
    for max_len, step in ((50, 0), (2, 1), (3, 0)):
        found = TrainingHistories(dataset_of(histories, n_items=5, max_len=max_len, step=step))
        assert recent_counts(found, 0.5).tolist() == [1, 0, 4, 1, 0]
        assert recent_counts(found, 0.01).tolist() == [0, 0, 2, 1, 0]
        assert recent_counts(found, 1.0).tolist() == [2, 1, 4, 3, 0]


def test_with_times_the_newest_of_all_count() -> None:
    """The two newest are of the second user, and a third one is as new as the older of these."""
    histories, times = [[0, 1, 2], [2, 3, 4]], [[10, 20, 80], [50, 80, 90]]
    found = TrainingHistories(dataset_of(histories, n_items=5, times=times, max_len=2, step=1))
    assert recent_counts(found, 2 / 6).tolist() == [0, 0, 1, 1, 1]
    assert recent_counts(found, 1 / 6).tolist() == [0, 0, 0, 0, 1]
    assert recent_counts(found, 4 / 6).tolist() == [0, 0, 2, 1, 1]
    assert recent_counts(found, 1.0).tolist() == [1, 1, 2, 1, 1]


@pytest.mark.parametrize("spread", [3, 70_000, 2**33])
def test_the_instant_is_that_of_a_sort(spread: int) -> None:
    draw = random.Random(spread)
    times = [draw.randrange(-spread, spread) + 1_600_000_000 for _ in range(200)]
    for n_newest in (1, 2, 77, 200):
        parts = [np.array(times[:50]), np.array(times[50:])]
        assert newest_from(lambda parts=parts: parts, n_newest) == sorted(times)[-n_newest]


def test_equal_counts_are_in_order_of_the_next_ones() -> None:
    recent, all_of_them = np.array([1, 0, 1, 0]), np.array([5, 2, 9, 2])
    assert in_order(recent, all_of_them).tolist() == [1, 0, 2, 0]
