"""Keyed random numbers: hashes and permutations."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@given(n=st.integers(1, 300) | st.integers(1, 2**40), seed=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=100, deadline=None)
def test_the_place_of_each_value_is_computed(n: int, seed: int, data: st.DataObject) -> None:
    numbers, order = (
        np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64),
        Permutation(n, (seed,)),
    )
    assert order.places(order.at(numbers)).tolist() == order.at(order.places(numbers)).tolist() == numbers.tolist()


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
