"""Exactly the same figures for 1, 2 and 3 processes, sharded or not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bert4rec.config.abilities import UNTRAINED
from bert4rec.config.tables import Config
from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.evaluation.metrics import MISSED
from tests.processes import jobs


@pytest.mark.parametrize(("n_processes", "mode"), [(2, "ddp"), (3, "ddp"), (1, "dmp"), (2, "dmp"), (3, "dmp")])
@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("head", ["tied", "linear"])
def test_ranks_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config], n_processes: int, mode: str, split: str, head: str
) -> None:
    plain, other = (small_config(**{"parallelism.mode": name, "model.head": head}) for name in ("ddp", mode))
    (alone,) = pools(1).run(jobs.rank_with_model, plain, split)
    for ranks in pools(n_processes).run(jobs.rank_with_model, other, split):
        for protocol in jobs.PROTOCOLS:
            np.testing.assert_array_equal(ranks[protocol], alone[protocol])


@pytest.mark.parametrize("kind", UNTRAINED)
def test_kinds_without_training_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config], kind: str
) -> None:
    (alone,) = pools(1).run(jobs.rank_untrained, small_config(), kind, "test")
    assert len({*alone["full"].tolist()}) > 10
    for n_processes in (2, 3):
        for ranks in pools(n_processes).run(jobs.rank_untrained, small_config(), kind, "test"):
            for protocol in jobs.PROTOCOLS:
                np.testing.assert_array_equal(ranks[protocol], alone[protocol])


@pytest.mark.parametrize("dataset", ["small", "log"])
def test_metrics_of_lists_intervals_and_slices_do_not_depend_on_the_processes(
    pools: Any, small_config: Callable[..., Config], log_config: Callable[..., Config], dataset: str
) -> None:
    config = {"small": small_config, "log": log_config}[dataset](**{"parallelism.mode": "dmp"})
    (alone,) = pools(1).run(jobs.results_with_model, config)
    assert {"validation", "test", "popularity_baseline", "intervals", "slices"} <= alone.keys()
    assert "Coverage@10" in alone["popularity_baseline"]["full"]
    for n_processes in (2, 3):
        assert pools(n_processes).run(jobs.results_with_model, config) == [alone] * n_processes


def test_more_processes_than_batches(pools: Any, small_config: Callable[..., Config]) -> None:
    config = small_config(**{"evaluation.per_device_eval_batch_size": 1000})
    alone, *_ = pools(1).run(jobs.rank_with_model, config, "test")
    for ranks in pools(3).run(jobs.rank_with_model, config, "test"):
        np.testing.assert_array_equal(ranks["full"], alone["full"])


@pytest.mark.parametrize(("n_processes", "mode"), [(2, "ddp"), (3, "ddp"), (1, "dmp"), (2, "dmp"), (3, "dmp")])
@pytest.mark.parametrize(
    "batch_size", [1, 2, 4]
)  # of six users in order of their lengths, the last two have no negatives
def test_users_without_negatives_are_left_out_whatever_the_processes(
    pools: Any, log_config: Callable[..., Config], n_processes: int, mode: str, batch_size: int
) -> None:
    size = {"evaluation.per_device_eval_batch_size": batch_size}
    (alone,) = pools(1).run(jobs.rank_with_model, log_config(**size, **{"parallelism.mode": "ddp"}), "test")
    assert alone["popular"][[3, 5]].tolist() == alone["uniform"][[3, 5]].tolist() == [LEFT_OUT, LEFT_OUT]
    assert alone["full"].tolist().count(MISSED) == 3  # repeated targets
    assert (alone["popular"][[0, 1, 2, 4]] > 0).all()
    for ranks in pools(n_processes).run(jobs.rank_with_model, log_config(**size, **{"parallelism.mode": mode}), "test"):
        for protocol in jobs.PROTOCOLS:
            np.testing.assert_array_equal(ranks[protocol], alone[protocol])


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_scores_that_are_no_numbers_are_met_by_all_processes(pools: Any, n_processes: int) -> None:
    """One process alone scores the tile where that item is; the others would wait for it."""
    (message,) = set(pools(n_processes).run(jobs.rank_with_a_spoiled_item))
    assert message == "the model gives scores that are not finite"
