"""Training examples of sequences: masked and shifted positions."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch
from bert4rec.feed.masking import Masking, Shifting
from tests.feed.shown import shown

N_ITEMS = 50
USUAL: dict[str, Any] = {
    "epoch": 3,
    "seed": 7,
    "n_items": N_ITEMS,
    "mask_prob": 0.3,
    "last_item_mask_prob": 0.2,
    "mask_token_share": 0.8,
    "random_token_share": 0.1,
}


def mask(sequences: list[list[int]], ids: list[int], **changes: Any) -> Batch:
    items = torch.tensor([item for sequence in sequences for item in sequence])
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    settings = USUAL | changes
    epoch, seconds = settings.pop("epoch"), settings.pop("seconds", None)
    return Masking(**settings)(items, lengths, torch.tensor(ids), epoch, seconds)


def per_sequence(sequences: list[list[int]], masked: Batch) -> list[tuple[Tensor, Tensor]]:
    """For each sequence, what is shown and which of its positions are asked."""
    ends = torch.tensor([len(sequence) for sequence in sequences]).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    return [
        (shown(masked)[a:b], masked.positions[(masked.positions >= a) & (masked.positions < b)] - a)
        for a, b in zip(starts, ends, strict=True)
    ]


Sequences = st.lists(st.lists(st.integers(0, N_ITEMS - 1), min_size=1, max_size=20), min_size=1, max_size=8)


@given(Sequences, st.integers(0, 2**31), st.randoms())
@settings(max_examples=60, deadline=None)
def test_masks_do_not_depend_on_the_batch(sequences: list[list[int]], seed: int, random: Any) -> None:
    ids = list(range(100, 100 + len(sequences)))
    together = per_sequence(sequences, mask(sequences, ids, seed=seed))
    order = random.sample(range(len(ids)), len(ids))
    moved = [sequences[i] for i in order]
    shuffled = per_sequence(moved, mask(moved, [ids[i] for i in order], seed=seed))
    for place, i in enumerate(order):
        for found, expected in zip(shuffled[place], together[i], strict=True):
            assert torch.equal(found, expected)
        alone = per_sequence([sequences[i]], mask([sequences[i]], [ids[i]], seed=seed))[0]
        assert torch.equal(alone[0], together[i][0])


@given(Sequences, st.integers(0, 2**62))
@settings(max_examples=60, deadline=None)
def test_every_sequence_has_a_position_to_predict_and_only_those_change(sequences: list[list[int]], seed: int) -> None:
    masked = mask(sequences, list(range(len(sequences))), seed=seed)
    items = torch.tensor([item for sequence in sequences for item in sequence])
    assert torch.equal(masked.targets, items[masked.positions])
    assert torch.equal(masked.positions, masked.positions.sort().values)
    untouched = torch.ones(len(items), dtype=torch.bool)
    untouched[masked.positions] = False
    assert torch.equal(shown(masked)[untouched], items[untouched])
    assert all(len(positions) >= 1 for _, positions in per_sequence(sequences, masked))
    at_asked = shown(masked)[masked.positions]
    assert ((at_asked == NO_ITEM) | ((at_asked >= 0) & (at_asked < N_ITEMS))).all()


@pytest.mark.parametrize("change", [{"epoch": 4}, {"seed": 8}])
def test_another_epoch_or_seed_masks_otherwise(change: dict[str, int]) -> None:
    sequences = [list(range(2, 42))] * 5
    assert not torch.equal(shown(mask(sequences, [1, 2, 3, 4, 5])), shown(mask(sequences, [1, 2, 3, 4, 5], **change)))


def test_equal_sequences_are_masked_differently() -> None:
    (first, _), (second, _) = per_sequence([[5] * 40] * 2, mask([[5] * 40] * 2, [1, 2]))
    assert not torch.equal(first, second)


def test_shares_are_as_asked() -> None:
    sequences = [list(range(2, 42))] * 2000
    masked = mask(sequences, list(range(2000)))
    counts = torch.tensor([len(positions) for _, positions in per_sequence(sequences, masked)])
    assert abs((counts == 1).double().mean() - 0.2) < 0.03
    assert abs(counts[counts > 1].double().mean() / 40 - 0.3) < 0.01
    at_asked, targets = shown(masked)[masked.positions], masked.targets
    assert abs((at_asked == NO_ITEM).double().mean() - 0.8) < 0.02
    assert abs((at_asked == targets).double().mean() - 0.1) < 0.02
    random_items = at_asked[(at_asked != NO_ITEM) & (at_asked != targets)]
    assert set(random_items.tolist()) == set(range(N_ITEMS))


def test_only_the_last_item_is_masked_where_that_is_asked() -> None:
    sequences = [[3, 4, 5], [6], [7, 8]]
    masked = mask(sequences, [1, 2, 3], last_item_mask_prob=1.0, mask_token_share=0.0)
    assert shown(masked).tolist() == [3, 4, NO_ITEM, NO_ITEM, 7, NO_ITEM]
    assert masked.positions.tolist() == [2, 3, 5]
    assert masked.targets.tolist() == [5, 6, 8]


def test_a_sequence_that_chance_left_whole_gets_one_mask_anywhere() -> None:
    sequences = [list(range(2, 12))] * 500
    masked = mask(sequences, list(range(500)), mask_prob=1e-9, last_item_mask_prob=0.0)
    places = [positions.tolist() for _, positions in per_sequence(sequences, masked)]
    assert all(len(place) == 1 for place in places)
    assert {place[0] for place in places} == set(range(10))


def test_the_masks_of_a_seed_and_epoch_stay_what_they_are() -> None:
    """A run that is resumed after an update of the program must meet the same masks."""
    masked = mask([list(range(2, 12)), [20, 21, 22]], [0, 12345])
    assert shown(masked).tolist() == [2, 3, 4, 5, 6, NO_ITEM, 8, 9, NO_ITEM, 11, 20, 21, 22]
    assert masked.positions.tolist() == [5, 8, 12]


@given(Sequences, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_times_do_not_tell_when_hidden_items_were_taken(sequences: list[list[int]], random: Any) -> None:
    ids, n = list(range(len(sequences))), sum(map(len, sequences))
    seconds = torch.tensor([random.randrange(10**9) for _ in range(n)])
    whole = torch.cat([part.sort().values for part in seconds.split([len(sequence) for sequence in sequences])])
    batch = mask(sequences, ids, times="history", seconds=whole)
    is_hidden = torch.zeros(n, dtype=torch.bool)
    is_hidden[batch.positions] = True
    elsewhere = torch.where(is_hidden, torch.tensor([random.randrange(10**9) for _ in range(n)]), whole)
    other = mask(sequences, ids, times="history", seconds=elsewhere)
    assert batch.gaps.tolist() == other.gaps.tolist()
    assert (batch.gaps >= 0).all()
    shows_one = torch.repeat_interleave(
        torch.stack([~part.all() for part in is_hidden.split(batch.lengths.tolist())]), batch.lengths
    )[batch.positions]
    assert batch.instants[shows_one].tolist() == other.instants[shows_one].tolist()


def test_gaps_are_those_between_all_items_where_the_instant_of_the_target_is_known() -> None:
    seconds = torch.tensor([1, 4, 9, 9, 20])
    for known, expected in (("target", [0, 3, 5, 0, 11]), ("history", [0, 0, 0, 0, 0])):
        batch = mask(
            [[2, 3, 4], [5, 6]], [0, 1], times=known, seconds=seconds, mask_prob=0.999, last_item_mask_prob=0.0
        )
        assert batch.gaps.tolist() == expected
        assert batch.instants.tolist() == {"target": [1, 4, 9, 9, 20], "history": [1, 1, 1, 9, 9]}[known]
    assert mask([[2, 3]], [0]).gaps is mask([[2, 3]], [0]).instants is None


def test_a_gap_is_since_the_last_item_that_is_shown() -> None:
    seconds = torch.tensor([1, 4, 9, 30])
    batch = mask([[2, 3, 4, 5]], [0], times="history", seconds=seconds, last_item_mask_prob=1.0)
    assert batch.positions.tolist() == [3]
    assert batch.gaps.tolist() == [0, 3, 5, 0]
    assert batch.instants.tolist() == [9]


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
    assert batch.targets.tolist() == [3, 4, NO_ITEM, 7]


@settings(deadline=None)
@given(SEQUENCES)
def test_every_pair_of_neighbours_is_there_once(sequences: list[list[int]]) -> None:
    batch = shift(sequences)
    pairs = [pair for pair in zip(shown(batch).tolist(), batch.targets.tolist(), strict=True) if pair[1] != NO_ITEM]
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
        assert batch.gaps.tolist() == gaps
        assert batch.instants.tolist() == instants
