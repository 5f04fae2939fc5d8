"""Counts, metrics, intervals, comparisons and errors of ratings, as written-out arithmetic gives them."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.retrieval import RetrievalHitRate, RetrievalMRR, RetrievalNormalizedDCG

from bert4rec.config.tables import Config
from bert4rec.dataset.format import LEFT_OUT, outranks
from bert4rec.dataset.histories import Histories, TrainingPairs
from bert4rec.dataset.reader import open_dataset
from bert4rec.evaluation import ratings
from bert4rec.evaluation.intervals import (
    PERMUTATIONS,
    Ranking,
    hits_by_rank,
    mean_interval,
    paired_difference,
    rank_intervals,
    share_interval,
    strongest_baseline,
    untied_comparison,
)
from bert4rec.evaluation.metrics import MISSED, count_outranking, is_finite, ranking_metrics
from bert4rec.evaluation.ratings import mean_errors, n_rating_batches, rating_errors
from bert4rec.feed.pairs import TEST_PAIRS, TRAINING_PAIRS, PairExamples, parts_of_pairs
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DivergenceError
from tests.evaluation import jobs


@settings(deadline=None)
@given(
    scores=st.lists(st.sampled_from([-1.0, 0.0, 0.5, -math.inf]), min_size=1, max_size=12),
    first=st.integers(2, 9),
    target=st.integers(2, 30),
    target_score=st.sampled_from([-1.0, 0.0, 0.5]),
)
def test_the_count_in_one_pass_is_that_of_the_comparison(
    scores: list[float], first: int, target: int, target_score: float
) -> None:
    row, targets, target_scores = torch.tensor([scores]), torch.tensor([target]), torch.tensor([target_score])
    expected = outranks(row, torch.arange(first, first + len(scores)), target_scores, targets).sum(1)
    assert count_outranking(row, first, target_scores, targets).tolist() == expected.tolist()
    twice = [values.repeat(2) for values in (target_scores, targets)]
    for rows in (row.repeat(2, 1), row):
        assert count_outranking(rows, first, *twice).tolist() == 2 * expected.tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_numbers_that_are_not_finite_are_found(bad: float) -> None:
    assert is_finite(torch.zeros(0))
    assert is_finite(torch.tensor([1.0, -2.0]))
    assert not is_finite(torch.tensor([[0.1, bad, 0.3]]))


def test_a_thousand_random_cases_as_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(1)
    n_cases, n_items, ks = 1000, 40, [1, 10]
    scores = torch.rand(n_cases, n_items, generator=generator, dtype=torch.float64)
    targets = torch.randint(n_items, (n_cases,), generator=generator)
    everybody = torch.arange(n_cases)
    ranks = 1 + count_outranking(scores, 0, scores[everybody, targets], targets).numpy()
    found = Ranking({"full": ranks}).metrics(ks)["full"]
    case = everybody.repeat_interleave(n_items)
    is_target = torch.zeros(n_cases, n_items, dtype=torch.bool)
    is_target[everybody, targets] = True
    theirs = {"MRR": RetrievalMRR()}
    theirs |= {f"HR@{k}": RetrievalHitRate(top_k=k) for k in ks}
    theirs |= {f"NDCG@{k}": RetrievalNormalizedDCG(top_k=k) for k in ks}
    for name, metric in theirs.items():
        assert found[name] == pytest.approx(float(metric(scores.flatten(), is_target.flatten(), case)), abs=1e-6), name


def test_the_strongest_baseline_by_ndcg_and_the_difference_of_the_same_users() -> None:
    """Popularity has more hits, Markov the higher NDCG@10: that decides."""
    model = Ranking({"full": np.array([1, 2, 0, 30])})
    baselines = {
        "popularity": Ranking({"full": np.array([9, 9, 9, 9])}),
        "markov": Ranking({"full": np.array([2, 1, 1, 0])}),
    }
    for ranking in baselines.values():
        ranking.ranks["popular"] = np.full(4, LEFT_OUT)  # it has no figures
        assert list(ranking.metrics([10])) == list(ranking.intervals([10])) == ["full"]
    expected = paired_difference(np.array([1 - 1 / np.log2(3), 1 / np.log2(3) - 1, -1.0, 0.0]))
    assert strongest_baseline(model, baselines) == {
        "kind": "markov", "protocol": "full", "metric": "NDCG@10", "difference": pytest.approx(expected.value),
        "interval": [pytest.approx(expected.low), pytest.approx(expected.high)], "p": pytest.approx(expected.p),
    }  # fmt: skip
    assert strongest_baseline(model, {}) == {}


def test_hits_by_rank_are_hit_rates_of_the_users_with_a_rank() -> None:
    ranks = np.random.default_rng(1).integers(1, 800, 1000)
    found = hits_by_rank({"test": {"full": ranks}, "popularity_baseline": {"full": ranks + 100}})
    assert found["ks"] == [1, 2, 3, 5, 7, 10, 20, 30, 50, 70, 100, 200, 300, 500, 700, 1000]
    metrics = ranking_metrics(ranks, found["ks"])
    assert found["test"] == [metrics[f"HR@{k}"] for k in found["ks"]]
    assert hits_by_rank({"test": {"full": np.array([1, LEFT_OUT])}}) == {"ks": [1], "test": [1.0]}
    assert hits_by_rank({"test": {"popular": np.array([1])}}) == {}


KS = [1, 5, 10]


def test_the_bounds_of_a_share_are_the_roots_of_its_score() -> None:
    """|hits / n - p| = 1.96 sqrt(p (1 - p) / n) at both bounds p, or a bound is 0 or 1."""
    for n_hits, n in ((0, 40), (1, 40), (20, 40), (40, 40)):
        low, high = share_interval(n_hits, n)
        assert (low == 0, high == 1) == (n_hits == 0, n_hits == n)
        for bound in (low, high):
            if 0 < bound < 1:
                assert abs(n_hits / n - bound) == pytest.approx(1.959964 * (bound * (1 - bound) / n) ** 0.5, rel=1e-6)
    assert share_interval(0, 40)[1] == pytest.approx(3.841459 / 43.841459, rel=1e-6)


def test_intervals_are_those_of_users_drawn_again() -> None:
    generator = np.random.default_rng(2)
    ranks = generator.geometric(0.02, 400).astype(np.int32)
    ranks[:40], ranks[40:60] = MISSED, LEFT_OUT
    counted = ranks[ranks != LEFT_OUT]
    drawn = [ranking_metrics(generator.choice(counted, len(counted)), KS) for _ in range(2000)]
    found = rank_intervals(ranks, KS)
    assert list(found) == [name for name in drawn[0] if name != "users"]
    for name, interval in found.items():
        if name.startswith("HR@"):  # a share has its own interval
            continue
        values = np.array([metrics[name] for metrics in drawn])
        expected = np.quantile(values, [0.025, 0.975])
        assert interval == pytest.approx(expected, rel=0, abs=0.1 * values.std() + 1 / len(counted)), name


def test_many_ranks_share_cells_and_a_cut_off_parts_them() -> None:
    """Ranks 1,000 and 1,001 are nearer than 2 %, but HR@1000 has one of them."""
    found = rank_intervals(np.array([1000, 1001] * 500), [1000])
    low, high = found["HR@1000"]
    assert 0.46 < low < 0.48
    assert 0.52 < high < 0.54
    assert found["MRR"] == pytest.approx([1 / 1000.5] * 2, rel=1e-4)


def test_the_mean_of_values_of_any_size() -> None:
    values = np.random.default_rng(3).lognormal(0, 1, 20_000)
    values[::100] = np.nan
    known = values[~np.isnan(values)]
    margin = 1.96 * known.std() / len(known) ** 0.5
    assert mean_interval(values) == pytest.approx([known.mean() - margin, known.mean() + margin], abs=0.1 * margin)
    assert mean_interval(np.array([2.5, 2.5])) == [2.5, 2.5]


def test_the_p_value_is_the_share_of_signs_with_a_sum_as_large() -> None:
    differences = np.array([0.5, 0.25, -0.125, 0.0, 1.0, 0.5, 0.0, 0.25])
    others = differences[differences != 0]
    sums = [abs(np.dot(signs, others)) for signs in itertools.product((-1, 1), repeat=len(others))]
    share = np.mean(np.array(sums) >= abs(differences.sum()))
    found = paired_difference(differences)
    assert found.value == differences.mean()
    assert found.low <= found.value <= found.high
    assert found.p == pytest.approx(share, abs=4 * (share / PERMUTATIONS) ** 0.5)


def test_no_difference_is_no_finding_and_a_clear_one_is() -> None:
    assert paired_difference(np.zeros(10)) == (0.0, 0.0, 0.0, 1.0)
    assert paired_difference(np.ones(100)) == (1.0, 1.0, 1.0, 1 / (1 + PERMUTATIONS))


def test_users_of_several_targets_are_drawn_with_all_of_theirs() -> None:
    draw, users = np.random.default_rng(4), np.arange(60)
    ranks, others = (draw.integers(1, 15, 60) for _ in range(2))
    several, ranks_of_several, others_of_several = (np.repeat(values, 5) for values in (users, ranks, others))
    order = draw.permutation(300)
    once, five = (
        Ranking({"full": one}, users=of_users)
        for one, of_users in ((ranks, users), (ranks_of_several[order], several[order]))
    )
    assert once.metrics(KS)["full"] | {"users": 300} == pytest.approx(five.metrics(KS)["full"])
    for one, two in zip(once.intervals(KS)["full"].items(), five.intervals(KS)["full"].items(), strict=True):
        assert one[0] == two[0]
        assert one[1] == pytest.approx(two[1])  # five times the same says no more than once
    usual = rank_intervals(ranks, [10])["NDCG@10"]
    assert np.ptp(once.intervals([10])["full"]["NDCG@10"]) == pytest.approx(np.ptp(usual), rel=0.1)
    assert np.ptp(rank_intervals(ranks_of_several, [10])["NDCG@10"]) < 0.6 * np.ptp(usual)
    found = five.difference_from(Ranking({"full": others_of_several[order]}), "full")
    expected = once.difference_from(Ranking({"full": others}), "full")
    assert found["interval"] == pytest.approx(expected["interval"])
    assert (found["difference"], found["p"]) == (pytest.approx(expected["difference"]), expected["p"])
    half = five.select(several[order] < 30)
    assert half.users is not None
    assert sorted(set(half.users.tolist())) == [*range(30)]
    # Users with many targets count more, as in the mean over targets.
    uneven = Ranking({"full": np.array([1, 9, 9, 9])}, users=np.array([0, 1, 1, 1]))
    low, high = uneven.intervals([1])["full"]["HR@1"]
    assert (low, high, uneven.metrics([1])["full"]["HR@1"]) == (0.0, 1.0, 0.25)


def test_users_with_tied_targets_are_left_out_of_the_comparison_if_they_are_a_fifth() -> None:
    """The model is best on tied targets alone, and one baseline on each group."""
    is_tied = np.arange(50) < 10
    model, graph, last = (
        Ranking({"full": np.where(is_tied, tied, untied)}) for tied, untied in ((1, 9), (2, 8), (5, 2))
    )
    found = untied_comparison(model, {"graph": graph, "last": last}, is_tied)
    alone = strongest_baseline(Ranking({"full": np.full(40, 9)}), {"last": Ranking({"full": np.full(40, 2)})})
    assert found == {"users": 40, "tied": 10, "of": 50, **alone}
    assert found["interval"][1] < 0
    assert untied_comparison(model, {"graph": graph}, is_tied & (np.arange(50) > 0)) == {}
    assert untied_comparison(model, {"graph": graph}, is_tied | True) == {"users": 0, "tied": 50, "of": 50}


MSE = {"seed": 3, "loss": "mse", "rating_holdout": 0.2, "rating_validation": 0.1}


@pytest.fixture
def pairs(rated_folder: Path) -> TrainingPairs:
    return TrainingPairs(Histories(rated_folder, 10**6))


class Constant(torch.nn.Module):
    """Rates all pairs alike."""

    def __init__(self, rating: float) -> None:
        super().__init__()
        self.rating = rating

    def rate(self, pairs: Any) -> torch.Tensor:
        return torch.full_like(pairs.ratings, self.rating)


def values(examples: PairExamples) -> list[tuple[int, int, float]]:
    users, items, ratings = examples.read(np.arange(len(examples)))
    return list(zip(users.tolist(), items.tolist(), ratings.tolist(), strict=True))


def test_errors_written_out(pairs: TrainingPairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratings, "PAIRS_AT_ONCE", 50)
    held_out = parts_of_pairs(pairs, **MSE)[TEST_PAIRS]
    calls: list[int] = []

    def errors(rating: float) -> dict[str, float]:
        model: Any = Constant(rating)
        return rating_errors(model, held_out, Partition(), torch.device("cpu"), lambda: calls.append(1))

    found = errors(3.0)
    wrong = [rating - 3 for _, _, rating in values(held_out)]
    assert found == pytest.approx(
        {"pairs": len(wrong), "RMSE": math.sqrt(sum(e * e for e in wrong) / len(wrong)),
         "MAE": sum(map(abs, wrong)) / len(wrong)}
    )  # fmt: skip
    assert len(calls) == n_rating_batches(held_out, Partition()) == math.ceil(len(wrong) / 50)
    with pytest.raises(DivergenceError):
        errors(math.nan)


def test_errors_of_means_written_out(pairs: TrainingPairs, rated_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The means, also damped ones of items and users, are those of the training pairs alone."""
    monkeypatch.setattr(ratings, "PAIRS_AT_ONCE", 100)
    parts = parts_of_pairs(pairs, **MSE)
    trained, tested = values(parts[TRAINING_PAIRS]), values(parts[TEST_PAIRS])
    mean = np.mean([r for *_, r in trained])
    item_means = {i: sum(r - mean for _, j, r in trained if j == i) for i in {i for _, i, _ in trained}}
    item_means = {i: total / (25 + sum(j == i for _, j, _ in trained)) for i, total in item_means.items()}
    user_means = {u: sum(r - mean - item_means[i] for v, i, r in trained if v == u) for u in {u for u, *_ in trained}}
    user_means = {u: total / (10 + sum(v == u for v, *_ in trained)) for u, total in user_means.items()}
    left = [r - mean - item_means.get(i, 0.0) - user_means.get(u, 0.0) for u, i, r in tested]
    found = mean_errors(pairs, parts, open_dataset(rated_folder))
    assert found == pytest.approx(
        {"baseline_RMSE": math.sqrt(np.mean([(r - mean) ** 2 for *_, r in tested])),
         "means_RMSE": math.sqrt(np.mean(np.square(left)))}
    )  # fmt: skip
    assert found["means_RMSE"] < found["baseline_RMSE"]


def test_any_number_of_processes_finds_the_same(pools: Any, rated_config: Callable[..., Config]) -> None:
    alone = pools(1).run(jobs.rating_errors, rated_config())
    assert alone[0]["pairs"] > 90
    assert pools(2).run(jobs.rating_errors, rated_config()) == 2 * alone
    assert pools(3).run(jobs.rating_errors, rated_config()) == 3 * alone
