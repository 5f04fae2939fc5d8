"""Times between items, to the letter."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.feed.gaps import since_previous, until_next, while_asking

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
    assert since_previous(seconds, lengths).tolist() == [gap for one in histories for gap in [0, *between(one)]]
    assert until_next(seconds, lengths).tolist() == [gap for one in histories for gap in [*between(one), 0]]


@settings(deadline=None)
@given(TIMES)
def test_the_last_gap_is_that_to_the_instant_asked_for(histories: list[list[int]]) -> None:
    before = [history[:-1] or history for history in histories]
    at = torch.tensor([history[-1] for history in histories])
    seconds, lengths = ragged(before)
    asked = [[*history, time] for history, time in zip(before, at.tolist(), strict=True)]
    causal, instants = while_asking(seconds, lengths, at, is_causal=True)
    assert causal.tolist() == [gap for one in asked for gap in between(one)]
    masked, same = while_asking(seconds, lengths, at, is_causal=False)
    assert masked.tolist() == since_previous(*ragged(asked)).tolist()
    assert instants.tolist() == same.tolist() == at.tolist()


@settings(deadline=None)
@given(TIMES)
def test_where_no_instant_is_known_it_is_that_of_the_last_item(histories: list[list[int]]) -> None:
    seconds, lengths = ragged(histories)
    causal, instants = while_asking(seconds, lengths, None, is_causal=True)
    assert causal.tolist() == since_previous(seconds, lengths).tolist()
    masked, same = while_asking(seconds, lengths, None, is_causal=False)
    assert masked.tolist() == since_previous(*ragged([[*one, one[-1]] for one in histories])).tolist()
    assert instants.tolist() == same.tolist() == [one[-1] for one in histories]
