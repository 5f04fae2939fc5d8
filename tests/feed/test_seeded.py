"""Keyed random numbers: hashes, permutations, negatives."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.feed import negatives
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.runtime.seeded import Permutation, splitmix64
from tests.conftest import long


def test_the_hash_is_splitmix64() -> None:
    """The first outputs of splitmix64 seeded with 1234567, as in Rosetta Code's and Java's test vectors."""
    outputs = splitmix64(np.array([1234567], np.uint64), np.arange(3, dtype=np.uint64))
    assert outputs.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


SIX_SIGMA = 6.0  # the seeds are fixed, so that this either holds always or never


def whole(n: int, *key: int) -> np.ndarray:
    return Permutation(n, key).at(np.arange(n))


def deviation(found: np.ndarray, expected: float, freedom: int) -> float:
    """How many standard deviations chi-square lies from its mean."""
    return (((found - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


@given(
    n=st.one_of(st.integers(1, 300), st.integers(1, 20_000)), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 99)
)
@settings(max_examples=150, deadline=None)
def test_everything_comes_once(n: int, seed: int, epoch: int) -> None:
    assert np.bincount(whole(n, seed, epoch), minlength=n).tolist() == [1] * n


@given(n=st.integers(1, 2**40), seed=st.integers(0, 2**32 - 1), first=st.integers(0, 2**40), size=st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_a_part_of_a_huge_one_is_computed_alone(n: int, seed: int, first: int, size: int) -> None:
    positions = np.arange(first % n, min(first % n + size, n))
    found = Permutation(n, (seed, 0)).at(positions).tolist()
    assert len(set(found)) == len(positions)
    assert all(0 <= value < n for value in found)
    assert found[:3] == [Permutation(n, (seed, 0)).at(positions[i : i + 1])[0] for i in range(min(3, len(positions)))]


def test_the_order_of_a_seed_and_epoch_is_its_own_and_stays_what_it_is() -> None:
    """A run that is resumed after an update of the program must meet the same order."""
    assert whole(10, 1, 0).tolist() == [3, 6, 7, 2, 4, 9, 5, 8, 0, 1]
    assert len({tuple(whole(50, seed, epoch)) for seed in range(5) for epoch in range(5)}) == 25


@pytest.mark.parametrize("n", [long(2), 3, long(4), 5])
def test_all_orders_of_a_few_are_equally_frequent(n: int) -> None:
    n_keys = 4000
    orders = Counter(tuple(whole(n, seed, 0).tolist()) for seed in range(n_keys))
    found = np.array([orders[order] for order in itertools.permutations(range(n))])
    assert abs(deviation(found, n_keys / len(found), len(found) - 1)) < SIX_SIGMA


@pytest.mark.parametrize("n", [1000, 1024, 99_991])
@pytest.mark.parametrize("apart", [1, 2, 31, 32])
def test_neighbours_know_nothing_of_each_other(n: int, apart: int) -> None:
    order = whole(n, 3, 1) / n
    assert abs(np.corrcoef(order[:-apart], order[apart:])[0, 1]) * math.sqrt(n) < SIX_SIGMA
    steps = np.histogram((order[apart:] - order[:-apart]) % 1, 20)[0]
    assert abs(deviation(steps, len(order[apart:]) / 20, 19)) < SIX_SIGMA


COUNTS = np.array([5, 0, 1, 30, 4, 0, 9, 16], np.int32)


@pytest.mark.parametrize(("power", "block"), [(0.5, 1), (1.0, 3), (0.5, 128)])
def test_items_come_as_often_as_their_weight_says(monkeypatch: pytest.MonkeyPatch, power: float, block: int) -> None:
    monkeypatch.setattr(negatives, "BLOCK", block)
    monkeypatch.setattr(negatives, "SLAB", 2 * block)
    drawn = NegativeSampler(n_items=8, n=50_000, power=power, seed=1, popularity=COUNTS).draw(0)
    items, weights = drawn.ids.numpy(), np.maximum(COUNTS, 1) ** power
    shares, expected = np.bincount(items, minlength=8) / len(items), weights / weights.sum()
    np.testing.assert_allclose(shares, expected, atol=5 * 0.5 / np.sqrt(len(items)))
    np.testing.assert_allclose(drawn.log_expected, np.log(50_000 * expected)[items], rtol=1e-5)


def test_uniform_draws_have_no_repeats_and_reach_all_alike() -> None:
    sampler = NegativeSampler(n_items=8, n=3, power=0.0, seed=1)
    steps = [sampler.draw(step) for step in range(8000)]
    assert all(len(set(drawn.ids.tolist())) == 3 for drawn in steps)
    counts = np.bincount(torch.cat([drawn.ids for drawn in steps]).numpy(), minlength=8)
    np.testing.assert_allclose(counts / 8000, 3 / 8, atol=5 * 0.5 / np.sqrt(8000))
    np.testing.assert_allclose(steps[0].log_expected, np.log(3 / 8), rtol=1e-6)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=400),
    power=st.sampled_from([0.0, 0.3, 0.75, 1.0]),
    step=st.integers(0, 10**6),
)
def test_ids_are_in_range_and_a_step_always_draws_alike(counts: list[int], power: float, step: int) -> None:
    settings = {"n_items": len(counts), "n": 1 + len(counts) // 2, "power": power, "seed": 7}
    popularity = np.array(counts, np.int32)
    first, second = (NegativeSampler(**settings, popularity=popularity).draw(step) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert ((first.ids >= 0) & (first.ids < len(counts))).all()
    assert first.log_expected.isfinite().all()
    assert (first.ids.dtype, first.log_expected.dtype) == (torch.int64, torch.float32)


KEYS = [(1, 0), (2, 0), (1, 8)]


def test_steps_seeds_and_groups_draw_others() -> None:
    samplers = [NegativeSampler(n_items=10**6, n=16, power=0.0, seed=seed, group=group) for seed, group in KEYS]
    assert len({tuple(sampler.draw(step).ids.tolist()) for sampler in samplers for step in (0, 1)}) == 6
