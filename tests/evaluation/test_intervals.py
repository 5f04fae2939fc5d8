"""Intervals cover what they should, differences have the p-values of written-out arithmetic."""

import itertools

import numpy as np
import pytest

from bert4rec.dataset.format import LEFT_OUT
from bert4rec.evaluation.intervals import (
    PERMUTATIONS,
    Ranking,
    mean_interval,
    paired_difference,
    rank_intervals,
    share_interval,
    strongest_baseline,
    untied_comparison,
)
from bert4rec.evaluation.metrics import MISSED, gains, ranking_metrics

KS = [1, 5, 10]


def test_intervals_cover_the_truth_as_often_as_they_should() -> None:
    """In 93 to 97 % of 500 simulated data sets, of 300 users whose targets' ranks have a long tail."""
    generator, largest = np.random.default_rng(1), 60
    weights = 1 / np.arange(2, largest + 2)
    weights /= weights.sum()
    truth = {name: float(values @ weights) for name, values in gains(np.arange(1, largest + 1), [10])}
    covered = dict.fromkeys(truth, 0)
    for _ in range(500):
        ranks = generator.choice(largest, 300, p=weights) + 1
        for name, (low, high) in rank_intervals(ranks, [10]).items():
            covered[name] += low <= truth[name] <= high
    assert {name: 0.93 <= n / 500 <= 0.97 for name, n in covered.items()} == dict.fromkeys(truth, True), covered


@pytest.mark.parametrize("expected", [1.0, 2.0, 5.0, 150.0])
def test_the_interval_of_a_share_covers_it_with_few_hits_too(expected: float) -> None:
    """In 92 % or more of 4,000 simulated slices of 300 users, with `expected` hits on average."""
    n, generator = 300, np.random.default_rng(7)
    hits, n_simulated = np.unique(generator.binomial(n, expected / n, 4000), return_counts=True)
    covered = 0
    for n_hits, times in zip(hits.tolist(), n_simulated.tolist(), strict=True):
        ranks = np.where(np.arange(n) < n_hits, 3, 50)
        low, high = rank_intervals(ranks, [10])["HR@10"]
        covered += times * (low <= expected / n <= high)
    assert covered / 4000 >= 0.92


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
    clear = paired_difference(np.ones(100))
    assert clear == (1.0, 1.0, 1.0, 1 / (1 + PERMUTATIONS))
    generator, n_found = np.random.default_rng(5), 0
    for _ in range(100):
        n_found += paired_difference(generator.choice([-1.0, 0.0, 1.0], 50)).p < 0.05
    assert n_found <= 12


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
