"""Exactly the same figures for 1, 2 and 3 processes, sharded or not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bert4rec.config import Config
from bert4rec.feed.dataset import Dataset
from tests.distributed import jobs


@pytest.mark.parametrize(("n_processes", "mode"), [(2, "ddp"), (3, "ddp"), (1, "dmp"), (2, "dmp"), (3, "dmp")])
@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("head", ["tied", "linear"])
def test_ranks_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config], n_processes: int, mode: str, split: str, head: str
) -> None:
    plain, other = (small_config(**{"parallelism.mode": how, "model.head": head}) for how in ("ddp", mode))
    (alone,) = pools(1).run(jobs.rank_with_model, plain, split)
    for ranks in pools(n_processes).run(jobs.rank_with_model, other, split):
        for protocol in jobs.PROTOCOLS:
            np.testing.assert_array_equal(ranks[protocol], alone[protocol])


def test_more_processes_than_batches(pools: Any, small_config: Callable[..., Config]) -> None:
    config = small_config(**{"evaluation.per_device_eval_batch_size": 1000})
    alone, *_ = pools(1).run(jobs.rank_by_popularity, config, "test")
    for ranks in pools(3).run(jobs.rank_by_popularity, config, "test"):
        np.testing.assert_array_equal(ranks["full"], alone["full"])


def test_popularity_ranks_are_those_of_a_plain_count(
    pools: Any, small_config: Callable[..., Config], small_dataset: Dataset
) -> None:
    """Worked out once more with sorts over Python lists: unseen items by count, ties by id."""
    ranks = pools(2).run(jobs.rank_by_popularity, small_config(), "test")[0]
    test, counts = small_dataset.splits["test"], small_dataset.popularity
    for row in range(len(test)):
        rows = test.read(np.array([row]))
        assert rows.targets is not None
        assert rows.negatives is not None
        target = int(rows.targets[0])
        unseen = sorted({*range(2, 2 + len(counts))} - {*rows.items.tolist()} | {target})
        by_count = sorted(unseen, key=lambda item: (-counts[item - 2], item))
        assert ranks["full"][row] == 1 + by_count.index(target)
        for protocol, negatives in rows.negatives.items():
            candidates = sorted([target, *negatives[0].tolist()], key=lambda item: (-counts[item - 2], item))
            assert ranks[protocol][row] == 1 + candidates.index(target)
