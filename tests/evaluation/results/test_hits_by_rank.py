"""Shares of users by the length of a list."""

import numpy as np

from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.evaluation.metrics import ranking_metrics
from bert4rec.evaluation.results.hits_by_rank import hits_by_rank


def test_the_shares_are_hit_rates() -> None:
    ranks = np.random.default_rng(1).integers(1, 800, 1000)
    found = hits_by_rank({"test": {"full": ranks}, "popularity_baseline": {"full": ranks + 100}})
    assert found["ks"] == [1, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 200, 300, 500, 700, 1000]
    metrics = ranking_metrics(ranks, found["ks"])
    assert found["test"] == [metrics[f"HR@{k}"] for k in found["ks"]]
    assert (found["test"][-1], found["popularity_baseline"][0]) == (1.0, 0.0)


def test_who_is_left_out_does_not_count_and_a_protocol_that_was_not_run_is_absent() -> None:
    assert hits_by_rank({"test": {"full": np.array([1, LEFT_OUT])}}) == {"ks": [1], "test": [1.0]}
    assert hits_by_rank({"test": {"popular": np.array([1])}}) == {}
    assert hits_by_rank({}) == {}
