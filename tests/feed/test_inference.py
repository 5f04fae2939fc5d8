"""Inference batches and gaps of time."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch
from bert4rec.feed.inference import append_mask_batch, causal_batch
from bert4rec.feed.masking import inference_time_deltas, time_deltas, until_next
from tests.feed.shown import rows_of, shown

ROWS = replace(rows_of([[2, 3, 4, 5], [6], [7]]), targets=np.array([8, 9, 10], np.int32))


@pytest.mark.parametrize(
    ("make", "items", "lengths", "positions"),
    [
        (append_mask_batch, [4, 5, NO_ITEM, 6, NO_ITEM, 7, NO_ITEM], [3, 2, 2], [2, 4, 6]),
        (causal_batch, [4, 5, 6, 7], [2, 1, 1], [1, 2, 3]),
    ],
)
def test_the_last_items_and_the_position_that_asks(
    make: Callable[..., Batch], items: list[int], lengths: list[int], positions: list[int]
) -> None:
    for rows, targets in ((ROWS, [8, 9, 10]), (replace(ROWS, targets=None), [0, 0, 0])):
        batch = make(rows, max_len=3)
        assert (shown(batch).tolist(), batch.lengths.tolist()) == (items, lengths)
        assert (batch.positions.tolist(), batch.targets.tolist()) == (positions, targets)
        assert batch.gaps is None


def test_times_of_what_is_left_of_histories_and_of_what_is_asked() -> None:
    times = np.array([1, 5, 20, 22, 30, 40])
    rows = replace(ROWS, times=times, target_times=np.array([29, 31, 40]))
    expected = {
        "history": ([0, 2, 0, 0], [0, 2, 0, 0, 0, 0, 0], [22, 30, 40]),
        "target": ([2, 7, 1, 0], [0, 2, 7, 0, 1, 0, 0], [29, 31, 40]),
    }
    for known, (causal, masked, instants) in expected.items():
        for batch, gaps in ((causal_batch(rows, 3, known), causal), (append_mask_batch(rows, 3, known), masked)):
            assert (batch.gaps.tolist(), batch.instants.tolist()) == (gaps, instants)


TIMES = st.lists(st.lists(st.integers(0, 10**10), min_size=1, max_size=6).map(sorted), min_size=1, max_size=6)


def ragged(histories: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    seconds = torch.tensor([time for history in histories for time in history], dtype=torch.int64)
    return seconds, torch.tensor([len(history) for history in histories])


def between(history: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(history)]


@settings(deadline=None)
@given(TIMES)
def test_gaps_lie_within_sequences_and_the_last_one_is_that_to_the_instant_asked_for(
    histories: list[list[int]],
) -> None:
    since, until = (gaps(*ragged(histories)).tolist() for gaps in (time_deltas, until_next))
    assert since == [gap for one in histories for gap in [0, *between(one)]]
    assert until == [gap for one in histories for gap in [*between(one), 0]]
    before = [history[:-1] or history for history in histories]
    for at in ([history[-1] for history in histories], None):
        last = at or [history[-1] for history in before]
        asked = [[*history, time] for history, time in zip(before, last, strict=True)]
        instant = None if at is None else torch.tensor(at)
        causal, instants = inference_time_deltas(*ragged(before), instant, is_causal=True)
        gaps = [gap for one in asked for gap in between(one)]
        assert causal.tolist() == (gaps if at else time_deltas(*ragged(before)).tolist())
        masked, same = inference_time_deltas(*ragged(before), instant, is_causal=False)
        assert masked.tolist() == time_deltas(*ragged(asked)).tolist()
        assert instants.tolist() == same.tolist() == last
