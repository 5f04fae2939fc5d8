"""Batches in which the events shortly before a target are no input for its prediction."""

from collections import Counter
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.histories import Rows
from bert4rec.feed.masking import Masking, Shifting
from bert4rec.models.sequence_model import SASRec
from tests.feed.shown import rows_of, shown
from tests.models.networks import hidden_of, model

VIEW, BUY = 1, 2
WEIGHTS = [0.0, 0.0, 1.0]
MINUTE = 60
Sequence = list[tuple[int, int, int]]


def sequences(seed: int, n: int = 30) -> list[Sequence]:
    """Each a list of (item, seconds, kind), ascending in time, with equal times and pauses."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        length = int(draw.integers(1, 12))
        times = draw.choice([0, 20, 400, 4000, 90_000], length).cumsum()
        kinds = draw.choice([0, VIEW, BUY], length, p=[0.1, 0.5, 0.4])
        made.append([*zip(draw.integers(0, 30, length).tolist(), times.tolist(), kinds.tolist(), strict=True)])
    return made


def n_visible(row: Sequence, at: int, before: int | str) -> int:
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


def read(rows: list[Sequence], before: int | str) -> Rows:
    """The rows as they are read; what is input is that of a reference in plain Python."""
    items, times, events = ([[event[place] for event in row] for row in rows] for place in range(3))
    found = rows_of(items, times=times, events=events)
    visible = HiddenEvents(before, [BUY]).n_visible(found.times, found.events, found.lengths)
    assert visible.tolist() == [n_visible(row, at, before) for row in rows for at in range(len(row))]
    return replace(found, n_visible=visible)


BEFORE = pytest.mark.parametrize("before", ["visit", "last_target", 5, 60])


@BEFORE
def test_a_causal_model_predicts_each_target_from_the_last_item_of_its_input(before: int | str) -> None:
    rows = sequences(2)
    batch = Shifting(event_weights=WEIGHTS)(read(rows, before), np.arange(len(rows)), 0)
    inputs = [row[:-1] or row for row in rows]
    starts = [0, *accumulate(map(len, inputs))]
    expected = [
        (starts[number] + n_visible(row, at, before) - 1, row[at][0])
        for number, row in enumerate(rows)
        for at in range(len(row))
        if row[at][2] == BUY and n_visible(row, at, before)
    ]
    pairs = zip(batch.positions.tolist(), batch.targets.tolist(), strict=True)
    assert Counter(pair for pair in pairs if pair[1] != NO_ITEM) == Counter(expected)
    assert batch.positions.tolist() == sorted(batch.positions.tolist())
    assert batch.lengths.tolist() == [*map(len, inputs)]
    asked = np.searchsorted(starts, batch.positions.numpy(), side="right") - 1
    assert {*asked.tolist()} == {*range(len(rows))}  # every sequence is asked, if only without a target


@BEFORE
@pytest.mark.parametrize(("last", "epoch"), [(0.0, 0), (0.0, 1), (1.0, 2)])
def test_nothing_between_the_input_and_a_masked_target_is_shown(before: int | str, last: float, epoch: int) -> None:
    rows = sequences(3)
    masking, whole = Masking(1, 30, 0.5, last, 1.0, 0.0, "target", WEIGHTS), read(rows, before)
    batch, plain = (
        masking(some, np.arange(len(rows)), epoch) for some in (whole, replace(whole, n_visible=None))
    )  # fmt: skip
    assert batch.targets[batch.targets != NO_ITEM].tolist() == plain.targets[plain.targets != NO_ITEM].tolist()
    parts = (shown(one).split(one.lengths.tolist()) for one in (batch, plain))
    for row, inputs, all_inputs in zip(rows, *parts, strict=True):
        masked = [at for at, item in enumerate(all_inputs.tolist()) if item == NO_ITEM]
        hidden = {place for at in masked for place in range(n_visible(row, at, before), at)} - {*masked}
        assert inputs.tolist() == [item for at, item in enumerate(all_inputs.tolist()) if at not in hidden]


@torch.no_grad()
def test_a_causal_model_that_is_asked_twice_at_a_position_sees_the_same_past() -> None:
    """The number of targets is that of the positions here, which must not be taken for one target at each."""
    rows = [[(3, 0, VIEW), (5, 9000, BUY), (6, 9000, BUY), (9, 9000, BUY)], [(7, 0, VIEW), (8, 9000, BUY)]]
    short = [[*row[:1], (1, 99, BUY)] for row in rows]
    make, network = Shifting(event_weights=WEIGHTS), model(SASRec, n_events=3, positions="rotary")
    batch, of_input = make(read(rows, "visit"), np.arange(2), 0), make(read(short, 1), np.arange(2), 0)
    assert batch.targets[batch.targets != NO_ITEM].tolist() == [5, 6, 9, 8]
    states = hidden_of(network, batch)[batch.targets != NO_ITEM]
    torch.testing.assert_close(states, hidden_of(network, of_input)[[0, 0, 0, 1]])
