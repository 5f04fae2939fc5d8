"""The best items of some users: those that the ranks are about, on any number of processes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset, open_dataset, read_metadata
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.evaluation.examples import examples, spread_rows
from bert4rec.evaluation.metrics import MISSED
from bert4rec.evaluation.ranker import Ranker
from bert4rec.models.untrained.popularity import PopularityScorer
from bert4rec.runtime.collectives import Partition
from tests.processes import jobs

CPU = torch.device("cpu")


def test_users_from_each_part_of_the_ranks() -> None:
    assert spread_rows(np.arange(100, 0, -1)).tolist() == list(range(94, -1, -10))  # of ranks 6, 16, 26, …
    assert spread_rows(np.array([3, MISSED, 1])).tolist() == [2, 0, 1]
    assert spread_rows(np.array([3, MISSED, 1], np.int32)).tolist() == [2, 0, 1]
    assert spread_rows(np.array([], np.int32)).tolist() == []


def test_the_best_items_of_everybody_by_hand(log_folder: Any) -> None:
    """By popularity, so that scores tie: the lower id comes first."""
    metadata = read_metadata(log_folder)
    dataset = open_dataset(log_folder, max_len=metadata["max_len"], preprocessing=metadata["preprocessing"])
    test, popularity = dataset.splits["test"], dataset.popularity
    scorer = PopularityScorer(popularity, Partition())
    for leaves_out_seen in (True, False):
        ranker = Ranker(scorer, batch_size=4, device=CPU, leaves_out_seen=leaves_out_seen)
        ranks = ranker.rank(test, ["full"])["full"]
        found = examples(scorer, test, ranks, k=4, leaves_out_seen=leaves_out_seen, device=CPU)
        assert sorted(example.user for example in found) == [0, 1, 2, 3, 4, 5]
        assert [example.rank for example in found] == sorted(ranks.tolist(), key=lambda rank: rank or np.inf)
        for example in found:
            seen = {*example.history.tolist()} if leaves_out_seen else set()
            allowed = {*range(FIRST_ITEM_ID, FIRST_ITEM_ID + 8)} - seen
            best = sorted(allowed, key=lambda item: (-popularity[item - FIRST_ITEM_ID], item))[:4]
            assert example.items.tolist() == best
            assert example.scores.tolist() == [popularity[item - FIRST_ITEM_ID] for item in best]


@pytest.mark.parametrize(("n_processes", "mode"), [(1, "dmp"), (2, "dmp"), (3, "dmp"), (2, "ddp")])
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


def test_a_user_with_few_unseen_items_gets_few(small_dataset: Dataset) -> None:
    scorer = PopularityScorer(small_dataset.popularity, Partition())
    test = small_dataset.splits["test"]
    (example, *_) = examples(scorer, test, np.ones(len(test), np.int32), k=1000, leaves_out_seen=True, device=CPU)
    n_unseen = small_dataset.n_items - len({*example.history.tolist()} - {example.target})
    assert len(example.items) == len(example.scores) == n_unseen
