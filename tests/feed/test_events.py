"""Batches of histories with kinds of events: which positions are predicted, and what is input of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Batch
from bert4rec.feed.inference import append_mask_batch, causal_batch
from bert4rec.feed.masking import Masking, Shifting
from bert4rec.models.sequence_model import SASRec
from tests.feed.shown import rows_of, shown
from tests.models.networks import hidden_of, model

VIEW, BUY = 1, 2
ITEMS = [[10, 11, 12, 13], [20], [30, 31], [40, 41, 42]]
EVENTS = [[VIEW, BUY, BUY, VIEW], [BUY], [VIEW, VIEW], [0, VIEW, BUY]]
KINDS = {item: kind for row in zip(ITEMS, EVENTS, strict=True) for item, kind in zip(*row, strict=True)}
PURCHASES = [0.0, 0.0, 1.0]


def made(make: Masking | Shifting, epoch: int = 0) -> Batch:
    return make(rows_of(ITEMS, events=EVENTS), np.arange(4), epoch)


def masking(weights: Sequence[float], *, last: float) -> Masking:
    return Masking(1, 99, 0.3, last, 1.0, 0.0, event_weights=weights)


def test_a_causal_model_predicts_the_wanted_kinds_and_sees_those_of_the_past() -> None:
    batch = made(Shifting(event_weights=PURCHASES))
    assert shown(batch).tolist() == [10, 11, 12, 20, 30, 40, 41]
    assert batch.events.tolist() == [VIEW, BUY, BUY, BUY, VIEW, 0, VIEW]
    assert batch.positions.tolist() == [0, 1, 3, 4, 6]
    assert batch.targets.tolist() == [11, 12, NO_ITEM, NO_ITEM, 42]
    assert batch.weights is None


def test_weights_of_a_kind_are_those_of_its_targets() -> None:
    for make in (Shifting(event_weights=[0.0, 0.5, 2.0]), masking([0.0, 0.5, 2.0], last=0.5)):
        batch = made(make)
        real = [pair for pair in zip(batch.targets.tolist(), batch.weights.tolist(), strict=True) if pair[0] != NO_ITEM]
        assert [weight for _, weight in real] == [{VIEW: 0.5, BUY: 2.0}[KINDS[item]] for item, _ in real]


def test_only_wanted_kinds_are_masked_and_a_masked_kind_is_hidden() -> None:
    for epoch in range(20):
        batch = made(masking(PURCHASES, last=0.0), epoch)
        assert {*batch.targets.tolist()} <= {11, 12, 20, 42, NO_ITEM}
        is_target = batch.targets != NO_ITEM
        assert (batch.events[batch.positions[is_target]] == 0).all()
        pairs = zip(shown(batch).tolist(), batch.events.tolist(), strict=True)
        assert all(KINDS[item] == event for item, event in pairs if item != NO_ITEM)
        assert (~is_target).sum() == 1  # of the history without a purchase


def test_where_the_last_purchase_is_masked_nothing_comes_after_it() -> None:
    batch = made(masking(PURCHASES, last=1.0))
    assert shown(batch).tolist() == [10, 11, NO_ITEM, NO_ITEM, 30, 31, 40, 41, NO_ITEM]
    assert batch.lengths.tolist() == [3, 1, 2, 3]
    assert batch.targets.tolist() == [12, 20, NO_ITEM, 42]


def test_all_kinds_with_weight_one_are_the_batch_without_kinds() -> None:
    for make in (Masking(1, 99, 0.3, 0.2, 0.8, 0.1), Shifting()):
        plain, found = make(rows_of(ITEMS), np.arange(4), 3), made(make, 3)
        assert found.weights is None
        for name in ("places", "lengths", "positions", "targets"):
            assert torch.equal(getattr(plain, name), getattr(found, name))


def test_the_position_that_asks_has_an_unknown_kind() -> None:
    rows = rows_of([[1, 2], [3]], events=[[VIEW, BUY], [BUY]])
    asked, causal = append_mask_batch(rows, 12).events, causal_batch(rows, 12).events
    assert (asked.tolist(), causal.tolist()) == ([VIEW, BUY, 0, BUY, 0], [VIEW, BUY, BUY])


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
    batch = Shifting(event_weights=PURCHASES)(read(rows, before), np.arange(len(rows)), 0)
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
    masking, whole = Masking(1, 30, 0.5, last, 1.0, 0.0, "target", PURCHASES), read(rows, before)
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
    make, network = Shifting(event_weights=PURCHASES), model(SASRec, n_events=3, positions="rotary")
    batch, of_input = make(read(rows, "visit"), np.arange(2), 0), make(read(short, 1), np.arange(2), 0)
    assert batch.targets[batch.targets != NO_ITEM].tolist() == [5, 6, 9, 8]
    states = hidden_of(network, batch)[batch.targets != NO_ITEM]
    torch.testing.assert_close(states, hidden_of(network, of_input)[[0, 0, 0, 1]])
