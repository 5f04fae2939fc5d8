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
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation import top_k as module
from bert4rec.evaluation.evaluator import evenly_ranked_rows, examples
from bert4rec.evaluation.metrics import MISSED
from bert4rec.evaluation.ranker import Ranker
from bert4rec.evaluation.top_k import top_k
from bert4rec.models.baselines import PopularityScorer
from bert4rec.runtime.collectives import Partition
from tests.conftest import long
from tests.evaluation import jobs


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
        patch.setattr(module, "BLOCKS_PER_TILE", blocks)
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
        patch.setattr(module, "BLOCKS_PER_TILE", 16)
        _, indices = top_k(torch.tensor(scores, dtype=torch.float32), torch.eye(75), k)
    for row, own in enumerate(scores):
        assert indices[row].tolist() == sorted(range(75), key=lambda i: (-own[i], i))[:k]


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_the_best_of_all_processes_whichever_has_which_items(pools: Any, n_processes: int) -> None:
    scores = [[1.0, 3, 3, 0, 3, 3], [5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]]
    expected = ([[3, 3, 3], [5, 4, 3], [0, 0, 0], [5, 4, 3]], [[1, 2, 4], [0, 1, 2], [0, 1, 2], [5, 4, 3]])
    assert pools(n_processes).run(jobs.best_of_processes, scores) == [expected] * n_processes


CPU = torch.device("cpu")


def test_users_from_each_part_of_the_ranks() -> None:
    assert evenly_ranked_rows(np.arange(100, 0, -1)).tolist() == list(range(94, -1, -10))  # of ranks 6, 16, 26, …
    assert evenly_ranked_rows(np.array([3, MISSED, 1])).tolist() == [2, 0, 1]
    assert evenly_ranked_rows(np.array([3, MISSED, 1], np.int32)).tolist() == [2, 0, 1]
    assert evenly_ranked_rows(np.array([], np.int32)).tolist() == []


def test_the_best_items_of_everybody_by_hand(log_dataset: Dataset) -> None:
    """By popularity, so that scores tie: the lower id comes first."""
    test, popularity = log_dataset.splits["test"], log_dataset.popularity
    scorer = PopularityScorer(popularity, Partition())
    for leaves_out_seen in (True, False):
        ranker = Ranker(scorer, batch_size=4, device=CPU, leaves_out_seen=leaves_out_seen)
        ranks = ranker.rank(test, ["full"])["full"]
        found = examples(ranker, test, ranks, k=4)
        assert sorted(example.user for example in found) == [0, 1, 2, 3, 4, 5]
        assert [example.rank for example in found] == sorted(ranks.tolist(), key=lambda rank: rank or np.inf)
        for example in found:
            seen = {*example.history.tolist()} if leaves_out_seen else set()
            allowed = {*range(8)} - seen
            best = sorted(allowed, key=lambda item: (-popularity[item], item))[:4]
            assert example.items.tolist() == best
            assert example.scores.tolist() == [popularity[item] for item in best]


@pytest.mark.parametrize(("n_processes", "mode"), [long(1, "dmp"), long(2, "dmp"), (3, "dmp"), (2, "ddp")])
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
