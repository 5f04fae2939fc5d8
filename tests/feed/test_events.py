"""Batches of histories with kinds of events: which positions are predicted, and what is shown of them."""

from collections.abc import Sequence

import numpy as np
import torch

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch
from bert4rec.feed.inference import append_mask_batch, causal_batch
from bert4rec.feed.masking import Masking, Shifting
from tests.feed.shown import rows_of, shown

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
