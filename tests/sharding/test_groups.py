"""Groups of processes, real ones: their messages and ranks; test_parallelize.py trains in groups."""

import itertools
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bert4rec.sharding.groups import make_groups
from tests.fixture_types import Settings
from tests.processes import jobs


def sums_in_groups() -> tuple[float, float, float, list[list[float]], range]:
    """Of the ranks of 4 processes in groups of 2: over a group, over copies; their mean; a stack; and 2 of 8 things."""
    groups = make_groups(2, timedelta(minutes=5))
    rank = torch.tensor([float(dist.get_rank())])
    totals = [float(partition.sum(rank.clone())) for partition in (groups.shards, groups.replicas)]
    mean, stacked = float(groups.replicas.mean(rank.clone())), groups.shards.stack(rank).tolist()
    return *totals, mean, stacked, groups.world.of(8)  # type: ignore[return-value]


def test_ranks_are_those_without_groups(pools: Any, small_config: Settings) -> None:
    in_two = small_config(**{"parallelism.sharding_group_size": 2})
    (alone, *_), every = (pools(4).run(jobs.rank_with_model, config, "test") for config in (small_config(), in_two))
    for ranks, protocol in itertools.product(every, alone):
        np.testing.assert_array_equal(ranks[protocol], alone[protocol])


def test_each_group_and_each_shard_has_its_own_messages(pools: Any) -> None:
    """Processes 0, 1 and 2, 3 are groups; 0, 2 and 1, 3 hold the same. Evaluation deals each what its shard has."""
    assert pools(4).run(sums_in_groups) == [
        (1.0, 2.0, 1.0, [[0.0], [1.0]], range(2)),
        (1.0, 4.0, 2.0, [[0.0], [1.0]], range(4, 6)),
        (5.0, 2.0, 1.0, [[2.0], [3.0]], range(2, 4)),
        (5.0, 4.0, 2.0, [[2.0], [3.0]], range(6, 8)),
    ]
