"""Histories that ask for the next item, to the letter."""

from dataclasses import replace

import numpy as np

from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import MASK_ID
from bert4rec.feed.inference import as_they_are, with_mask
from tests.feed.shown import shown

ROWS = Rows(np.array([2, 3, 4, 5, 6, 7], np.int32), np.array([4, 1, 1]), np.array([8, 9, 10], np.int32))


def test_the_last_items_and_the_mask_behind_them() -> None:
    batch = with_mask(ROWS, max_len=3)
    assert shown(batch).tolist() == [4, 5, MASK_ID, 6, MASK_ID, 7, MASK_ID]
    assert batch.lengths.tolist() == [3, 2, 2]
    assert batch.positions.tolist() == [2, 4, 6]
    assert batch.targets.tolist() == [8, 9, 10]


def test_the_last_items_alone() -> None:
    batch = as_they_are(ROWS, max_len=3)
    assert shown(batch).tolist() == [4, 5, 6, 7]
    assert batch.lengths.tolist() == [2, 1, 1]
    assert batch.positions.tolist() == [1, 2, 3]
    assert batch.targets.tolist() == [8, 9, 10]


def test_histories_without_targets_have_zeros() -> None:
    rows = Rows(ROWS.items, ROWS.lengths)
    assert with_mask(rows, max_len=3).targets.tolist() == as_they_are(rows, max_len=3).targets.tolist() == [0, 0, 0]


def test_times_of_what_is_left_of_histories_and_of_what_is_asked() -> None:
    times = np.array([1, 5, 20, 22, 30, 40])
    rows = replace(ROWS, times=times, target_times=np.array([29, 31, 40]))
    expected = {
        "history": ([0, 2, 0, 0], [0, 2, 0, 0, 0, 0, 0], [22, 30, 40]),
        "target": ([2, 7, 1, 0], [0, 2, 7, 0, 1, 0, 0], [29, 31, 40]),
    }
    for known, (causal, masked, instants) in expected.items():
        for batch, gaps in ((as_they_are(rows, 3, known), causal), (with_mask(rows, 3, known), masked)):
            assert batch.gaps is not None
            assert batch.gaps.tolist() == gaps
            assert batch.instants is not None
            assert batch.instants.tolist() == instants
    assert as_they_are(ROWS, 3).gaps is with_mask(ROWS, 3).gaps is None
