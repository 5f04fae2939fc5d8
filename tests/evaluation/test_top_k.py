"""The best items are those of a whole sort, whatever the tiles, the ties and the processes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.config.tables import Config
from bert4rec.evaluation import top_k as module
from bert4rec.evaluation.top_k import top_k
from tests.conftest import long
from tests.evaluation import jobs


@given(
    values=st.sampled_from([9, 75]).flatmap(
        lambda n: st.lists(st.lists(st.integers(-2, 2), min_size=n, max_size=n), min_size=1, max_size=3)
    ),
    k=st.integers(1, 9),
    tile=st.integers(1, 100),
    blocks=st.integers(1, 16),
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
    n_items = hidden.shape[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE", tile)
        patch.setattr(module, "BLOCKS_PER_TILE", blocks)
        scores, indices = top_k(hidden, torch.eye(n_items), k, exclude=exclude)
    for row, own in enumerate(values):
        allowed = (index for index in range(n_items) if index not in excluded)
        expected = sorted(allowed, key=lambda i: (-own[i], i))[:k]
        n = len(expected)
        assert indices[row, :n].tolist() == expected
        assert scores[row, :n].tolist() == [own[index] for index in expected]
        assert scores[row, n:].tolist() == [-torch.inf] * (k - n)


@pytest.mark.parametrize("n_processes", [1, 3])
def test_the_best_of_all_processes_whichever_has_which_items(pools: Any, n_processes: int) -> None:
    scores = [[1.0, 3, 3, 0, 3, 3], [5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]]
    expected = ([[3, 3, 3], [5, 4, 3], [0, 0, 0], [5, 4, 3]], [[1, 2, 4], [0, 1, 2], [0, 1, 2], [5, 4, 3]])
    assert pools(n_processes).run(jobs.best_of_processes, scores) == [expected] * n_processes


@pytest.mark.parametrize(("n_processes", "mode"), [long(2, "dmp"), (3, "dmp"), (2, "ddp")])
def test_the_target_stands_at_its_rank_whatever_the_processes(
    pools: Any, small_config: Callable[..., Config], n_processes: int, mode: str
) -> None:
    ((_, alone),) = pools(1).run(jobs.example_users, small_config(**{"parallelism.mode": "ddp"}))
    assert len(alone) == 10
    for ranks, found in pools(n_processes).run(jobs.example_users, small_config(**{"parallelism.mode": mode})):
        for example, twin in zip(found, alone, strict=True):
            assert (example.user, example.target, example.rank) == (twin.user, twin.target, twin.rank)
            np.testing.assert_array_equal(example.items, twin.items)
            np.testing.assert_array_equal(example.scores, twin.scores)
            assert ranks["full"][example.user] == example.rank
            places = np.flatnonzero(example.items == example.target)
            assert places.tolist() == ([example.rank - 1] if example.rank <= 10 else [])
