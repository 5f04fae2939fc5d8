"""Groups of processes, real ones: their messages, ranks and few items; test_item_features.py trains in groups."""

import itertools
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bert4rec.sharding.groups import make_groups
from tests.conftest import long
from tests.fixture_types import Settings
from tests.processes import jobs
from tests.sharding.jobs import refusal, train_few_items

IN_TWO = {"parallelism.sharding_group_size": 2}


def sums_in_groups() -> tuple[float, float, float, list[list[float]], range]:
    """Of the ranks of 4 processes in groups of 2: over a group, over copies; their mean; a stack; and 2 of 8 things."""
    groups = make_groups(2, timedelta(minutes=5))
    rank = torch.tensor([float(dist.get_rank())])
    totals = [float(partition.sum(rank.clone())) for partition in (groups.shards, groups.replicas)]
    mean, stacked = float(groups.replicas.mean(rank.clone())), groups.shards.stack(rank).tolist()
    return *totals, mean, stacked, groups.world.of(8)  # type: ignore[return-value]


def test_ranks_are_those_without_groups(pools: Any, small_config: Settings) -> None:
    """Users and tiles are dealt to all processes; each looks items up in its own group."""
    (alone, *_), every = (pools(4).run(jobs.rank_with_model, small_config(**how), "test") for how in ({}, IN_TWO))
    for ranks, protocol in itertools.product(every, alone):
        np.testing.assert_array_equal(ranks[protocol], alone[protocol])


@pytest.mark.parametrize("loss", ["softmax", long("sampled_softmax")])
def test_few_items_are_trained_as_without_groups(pools: Any, loss: str) -> None:
    """Of the 3 rows of one item 2 and 1; the same losses as of four processes, of which some hold none."""
    cases = [(n_items, {"training.loss": loss} | IN_TWO) for n_items in ((1, 2, 7) if loss == "softmax" else (2, 7))]
    expected, *_ = pools(4).run(train_few_items, [(n_items, {"training.loss": loss}) for n_items, _ in cases])
    for answers in pools(4).run(train_few_items, cases):
        for answer, one in zip(answers, expected, strict=True):
            assert answer["losses"] == pytest.approx(one["losses"], abs=1e-5)


def test_groups_of_another_size_than_divides_the_processes_are_refused_on_all(
    pools: Any, small_config: Settings
) -> None:
    first, *others = pools(4).run(refusal, small_config(**{"parallelism.sharding_group_size": 3}), 20)
    assert "parallelism.sharding_group_size = 3" in first
    assert others == [first] * 3


def test_each_group_and_each_shard_has_its_own_messages(pools: Any) -> None:
    """Processes 0, 1 and 2, 3 are groups; 0, 2 and 1, 3 hold the same. Evaluation deals each what its shard has."""
    assert pools(4).run(sums_in_groups) == [
        (1.0, 2.0, 1.0, [[0.0], [1.0]], range(2)),
        (1.0, 4.0, 2.0, [[0.0], [1.0]], range(4, 6)),
        (5.0, 2.0, 1.0, [[2.0], [3.0]], range(2, 4)),
        (5.0, 4.0, 2.0, [[2.0], [3.0]], range(6, 8)),
    ]
