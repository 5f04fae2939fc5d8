"""Batches in which the events shortly before a target are no input for its prediction."""

from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.feed.batch import Batch
from bert4rec.feed.masking import Masking, Shifting
from bert4rec.models.sequence_model import SASRec
from tests.models.networks import hidden_of, model

VIEW, BUY = 1, 2
WEIGHTS = [0.0, 0.0, 1.0]
MINUTE = 60


def sequences(seed: int, n: int = 30) -> list[list[tuple[int, int, int]]]:
    """Each a list of (item, seconds, kind), ascending in time, with equal times and pauses."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        length = int(draw.integers(1, 12))
        times = draw.choice([0, 20, 400, 4000, 90_000], length).cumsum()
        kinds = draw.choice([0, VIEW, BUY], length, p=[0.1, 0.5, 0.4])
        made.append([*zip(draw.integers(0, 30, length).tolist(), times.tolist(), kinds.tolist(), strict=True)])
    return made


def n_visible(row: list[tuple[int, int, int]], at: int, before: int | str) -> int:
    """Return how many first events are input when the one `at` is predicted, one after another."""
    time, start = row[at][1], at
    if before == "last_target":
        bought = [place for place in range(at) if row[place][2] == BUY and row[place][1] < time]
        return bought[-1] + 1 if bought else 0
    while start and (
        row[start][1] - row[start - 1][1] <= 30 * MINUTE
        if before == "visit"
        else time - row[start - 1][1] <= int(before) * MINUTE
    ):
        start -= 1
    return start


def tensors(rows: list[list[tuple[int, int, int]]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    flat = torch.tensor([event for row in rows for event in row])
    return flat[:, 0].clone(), torch.tensor([*map(len, rows)]), flat[:, 1].clone(), flat[:, 2].clone()


BEFORE = pytest.mark.parametrize("before", ["visit", "last_target", 5, 60])


@BEFORE
def test_the_input_ends_where_a_reference_in_plain_python_ends_it(before: int | str) -> None:
    rows = sequences(1)
    _, lengths, times, events = tensors(rows)
    found = HiddenEvents(before, [BUY]).n_visible(times.numpy(), events.numpy(), lengths.numpy())
    assert found.tolist() == [n_visible(row, at, before) for row in rows for at in range(len(row))]


def made(rows: list[list[tuple[int, int, int]]], make: Masking | Shifting, before: int | str, epoch: int = 0) -> Batch:
    items, lengths, times, events = tensors(rows)
    visible = HiddenEvents(before, [BUY]).n_visible(times.numpy(), events.numpy(), lengths.numpy())
    return make(items, lengths, torch.arange(len(rows)), epoch, times, events, visible)


@BEFORE
def test_a_causal_model_predicts_each_target_from_the_last_item_of_its_input(before: int | str) -> None:
    rows = sequences(2)
    batch = made(rows, Shifting(event_weights=WEIGHTS), before)
    shown = [row[:-1] or row for row in rows]
    starts = [0, *accumulate(map(len, shown))]
    expected = [
        (starts[number] + n_visible(row, at, before) - 1, row[at][0])
        for number, row in enumerate(rows)
        for at in range(len(row))
        if row[at][2] == BUY and n_visible(row, at, before)
    ]
    pairs = zip(batch.positions.tolist(), batch.targets.tolist(), strict=True)
    found = Counter(pair for pair in pairs if pair[1] != NO_ITEM)
    assert found == Counter(expected)
    assert batch.positions.tolist() == sorted(batch.positions.tolist())
    assert batch.lengths.tolist() == [*map(len, shown)]
    asked = np.searchsorted(starts, batch.positions.numpy(), side="right") - 1
    assert {*asked.tolist()} == {*range(len(rows))}  # every sequence is asked, if only without a target


@BEFORE
def test_nothing_between_the_input_and_a_masked_target_is_shown(before: int | str) -> None:
    rows = sequences(3)
    for last, epoch in ((0.0, 0), (0.0, 1), (1.0, 2)):
        batch = made(rows, Masking(1, 30, 0.5, last, 1.0, 0.0, "target", WEIGHTS), before, epoch)
        plain = Masking(1, 30, 0.5, last, 1.0, 0.0, "target", WEIGHTS)(
            *tensors(rows)[:2], torch.arange(len(rows)), epoch, tensors(rows)[2], tensors(rows)[3]
        )
        is_target = batch.targets != NO_ITEM
        assert batch.targets[is_target].tolist() == plain.targets[plain.targets != NO_ITEM].tolist()
        ids = torch.cat([batch.items.ids, torch.tensor([NO_ITEM])])[batch.places]
        whole = torch.cat([plain.items.ids, torch.tensor([NO_ITEM])])[plain.places]
        for number, (row, inputs, all_inputs) in enumerate(
            zip(rows, ids.split(batch.lengths.tolist()), whole.split(plain.lengths.tolist()), strict=True)
        ):
            masked = [at for at, item in enumerate(all_inputs.tolist()) if item == NO_ITEM]
            hidden = {place for at in masked for place in range(n_visible(row, at, before), at)} - {*masked}
            expected = [item for at, item in enumerate(all_inputs.tolist()) if at not in hidden]
            assert inputs.tolist() == expected, number


@torch.no_grad()
def test_a_causal_model_that_is_asked_twice_at_a_position_sees_the_same_past() -> None:
    """The number of targets is that of the positions here, which must not be taken for one target at each."""
    rows = [[(3, 0, VIEW), (5, 9000, BUY), (6, 9000, BUY), (9, 9000, BUY)], [(7, 0, VIEW), (8, 9000, BUY)]]
    batch = made(rows, Shifting(event_weights=WEIGHTS), "visit")
    assert batch.targets[batch.targets != NO_ITEM].tolist() == [5, 6, 9, 8]
    network = model(SASRec, n_events=3, positions="rotary")
    states = hidden_of(network, batch)[batch.targets != NO_ITEM]
    short = [[*row[:1], (1, 99, BUY)] for row in rows]
    input_states = hidden_of(network, made(short, Shifting(event_weights=WEIGHTS), 1))
    torch.testing.assert_close(states, input_states[[0, 0, 0, 1]])
