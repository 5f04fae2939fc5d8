"""The best items are those of a whole sort, whatever the tiles and the ties."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.evaluation import top_k as module
from bert4rec.evaluation.top_k import top_k
from tests.processes import jobs


@given(
    values=st.lists(st.lists(st.integers(-2, 2), min_size=9, max_size=9), min_size=1, max_size=4),
    k=st.integers(1, 9),
    tile=st.integers(1, 10),
    blocks=st.integers(1, 4),
    excluded=st.sets(st.integers(0, 8), max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_the_best_of_all_in_order_and_ties_to_the_lower_index(
    values: list[list[int]], k: int, tile: int, blocks: int, excluded: set[int]
) -> None:
    def exclude(scores: Tensor, first: int) -> None:
        for index in excluded:
            if first <= index < first + scores.shape[1]:
                scores[:, index - first] = -torch.inf

    hidden = torch.tensor(values, dtype=torch.float32)  # their scores, since the vectors are the unit vectors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE", tile)
        patch.setattr(module, "BLOCKS", blocks)
        scores, indices = top_k(hidden, torch.eye(9), k, exclude=exclude)
    for row, own in enumerate(values):
        expected = sorted((index for index in range(9) if index not in excluded), key=lambda i: (-own[i], i))[:k]
        n = len(expected)
        assert indices[row, :n].tolist() == expected
        assert scores[row, :n].tolist() == [own[index] for index in expected]
        assert scores[row, n:].tolist() == [-torch.inf] * (k - n)


@given(
    scores=st.lists(st.lists(st.integers(0, 6), min_size=75, max_size=75), min_size=1, max_size=3), k=st.integers(1, 4)
)
@settings(max_examples=100, deadline=None)
def test_the_best_of_the_best_blocks_are_the_best_of_all(scores: list[list[int]], k: int) -> None:
    """With 16 blocks of 75 columns, of which some end earlier; ties within blocks and between them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCKS", 16)
        _, indices = top_k(torch.tensor(scores, dtype=torch.float32), torch.eye(75), k)
    for row, own in enumerate(scores):
        assert indices[row].tolist() == sorted(range(75), key=lambda i: (-own[i], i))[:k]


def test_nothing_has_to_be_left_out() -> None:
    scores, indices = top_k(torch.tensor([[2.0]]), torch.tensor([[1.0], [3.0], [2.0]]), 2)
    assert indices.tolist() == [[1, 2]]
    assert scores.tolist() == [[6.0, 4.0]]


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_the_best_of_all_processes_whichever_has_which_items(pools: Any, n_processes: int) -> None:
    scores = [[1.0, 3, 3, 0, 3, 3], [5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]]
    expected = ([[3, 3, 3], [5, 4, 3], [0, 0, 0], [5, 4, 3]], [[1, 2, 4], [0, 1, 2], [0, 1, 2], [5, 4, 3]])
    assert pools(n_processes).run(jobs.best_of_processes, scores) == [expected] * n_processes
