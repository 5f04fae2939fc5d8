"""Keyed random numbers: negatives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.feed import negatives
from bert4rec.feed.negatives import NegativeSampler

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
