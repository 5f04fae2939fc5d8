"""The busiest process's lookups over the mean, as written-out arithmetic and as drawn."""

import numpy as np
import pytest

from bert4rec.sharding.memory_check import load_imbalance
from tests.sharding.make_job import make_job

FEW = {"batch_size": 1, "max_len": 2}


def test_two_processes_by_hand() -> None:
    """Of two draws an item with p = 3/4 is there with 1 - 1/16, one with p = 1/4 with 1 - 9/16.

    Of six rows the first process has those of padding and the mask token, and of the first item.
    """
    job = make_job(4, 2, **FEW)
    there, seldom = 15 / 16, 7 / 16
    assert load_imbalance(job, np.array([3, 0, 0, 1])) == pytest.approx(there / ((there + seldom) / 2))
    assert load_imbalance(job, np.array([0, 1, 1, 1])) == 2.0


def test_negatives_and_even_items_are_an_even_load() -> None:
    """One target and two negatives, beside the two positions."""
    job = make_job(4, 2, **FEW, loss="gbce", n_train_negatives=2, mask_prob=0.1)
    assert job.n_targets == 2
    first, second = 2 * 15 / 16 + 1, 2 * 7 / 16 + 1
    assert load_imbalance(job, np.array([3, 0, 0, 1])) == pytest.approx(first / ((first + second) / 2))
    assert load_imbalance(make_job(6, 2), np.array([1, 1, 1, 1, 0, 0])) == pytest.approx(1.0)
    assert load_imbalance(make_job(6, 2), np.zeros(6, int)) == load_imbalance(make_job(6, 1), np.arange(6)) == 1.0
