"""The rule for ties; with tensors it is tested where scores are counted."""

import numpy as np
import pytest

from bert4rec.dataset.format import outranks

# Scores of the items 2 … 6 for two users.
SCORES = np.array([[0.9, 0.5, 0.7, 0.5, 0.1], [0.2, 0.2, 0.2, 0.2, 0.2]])
IDS = np.arange(2, 7)


@pytest.mark.parametrize(
    ("targets", "ahead"), [([4, 2], [[2], []]), ([3, 5], [[2, 4], [2, 3, 4]]), ([5, 6], [[2, 3, 4], [2, 3, 4, 5]])]
)
def test_the_better_ones_come_first_and_ties_go_to_the_lower_id(targets: list[int], ahead: list[list[int]]) -> None:
    chosen = np.array(targets)
    found = outranks(SCORES, IDS, SCORES[[0, 1], chosen - 2], chosen)
    assert [IDS[row].tolist() for row in found] == ahead


def test_candidates_may_differ_from_row_to_row() -> None:
    ids, scores = np.array([[6, 3], [9, 2]]), np.array([[0.1, 0.5], [0.2, 0.2]])
    assert outranks(scores, ids, np.array([0.1, 0.2]), np.array([4, 5])).tolist() == [[False, True], [False, True]]
