"""Batches of histories with kinds of events: which positions are predicted, and what is shown of them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Batch
from bert4rec.feed.inference import append_mask_batch, causal_batch
from bert4rec.feed.masking import Masking, Shifting

VIEW, BUY = 1, 2
ITEMS = [[10, 11, 12, 13], [20], [30, 31], [40, 41, 42]]
EVENTS = [[VIEW, BUY, BUY, VIEW], [BUY], [VIEW, VIEW], [0, VIEW, BUY]]


def flat(lists: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([value for one in lists for value in one])


def shifted(weights: Sequence[float]) -> Batch:
    lengths = torch.tensor([len(items) for items in ITEMS])
    return Shifting(event_weights=weights)(flat(ITEMS), lengths, torch.arange(4), 0, None, flat(EVENTS))


def masked(weights: Sequence[float], *, last: float, epoch: int = 0) -> Batch:
    masking = Masking(1, 99, 0.3, last, 1.0, 0.0, event_weights=weights)
    lengths = torch.tensor([len(items) for items in ITEMS])
    return masking(flat(ITEMS), lengths, torch.arange(4), epoch, None, flat(EVENTS))


def shown_items(batch: Batch) -> list[int]:
    return torch.cat([batch.items.ids, torch.tensor([NO_ITEM])])[batch.places].tolist()


def test_a_causal_model_predicts_the_wanted_kinds_and_sees_those_of_the_past() -> None:
    batch = shifted([0.0, 0.0, 1.0])
    assert shown_items(batch) == [10, 11, 12, 20, 30, 40, 41]
    assert batch.events.tolist() == [VIEW, BUY, BUY, BUY, VIEW, 0, VIEW]
    assert batch.positions.tolist() == [0, 1, 3, 4, 6]
    assert batch.targets.tolist() == [11, 12, NO_ITEM, NO_ITEM, 42]
    assert batch.weights is None


def test_weights_of_a_kind_are_those_of_its_targets() -> None:
    batch = shifted([0.0, 0.5, 2.0])
    by_target = dict(zip(batch.targets.tolist(), batch.weights.tolist(), strict=True))
    assert by_target == {11: 2.0, 12: 2.0, 13: 0.5, NO_ITEM: by_target[NO_ITEM], 31: 0.5, 41: 0.5, 42: 2.0}


def test_only_wanted_kinds_are_masked_and_a_masked_kind_is_hidden() -> None:
    for epoch in range(20):
        batch = masked([0.0, 0.0, 1.0], last=0.0, epoch=epoch)
        assert {*batch.targets.tolist()} <= {11, 12, 20, 42, NO_ITEM}
        is_target = batch.targets != NO_ITEM
        assert (batch.events[batch.positions[is_target]] == 0).all()
        items, events = shown_items(batch), batch.events.tolist()
        known = dict(zip(flat(ITEMS).tolist(), flat(EVENTS).tolist(), strict=True))
        assert all(known[item] == event for item, event in zip(items, events, strict=True) if item != NO_ITEM)
        assert (~is_target).sum() == 1  # of the history without a purchase


def test_where_the_last_purchase_is_masked_nothing_comes_after_it() -> None:
    batch = masked([0.0, 0.0, 1.0], last=1.0)
    assert shown_items(batch) == [10, 11, NO_ITEM, NO_ITEM, 30, 31, 40, 41, NO_ITEM]
    assert batch.lengths.tolist() == [3, 1, 2, 3]
    assert batch.targets.tolist() == [12, 20, NO_ITEM, 42]


def test_all_kinds_with_weight_one_are_the_batch_without_kinds() -> None:
    lengths, items = torch.tensor([len(one) for one in ITEMS]), flat(ITEMS)
    for make in (Masking(1, 99, 0.3, 0.2, 0.8, 0.1), Shifting()):
        plain = make(items, lengths, torch.arange(4), 3)
        found = make(items, lengths, torch.arange(4), 3, None, flat(EVENTS))
        assert found.weights is None
        for name in ("places", "lengths", "positions", "targets"):
            assert torch.equal(getattr(plain, name), getattr(found, name))


def test_the_position_that_asks_has_an_unknown_kind() -> None:
    rows = Rows(np.array([1, 2, 3], np.int32), np.array([2, 1]), events=np.array([VIEW, BUY, BUY], np.int16))
    asked = append_mask_batch(rows, 12).events
    causal = causal_batch(rows, 12).events
    assert (asked.tolist(), causal.tolist()) == ([VIEW, BUY, 0, BUY, 0], [VIEW, BUY, BUY])
