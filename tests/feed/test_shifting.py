"""What comes next, to the letter."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.schema import PAD_ID
from bert4rec.feed.batch import Batch
from bert4rec.feed.shifting import Shifting
from tests.feed.shown import shown

SEQUENCES = st.lists(st.lists(st.integers(2, 50), min_size=1, max_size=9), min_size=1, max_size=9)


def shift(sequences: list[list[int]], times: str = "none", seconds: list[int] | None = None) -> Batch:
    items = torch.tensor([item for sequence in sequences for item in sequence])
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    taken = None if seconds is None else torch.tensor(seconds)
    return Shifting(times)(items, lengths, torch.arange(len(sequences)), 0, taken)


def test_each_position_has_the_next_item_as_its_target() -> None:
    batch = shift([[2, 3, 4], [5], [6, 7]])
    assert shown(batch).tolist() == [2, 3, 5, 6]
    assert batch.lengths.tolist() == [2, 1, 1]
    assert batch.positions.tolist() == [0, 1, 2, 3]
    assert batch.targets.tolist() == [3, 4, PAD_ID, 7]


@settings(deadline=None)
@given(SEQUENCES)
def test_every_pair_of_neighbours_is_there_once(sequences: list[list[int]]) -> None:
    batch = shift(sequences)
    pairs = [pair for pair in zip(shown(batch).tolist(), batch.targets.tolist(), strict=True) if pair[1] != PAD_ID]
    assert pairs == [pair for sequence in sequences for pair in pairwise(sequence)]
    assert batch.lengths.tolist() == [max(1, len(sequence) - 1) for sequence in sequences]


def test_times_are_those_that_are_known_when_the_next_item_is_asked() -> None:
    sequences, seconds = [[2, 3, 4], [5], [6, 7]], [10, 15, 35, 50, 60, 61]
    assert shift(sequences).gaps is shift(sequences).instants is None
    for times, gaps, instants in (
        ("history", [0, 5, 0, 0], [10, 15, 50, 60]),
        ("target", [5, 20, 0, 1], [15, 35, 50, 61]),
    ):
        batch = shift(sequences, times, seconds)
        assert batch.gaps is not None
        assert batch.gaps.tolist() == gaps
        assert batch.instants is not None
        assert batch.instants.tolist() == instants
