"""Negatives: how often each item comes, what is said of it, and that nothing else decides."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.feed import negatives
from bert4rec.feed.negatives import NegativeSampler

COUNTS = np.array([5, 0, 1, 30, 4, 0, 9, 16], np.int32)


def expected_shares(power: float) -> np.ndarray:
    weights = np.maximum(COUNTS, 1) ** power
    return weights / weights.sum()


@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("block", [1, 3, 128])
def test_items_come_as_often_as_their_weight_says(monkeypatch: pytest.MonkeyPatch, power: float, block: int) -> None:
    monkeypatch.setattr(negatives, "BLOCK", block)
    monkeypatch.setattr(negatives, "SLAB", 2 * block)
    sampler = NegativeSampler(n_items=8, n=200_000, power=power, seed=1, popularity=COUNTS)
    drawn = sampler.draw(0)
    items = drawn.ids.numpy() - FIRST_ITEM_ID
    shares = np.bincount(items, minlength=8) / len(items)
    np.testing.assert_allclose(shares, expected_shares(power), atol=5 * 0.5 / np.sqrt(len(items)))
    np.testing.assert_allclose(drawn.log_expected, np.log(200_000 * expected_shares(power))[items], rtol=1e-5)


def test_uniform_draws_have_no_repeats_and_reach_all_alike() -> None:
    sampler = NegativeSampler(n_items=8, n=3, power=0.0, seed=1)
    steps = [sampler.draw(step) for step in range(8000)]
    assert all(len(set(drawn.ids.tolist())) == 3 for drawn in steps)
    counts = np.bincount(torch.cat([drawn.ids for drawn in steps]).numpy() - FIRST_ITEM_ID, minlength=8)
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
    assert first.ids.min() >= FIRST_ITEM_ID
    assert first.ids.max() < FIRST_ITEM_ID + len(counts)
    assert first.log_expected.isfinite().all()
    assert first.ids.dtype == torch.int64
    assert first.log_expected.dtype == torch.float32


def test_steps_and_seeds_draw_others() -> None:
    draws = [
        tuple(NegativeSampler(n_items=10**6, n=16, power=0.0, seed=seed).draw(step).ids.tolist())
        for seed in (1, 2)
        for step in (0, 1)
    ]
    assert len(set(draws)) == 4
