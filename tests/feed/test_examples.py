"""Examples of sequences: masked and shifted positions, and positions that ask."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch
from bert4rec.feed.inference import append_mask_batch, causal_batch
from bert4rec.feed.masking import Masking, Shifting, inference_time_deltas, time_deltas, until_next
from tests.feed.shown import rows_of, shown

N_ITEMS = 50
USUAL: dict[str, Any] = {
    "seed": 7, "n_items": N_ITEMS, "mask_prob": 0.3, "last_item_mask_prob": 0.2, "mask_token_share": 0.8,
    "random_token_share": 0.1,
}  # fmt: skip
ALL = {"mask_prob": 0.999, "last_item_mask_prob": 0.0}


def mask(
    sequences: list[list[int]], ids: list[int] | None = None, *, epoch: int = 3,
    seconds: list[list[int]] | None = None, **changes: Any,
) -> Batch:  # fmt: skip
    rows = rows_of(sequences) if seconds is None else rows_of(sequences, times=seconds)
    return Masking(**USUAL | changes)(rows, np.array(ids or range(len(sequences))), epoch)


def per_sequence(masked: Batch) -> list[tuple[Tensor, Tensor]]:
    """Return the input and the positions to predict of each sequence."""
    ends = masked.lengths.cumsum(0).tolist()
    return [
        (shown(masked)[a:b], masked.positions[(masked.positions >= a) & (masked.positions < b)] - a)
        for a, b in pairwise([0, *ends])
    ]


Sequences = st.lists(st.lists(st.integers(0, N_ITEMS - 1), min_size=1, max_size=20), min_size=1, max_size=8)


@given(Sequences, st.integers(0, 2**31), st.randoms())
@settings(max_examples=40, deadline=None)
def test_masks_do_not_depend_on_the_batch(sequences: list[list[int]], seed: int, random: Any) -> None:
    ids = list(range(100, 100 + len(sequences)))
    together = per_sequence(mask(sequences, ids, seed=seed))
    order = random.sample(range(len(ids)), len(ids))
    shuffled = per_sequence(mask([sequences[i] for i in order], [ids[i] for i in order], seed=seed))
    for place, i in enumerate(order):
        for found, expected in zip(shuffled[place], together[i], strict=True):
            assert torch.equal(found, expected)


@given(Sequences, st.integers(0, 2**62))
@settings(max_examples=40, deadline=None)
def test_every_sequence_has_a_position_to_predict_and_only_those_change(sequences: list[list[int]], seed: int) -> None:
    masked = mask(sequences, seed=seed)
    items = torch.tensor([item for sequence in sequences for item in sequence])
    assert torch.equal(masked.targets, items[masked.positions])
    assert torch.equal(masked.positions, masked.positions.sort().values)
    untouched = torch.ones(len(items), dtype=torch.bool)
    untouched[masked.positions] = False
    assert torch.equal(shown(masked)[untouched], items[untouched])
    assert all(len(positions) >= 1 for _, positions in per_sequence(masked))
    at_asked = shown(masked)[masked.positions]
    assert ((at_asked == NO_ITEM) | ((at_asked >= 0) & (at_asked < N_ITEMS))).all()


@pytest.mark.parametrize("change", [{"epoch": 4}, {"seed": 8}, {"ids": [6, 7, 8, 9, 10]}])
def test_another_epoch_seed_or_sequence_is_masked_otherwise(change: dict[str, Any]) -> None:
    sequences = [list(range(2, 42))] * 5
    assert not torch.equal(shown(mask(sequences)), shown(mask(sequences, **change)))


def test_shares_are_as_asked() -> None:
    sequences = [list(range(2, 42))] * 2000
    masked = mask(sequences)
    counts = torch.bincount(torch.repeat_interleave(masked.lengths)[masked.positions])
    assert abs((counts == 1).double().mean() - 0.2) < 0.03
    assert abs(counts[counts > 1].double().mean() / 40 - 0.3) < 0.01
    at_asked, targets = shown(masked)[masked.positions], masked.targets
    assert abs((at_asked == NO_ITEM).double().mean() - 0.8) < 0.02
    assert abs((at_asked == targets).double().mean() - 0.1) < 0.02
    random_items = at_asked[(at_asked != NO_ITEM) & (at_asked != targets)]
    assert set(random_items.tolist()) == set(range(N_ITEMS))


def test_only_the_last_item_is_masked_where_that_is_asked() -> None:
    masked = mask([[3, 4, 5], [6], [7, 8]], last_item_mask_prob=1.0, mask_token_share=0.0)
    assert shown(masked).tolist() == [3, 4, NO_ITEM, NO_ITEM, 7, NO_ITEM]
    assert (masked.positions.tolist(), masked.targets.tolist()) == ([2, 3, 5], [5, 6, 8])


def test_a_sequence_that_chance_left_whole_gets_one_mask_anywhere() -> None:
    masked = mask([list(range(2, 12))] * 500, mask_prob=1e-9, last_item_mask_prob=0.0)
    places = [positions.tolist() for _, positions in per_sequence(masked)]
    assert {len(place) for place in places} == {1}
    assert {place[0] for place in places} == set(range(10))


def test_the_masks_of_a_seed_and_epoch_stay_what_they_are() -> None:
    """A run that is resumed after an update of the program must meet the same masks."""
    masked = mask([list(range(2, 12)), [20, 21, 22]], [0, 12345])
    assert shown(masked).tolist() == [2, 3, 4, 5, 6, NO_ITEM, 8, 9, NO_ITEM, 11, 20, 21, 22]
    assert masked.positions.tolist() == [5, 8, 12]


@given(Sequences, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_times_do_not_tell_when_hidden_items_were_taken(sequences: list[list[int]], random: Any) -> None:
    seconds = [sorted(random.randrange(10**9) for _ in sequence) for sequence in sequences]
    batch = mask(sequences, times="history", seconds=seconds)
    asked = [{*positions.tolist()} for _, positions in per_sequence(batch)]
    elsewhere = [
        [random.randrange(10**9) if place in hidden else time for place, time in enumerate(times)]
        for times, hidden in zip(seconds, asked, strict=True)
    ]
    other = mask(sequences, times="history", seconds=elsewhere)
    assert batch.gaps.tolist() == other.gaps.tolist()
    assert (batch.gaps >= 0).all()
    shows_one = [len(hidden) < len(times) for times, hidden in zip(seconds, asked, strict=True) for _ in hidden]
    assert batch.instants[shows_one].tolist() == other.instants[shows_one].tolist()


@pytest.mark.parametrize(
    ("times", "settings", "gaps", "instants"),
    [
        ("target", ALL, [0, 3, 5, 0, 11], [1, 4, 9, 9, 20]),
        ("history", ALL, [0, 0, 0, 0, 0], [1, 1, 1, 9, 9]),
        ("history", {"last_item_mask_prob": 1.0}, [0, 3, 0, 0, 0], [4, 9]),
    ],
)
def test_gaps_are_between_the_items_whose_times_are_known(
    times: str, settings: dict[str, Any], gaps: list[int], instants: list[int]
) -> None:
    sequences = [[2, 3, 4], [5, 6]]
    batch = mask(sequences, times=times, seconds=[[1, 4, 9], [9, 20]], **settings)
    assert (batch.gaps.tolist(), batch.instants.tolist()) == (gaps, instants)
    assert mask(sequences).gaps is mask(sequences).instants is None


@settings(deadline=None)
@given(Sequences)
def test_every_pair_of_neighbours_is_there_once(sequences: list[list[int]]) -> None:
    batch = Shifting()(rows_of(sequences), np.arange(len(sequences)), 0)
    assert batch.positions.tolist() == list(range(len(batch.places)))
    pairs = [pair for pair in zip(shown(batch).tolist(), batch.targets.tolist(), strict=True) if pair[1] != NO_ITEM]
    assert pairs == [pair for sequence in sequences for pair in pairwise(sequence)]
    assert batch.lengths.tolist() == [max(1, len(sequence) - 1) for sequence in sequences]
    assert batch.gaps is batch.instants is None


@pytest.mark.parametrize(
    ("times", "gaps", "instants"),
    [("history", [0, 5, 0, 0], [10, 15, 50, 60]), ("target", [5, 20, 0, 1], [15, 35, 50, 61])],
)
def test_times_are_those_that_are_known_when_the_next_item_is_asked(
    times: str, gaps: list[int], instants: list[int]
) -> None:
    rows = rows_of([[2, 3, 4], [5], [6, 7]], times=[[10, 15, 35], [50], [60, 61]])
    batch = Shifting(times)(rows, np.arange(3), 0)
    assert (batch.gaps.tolist(), batch.instants.tolist()) == (gaps, instants)
    assert batch.targets.tolist() == [3, 4, NO_ITEM, 7]


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
