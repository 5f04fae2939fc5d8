"""Inference batches and gaps of time."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.inference import append_mask_batch, causal_batch
from bert4rec.feed.masking import inference_time_deltas, time_deltas, until_next
from tests.feed.shown import shown

ROWS = Rows(np.array([2, 3, 4, 5, 6, 7], np.int32), np.array([4, 1, 1]), np.array([8, 9, 10], np.int32))


def test_the_last_items_and_the_mask_behind_them() -> None:
    batch = append_mask_batch(ROWS, max_len=3)
    assert shown(batch).tolist() == [4, 5, NO_ITEM, 6, NO_ITEM, 7, NO_ITEM]
    assert batch.lengths.tolist() == [3, 2, 2]
    assert batch.positions.tolist() == [2, 4, 6]
    assert batch.targets.tolist() == [8, 9, 10]


def test_the_last_items_alone() -> None:
    batch = causal_batch(ROWS, max_len=3)
    assert shown(batch).tolist() == [4, 5, 6, 7]
    assert batch.lengths.tolist() == [2, 1, 1]
    assert batch.positions.tolist() == [1, 2, 3]
    assert batch.targets.tolist() == [8, 9, 10]


def test_histories_without_targets_have_zeros() -> None:
    rows = Rows(ROWS.items, ROWS.lengths)
    assert (
        append_mask_batch(rows, max_len=3).targets.tolist()
        == causal_batch(rows, max_len=3).targets.tolist()
        == [0, 0, 0]
    )


def test_times_of_what_is_left_of_histories_and_of_what_is_asked() -> None:
    times = np.array([1, 5, 20, 22, 30, 40])
    rows = replace(ROWS, times=times, target_times=np.array([29, 31, 40]))
    expected = {
        "history": ([0, 2, 0, 0], [0, 2, 0, 0, 0, 0, 0], [22, 30, 40]),
        "target": ([2, 7, 1, 0], [0, 2, 7, 0, 1, 0, 0], [29, 31, 40]),
    }
    for known, (causal, masked, instants) in expected.items():
        for batch, gaps in ((causal_batch(rows, 3, known), causal), (append_mask_batch(rows, 3, known), masked)):
            assert batch.gaps.tolist() == gaps
            assert batch.instants.tolist() == instants
    assert causal_batch(ROWS, 3).gaps is append_mask_batch(ROWS, 3).gaps is None


TIMES = st.lists(st.lists(st.integers(0, 10**10), min_size=1, max_size=6).map(sorted), min_size=1, max_size=6)


def ragged(histories: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    seconds = torch.tensor([time for history in histories for time in history], dtype=torch.int64)
    return seconds, torch.tensor([len(history) for history in histories])


def between(history: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(history)]


@settings(deadline=None)
@given(TIMES)
def test_gaps_lie_within_sequences(histories: list[list[int]]) -> None:
    seconds, lengths = ragged(histories)
    assert time_deltas(seconds, lengths).tolist() == [gap for one in histories for gap in [0, *between(one)]]
    assert until_next(seconds, lengths).tolist() == [gap for one in histories for gap in [*between(one), 0]]


@settings(deadline=None)
@given(TIMES)
def test_the_last_gap_is_that_to_the_instant_asked_for(histories: list[list[int]]) -> None:
    before = [history[:-1] or history for history in histories]
    at = torch.tensor([history[-1] for history in histories])
    seconds, lengths = ragged(before)
    asked = [[*history, time] for history, time in zip(before, at.tolist(), strict=True)]
    causal, instants = inference_time_deltas(seconds, lengths, at, is_causal=True)
    assert causal.tolist() == [gap for one in asked for gap in between(one)]
    masked, same = inference_time_deltas(seconds, lengths, at, is_causal=False)
    assert masked.tolist() == time_deltas(*ragged(asked)).tolist()
    assert instants.tolist() == same.tolist() == at.tolist()


@settings(deadline=None)
@given(TIMES)
def test_where_no_instant_is_known_it_is_that_of_the_last_item(histories: list[list[int]]) -> None:
    seconds, lengths = ragged(histories)
    causal, instants = inference_time_deltas(seconds, lengths, None, is_causal=True)
    assert causal.tolist() == time_deltas(seconds, lengths).tolist()
    masked, same = inference_time_deltas(seconds, lengths, None, is_causal=False)
    assert masked.tolist() == time_deltas(*ragged([[*one, one[-1]] for one in histories])).tolist()
    assert instants.tolist() == same.tolist() == [one[-1] for one in histories]
