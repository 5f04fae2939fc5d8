"""The gate: the arithmetic written out, each decision, and what must hold for all tails."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.runtime.arrays import Float64s, Int64s
from bert4rec.update.gate import (
    FEWEST_USERS,
    POOLED_DAYS,
    Tail,
    clustered_error,
    judge,
    paired_loss,
    student_quantile,
)

GAINS = 1 / np.log2(np.arange(1, 11) + 1)


def gains_of(n: int, seed: int, hits: float = 0.4) -> Float64s:
    generator = np.random.default_rng(seed)
    return np.where(generator.random(n) < hits, generator.choice(GAINS, n), 0.0)


def tail(n: int, lost: float = 0.0, won: float = 0.0, seed: int = 1, users: Int64s | None = None) -> Tail:
    """Return a tail whose challenger has lost a share of the champion's hits, and won the share of the misses."""
    champion, generator = gains_of(n, seed), np.random.default_rng(seed + 1000)
    challenger = np.where(generator.random(n) < lost, 0.0, champion)
    challenger = np.where((champion == 0) & (generator.random(n) < won), 0.5, challenger)
    return Tail(np.arange(n) if users is None else users, champion, challenger)


NOTHING = Tail(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def test_clustered_error_is_the_direct_sum_over_users() -> None:
    values, users = np.array([0.5, -0.2, 0.1, 0.0, 0.3, -0.4]), np.array([7, 7, 3, 3, 3, 9])
    mean, total = sum(values) / 6, 0.0
    for user in (7, 3, 9):
        total += sum(value - mean for value, other in zip(values, users, strict=True) if other == user) ** 2
    assert clustered_error(values, users) == pytest.approx((3 / 2 * total) ** 0.5 / 6, rel=1e-12)


def test_clustered_error_is_that_of_users_drawn_with_replacement() -> None:
    generator = np.random.default_rng(3)
    users = np.sort(generator.integers(0, 400, 1600))
    values = generator.normal(size=400)[users] + generator.normal(size=1600)  # targets of a user resemble each other
    counts, sums = np.bincount(users, minlength=400), np.bincount(users, values, minlength=400)
    drawn = generator.integers(0, 400, (4000, 400))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    assert clustered_error(values, users) == pytest.approx(means.std(), rel=0.05)
    assert clustered_error(values, users) > 1.5 * clustered_error(values, np.arange(1600))


def test_quantiles_are_those_of_the_tables_of_students_t() -> None:
    tables = {(0.95, 30): 1.6973, (0.975, 40): 2.0211, (0.99, 29): 2.4620, (0.99, 100): 2.3642, (0.99, 10**9): 2.3263}
    for (p, freedom), value in tables.items():
        assert student_quantile(p, freedom) == pytest.approx(value, abs=1e-4)


def test_bounds_are_the_formula_written_out() -> None:
    day = tail(900, lost=0.1, won=0.05, users=np.arange(900) % 300)
    pair, differences = paired_loss(day), day.challenger - day.champion
    error = clustered_error(differences, day.users)
    assert (pair.n_users, pair.n_targets) == (300, 900)
    assert pair.difference == pytest.approx(pair.challenger - pair.champion, abs=1e-12)
    assert pair.low == pytest.approx(differences.mean() - student_quantile(0.95, 299) * error, abs=1e-12)
    assert pair.high == pytest.approx(differences.mean() + student_quantile(0.99, 299) * error, abs=1e-12)
    assert pair.least == pytest.approx(student_quantile(0.975, 299) * error, abs=1e-12)
    assert pair.margin == pytest.approx(0.02 * day.champion.mean(), abs=1e-12)


@pytest.mark.parametrize(("n", "least"), [(1_000, 0.012), (6_000, 0.005)])
def test_smallest_visible_loss_with_a_standard_deviation_of_a_fifth(n: int, least: float) -> None:
    champion = np.full(n, 0.5)
    challenger = champion + 0.2 * np.where(np.arange(n) % 2, 1, -1)
    assert paired_loss(Tail(np.arange(n), champion, challenger)).least == pytest.approx(least, abs=5e-4)


def test_worse_is_refused_whatever_the_checks_say() -> None:
    for checks_passed in (True, False):
        found = judge(tail(2000, lost=0.3), checks_passed=checks_passed)
        assert (found.decision, found.is_taken, found.pooled) == ("refused", False, None)
        assert found.day.high < -found.day.margin
        assert f"{-found.day.difference:.4f}" in found.sentence
        assert "2,000 users" in found.sentence


def test_not_worse_is_blessed_whatever_the_checks_say() -> None:
    for checks_passed in (True, False):
        found = judge(tail(2000, won=0.1), checks_passed=checks_passed)
        assert (found.decision, found.is_taken, found.pooled) == ("blessed", True, None)
        assert found.day.low > -found.day.margin


@pytest.mark.parametrize("checks_passed", [True, False])
def test_unclear_day_is_taken_if_the_checks_have_passed(checks_passed: bool) -> None:
    found = judge(tail(200, lost=0.05, won=0.03), checks_passed=checks_passed)
    assert (found.decision, found.is_taken) == ("cannot tell", checks_passed)
    assert f"{found.day.least:.4f}" in found.sentence


def test_loss_that_no_day_shows_is_refused_by_the_days_together() -> None:
    days = [tail(300, lost=0.12, won=0.02, users=np.arange(300) + 300 * day) for day in range(10)]
    alone = [judge(day, checks_passed=True) for day in days]
    assert all(found.decision == "cannot tell" for found in alone)
    found = judge(days[-1], days[:-1], checks_passed=True)
    assert (found.decision, found.is_taken, found.n_days) == ("refused", False, 10)
    assert found.pooled is not None
    assert found.pooled.high < -found.pooled.margin
    assert found.day == alone[-1].day


def test_good_days_together_prove_nothing_of_this_challenger() -> None:
    good, day = [tail(5000, won=0.1, seed=seed) for seed in range(3)], tail(200, lost=0.05, won=0.03)
    found = judge(day, good, checks_passed=False)
    assert found.pooled is not None
    assert found.pooled.is_not_worse
    assert (found.decision, found.is_taken) == ("cannot tell", False)


def test_a_user_of_several_days_is_one_user_of_all_of_them() -> None:
    days = [tail(100, lost=0.05, seed=seed) for seed in range(4)]
    found = judge(days[-1], days[:-1], checks_passed=True).pooled
    joined = [np.concatenate([getattr(day, name) for day in days]) for name in ("users", "champion", "challenger")]
    assert found == paired_loss(Tail(*joined))
    assert found is not None
    assert (found.n_users, found.n_targets) == (100, 400)


def test_only_the_last_days_are_pooled_and_empty_ones_count_for_nothing() -> None:
    bad, day = tail(2000, lost=0.5), tail(200, lost=0.05, won=0.03)
    older = [bad, *[tail(200, lost=0.05, won=0.03, seed=seed) for seed in range(2, POOLED_DAYS + 1)]]
    found = judge(day, older, checks_passed=True)
    assert (found.decision, found.n_days) == ("cannot tell", POOLED_DAYS)
    assert judge(day, [NOTHING, NOTHING], checks_passed=True) == judge(day, checks_passed=True)


def test_no_users_and_few_users_cannot_tell() -> None:
    for day in (NOTHING, tail(1), tail(FEWEST_USERS - 1, lost=1.0), tail(FEWEST_USERS - 1, won=1.0)):
        found = judge(day, checks_passed=True)
        assert (found.decision, found.is_taken) == ("cannot tell", True)
        assert (found.day.low, found.day.high, found.day.least) == (-1, 1, 1)
    assert judge(tail(FEWEST_USERS, won=1.0), checks_passed=True).decision == "blessed"
    many_targets_of_few = tail(5000, lost=1.0, users=np.arange(5000) % 5)
    assert judge(many_targets_of_few, checks_passed=True).decision == "cannot tell"


def test_equal_gains_of_few_users_do_not_prove_that_models_are_equal() -> None:
    assert judge(tail(100), checks_passed=True).decision == "cannot tell"
    assert judge(tail(100_000), checks_passed=True).decision == "blessed"
    nothing_hit = Tail(np.arange(1000), np.zeros(1000), np.zeros(1000))
    assert judge(nothing_hit, checks_passed=True).decision == "cannot tell"


def test_figures_are_those_of_a_line_of_updates() -> None:
    day = tail(200, lost=0.05, won=0.03)
    found = judge(day, [tail(200, won=0.03, seed=5)], checks_passed=True)
    figures = found.figures()
    assert list(figures) == [
        "users", "champion", "challenger", "difference", "low", "high", "margin", "least", "pooled",
    ]  # fmt: skip
    assert {name: figures[name] for name in ("users", "low", "margin")} == {
        "users": 200, "low": found.day.low, "margin": found.day.margin,
    }  # fmt: skip
    assert list(figures["pooled"]) == ["days", "users", "difference", "low", "high", "margin"]
    assert figures["pooled"]["days"] == 2
    assert judge(NOTHING, checks_passed=True).figures() == {
        "users": 0, "low": -1.0, "high": 1.0, "margin": 0.0, "least": 1.0, "pooled": None,
    }  # fmt: skip


def test_tails_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        Tail(np.arange(3), np.zeros(2), np.zeros(2))
    for wrong in (np.nan, -0.1, 1.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Tail(np.arange(2), np.zeros(2), np.array([0.0, wrong]))


TAILS = st.builds(
    lambda n, n_users, seed, lost, won: tail(
        n, lost, won, seed, users=np.random.default_rng(seed).integers(0, n_users, n)
    ),
    st.integers(0, 400), st.integers(1, 300), st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(TAILS, st.floats(0, 0.3))
def test_a_challenger_is_never_both_and_order_does_not_matter(day: Tail, margin: float) -> None:
    pair = paired_loss(day, margin)
    assert not (pair.is_worse and pair.is_not_worse)
    assert pair.low <= pair.difference <= pair.high
    order = np.random.default_rng(1).permutation(len(day.users))
    mixed = paired_loss(Tail(day.users[order] + 17, day.champion[order], day.challenger[order]), margin)
    assert mixed.low == pytest.approx(pair.low, abs=1e-12)
    assert mixed.high == pytest.approx(pair.high, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(TAILS)
def test_exchanged_models_have_the_opposite_difference_and_the_same_certainty(day: Tail) -> None:
    pair, other = paired_loss(day), paired_loss(Tail(day.users, day.challenger, day.champion))
    assert other.difference == pytest.approx(-pair.difference, abs=1e-12)
    assert other.least == pytest.approx(pair.least, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(TAILS, st.floats(0, 0.2), st.floats(0, 0.2))
def test_a_larger_margin_refuses_no_more_and_blesses_no_less(day: Tail, margin: float, more: float) -> None:
    strict, mild = paired_loss(day, margin), paired_loss(day, margin + more)
    assert strict.is_worse or not mild.is_worse
    assert mild.is_not_worse or not strict.is_not_worse


def test_equal_models_are_refused_in_at_most_a_hundredth_of_nights() -> None:
    generator, first, second = np.random.default_rng(2), gains_of(4000, 1), gains_of(4000, 2)
    refused = 0
    for _ in range(1000):
        users = generator.integers(0, 4000, 500)
        swapped = generator.random(500) < 0.5
        champion = np.where(swapped, second[users], first[users])
        challenger = np.where(swapped, first[users], second[users])
        refused += paired_loss(Tail(np.arange(500), champion, challenger)).is_worse
    assert refused <= 15  # 10 are expected without a margin
