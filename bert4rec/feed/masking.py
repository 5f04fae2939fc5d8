"""BERT masking of a ragged batch, as a pure function.

Every decision is a hash of (seed, epoch, sequence index, position), not a draw from a generator: the masks of a
sequence do not depend on the rank, the batch or a restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.hidden import firsts
from bert4rec.feed.batch import Batch, Widths, events_of, long, seconds_of, tensors_of
from bert4rec.runtime.arrays import Array, Bools, Float32s, Float64s, Int64s
from bert4rec.runtime.seeded import Words, splitmix64

if TYPE_CHECKING:
    from bert4rec.dataset.histories import Rows  # imports Arrow


def time_deltas(seconds: Tensor, lengths: Tensor) -> Tensor:
    """Return the seconds since the previous position [N]; 0 at the first of a sequence.

    >>> time_deltas(torch.tensor([5, 7, 20, 100]), torch.tensor([3, 1])).tolist()
    [0, 2, 13, 0]
    """
    gaps = F.pad(seconds.diff(), (1, 0))
    gaps[(lengths.cumsum(0) - lengths)[lengths > 0]] = 0
    return gaps


def until_next(seconds: Tensor, lengths: Tensor) -> Tensor:
    """Return the seconds until the next position [N]; 0 at the last of a sequence.

    >>> until_next(torch.tensor([5, 7, 20, 100]), torch.tensor([3, 1])).tolist()
    [2, 13, 0, 0]
    """
    gaps = F.pad(seconds.diff(), (0, 1))
    gaps[(lengths.cumsum(0) - 1)[lengths > 0]] = 0
    return gaps


def inference_time_deltas(
    seconds: Tensor, lengths: Tensor, at: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the gaps of histories with the query times `at` [B], and the query times [B].

    Without `at`, the query time is the time of the last item.

    For a causal model the gaps [N] are the seconds until the next item, at the last position until the query; without
    `at` they are the seconds since the previous item. Otherwise the gaps [N + B] are the seconds since the previous
    position, including one position per history for the mask token, at the query time.

    >>> seconds, lengths, at = torch.tensor([5, 7, 20, 100]), torch.tensor([3, 1]), torch.tensor([50, 101])
    >>> inference_time_deltas(seconds, lengths, at, is_causal=True)[0].tolist()
    [2, 13, 30, 1]
    >>> inference_time_deltas(seconds, lengths, at, is_causal=False)[0].tolist()
    [0, 2, 13, 30, 0, 1]
    """
    ends = lengths.cumsum(0) - 1
    last = seconds[ends] if at is None else at
    if is_causal and at is None:
        return time_deltas(seconds, lengths), last
    if is_causal:
        return until_next(seconds, lengths).index_copy(0, ends, last - seconds[ends]), last
    before = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    places = torch.arange(len(seconds), device=lengths.device) + before
    whole = last.new_empty(len(seconds) + len(lengths)).index_copy(0, places, seconds)
    masks = ends + 1 + torch.arange(len(lengths), device=lengths.device)
    return time_deltas(whole.index_copy(0, masks, last), lengths + 1), last


@dataclass(frozen=True)
class Masking:
    """Chooses the positions to predict and masks them (BERT4Rec, Sun et al. 2019, section 3.6).

    With probability `last_item_mask_prob` only the last item of a sequence is masked, as at inference. Otherwise each
    position is masked with probability `mask_prob`, and at least one. The input at a masked position is the mask token
    (with probability `mask_token_share`; always, if only the last item is masked), a random one of the `n_items` items
    (`random_token_share`), or the item itself.

    Unless `times` is "none", the batch has the seconds since the previous item at each position, and the time of each
    prediction. With "history", a masked position has the time of the last visible item before it, since the time of the
    next item is unknown at inference.

    If the items have kinds of events, so has the batch, but a position to predict has kind 0, as at inference.
    `event_weights` are by kind: only positions of a positive weight are predicted, and where the last one is masked,
    the sequence ends with it. A sequence without any has a position without a target.

    If the input of a prediction is only the first items of its sequence, the items between these and the predicted one
    are left out, whatever they are: to leave out those equal to it would tell what it is.
    """

    seed: int
    n_items: int
    mask_prob: float
    last_item_mask_prob: float
    mask_token_share: float
    random_token_share: float
    times: str = "none"
    event_weights: Sequence[float] = ()

    def __call__(self, rows: "Rows", sequence_ids: Int64s, epoch: int) -> Batch:
        """Return the training batch of `rows` in `epoch`; `sequence_ids` [B] are their ids in the training set."""
        epoch_key = splitmix64(_words(np.array([self.seed])), _words(np.array([epoch])))
        sequence_keys = splitmix64(epoch_key, _words(sequence_ids))
        only_last = _uniform(sequence_keys, 1) < self.last_item_mask_prob
        weights = _weights_of(rows, self.event_weights)
        if weights is not None:
            is_kept = _until_last(weights > 0, rows.lengths, only_last)
            rows, weights = rows.part(is_kept), weights[is_kept]
        numbers, starts = rows.numbers, firsts(rows.lengths)
        keys = splitmix64(sequence_keys[numbers], _words(np.arange(len(numbers)) - starts))
        is_target = np.ones(len(numbers), bool) if weights is None else weights > 0
        is_chosen = self._choose(keys, sequence_keys, only_last, numbers, is_target)
        if rows.n_visible is not None:
            assert weights is not None, "events are hidden before some of their kinds, and only these are predicted"
            is_shown = ~_are_hidden(is_chosen, rows.n_visible, starts)
            rows, weights, keys, is_chosen = rows.part(is_shown), weights[is_shown], keys[is_shown], is_chosen[is_shown]
        # Without weights, a position of each sequence is chosen.
        is_position = is_chosen if weights is None else is_chosen | _is_last_of_empty(is_chosen, rows.lengths)
        positions = torch.from_numpy(np.flatnonzero(is_position))
        inputs = torch.from_numpy(self._hide(rows.items, is_chosen, keys, only_last[rows.numbers]))
        targets = long(np.where(is_chosen, rows.items, NO_ITEM))[positions]
        lengths, gaps, instants = torch.from_numpy(rows.lengths), None, None
        if rows.times is not None:
            times = rows.times if self.times == "target" else rows.times[_shown_before(is_chosen, rows.lengths)]
            gaps, instants = time_deltas(torch.from_numpy(times), lengths), torch.from_numpy(times)[positions]
        batch = Batch.from_items(inputs, lengths, positions, targets, gaps, instants)
        return batch._replace(
            events=None if rows.events is None else long(np.where(is_chosen, 0, rows.events)),
            weights=_weights_at(positions, weights, rows, self.event_weights),
        )

    def _choose(self, keys: Words, sequence_keys: Words, only_last: Bools, rows: Int64s, is_target: Bools) -> Bools:
        """Return a mask of the positions [total] to predict, all of them among those that may be a target."""
        chosen: Bools = (_uniform(keys, 2) < self.mask_prob) & ~only_last[rows] & is_target
        counts = np.bincount(rows[is_target], minlength=len(only_last))
        is_without = (np.bincount(rows[chosen], minlength=len(only_last)) == 0) & (counts > 0)
        anywhere = (_uniform(sequence_keys, 3) * counts).astype(np.int64)
        numbers = np.cumsum(counts) - counts + np.where(only_last, counts - 1, anywhere)
        chosen[np.flatnonzero(is_target)[numbers[is_without]]] = True
        return chosen

    def _hide(self, items: Array, chosen: Bools, keys: Words, only_last: Bools) -> Int64s:
        """Return the inputs [total]: the `chosen` items become the mask token, a random item, or stay."""
        kind = _uniform(keys, 4)
        is_mask = chosen & ((kind < self.mask_token_share) | only_last)
        is_random = chosen & ~is_mask & (kind < self.mask_token_share + self.random_token_share)
        random_items = (_uniform(keys, 5) * self.n_items).astype(np.int64)
        return np.select([is_mask, is_random], [np.int64(NO_ITEM), random_items], items)


def _weights_of(rows: "Rows", event_weights: Sequence[float]) -> Float32s | None:
    """Return the weights [total] of positions in the loss, their own times those of their events; None if all are 1."""
    if rows.events is None or not event_weights:
        return rows.weights
    weights = np.array(event_weights, np.float32)[rows.events]
    return weights if rows.weights is None else weights * rows.weights


def _weights_at(
    positions: Tensor, weights: Float32s | None, rows: "Rows", event_weights: Sequence[float]
) -> Tensor | None:
    """Return the `weights` [total] of the `positions` to predict [M]; None if no batch has others than 0 and 1."""
    is_equal = rows.weights is None and all(weight in (0, 1) for weight in event_weights)
    return None if weights is None or is_equal else torch.from_numpy(weights)[positions]


def _until_last(is_target: Bools, lengths: Int64s, only_last: Bools) -> Bools:
    """Return which positions [total] stay: all, but of a sequence with `only_last` [B] none after its last target.

    >>> is_target = np.array([False, True, False, True, False, False])
    >>> _until_last(is_target, np.array([3, 2, 1]), np.array([True, False, True])).tolist()
    [True, True, False, True, True, True]
    """
    rows = np.repeat(np.arange(len(lengths)), lengths)
    last = np.full(len(lengths), len(rows))
    last[rows[is_target]] = np.flatnonzero(is_target)  # of several values, the last one stays
    return ~only_last[rows] | (np.arange(len(rows)) <= last[rows])


def _are_hidden(is_chosen: Bools, n_visible: Int64s, firsts: Int64s) -> Bools:
    """Return which positions [total] lie between the input of a chosen position and that position, and are not chosen.

    `firsts` [total] are the first positions of the sequences.

    >>> is_chosen, n_visible = np.array([False, False, False, True, False]), np.array([0, 0, 1, 1, 1])
    >>> _are_hidden(is_chosen, n_visible, np.zeros(5, np.int64)).tolist()
    [False, True, True, False, False]
    """
    ends, changes = np.flatnonzero(is_chosen), np.zeros(len(is_chosen) + 1, np.int64)
    np.add.at(changes, (firsts + n_visible)[ends], 1)
    np.add.at(changes, ends, -1)
    hidden: Bools = (changes.cumsum()[:-1] > 0) & ~is_chosen
    return hidden


def _is_last_of_empty(is_chosen: Bools, lengths: Int64s) -> Bools:
    """Return which positions [total] are the last of a sequence in which none is chosen."""
    is_empty = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[is_chosen], minlength=len(lengths)) == 0
    is_last = np.zeros(len(is_chosen), bool)
    is_last[(np.cumsum(lengths) - 1)[is_empty & (lengths > 0)]] = True
    return is_last


def _shown_before(is_hidden: Bools, lengths: Int64s) -> Int64s:
    """Return for each position [total] the position itself or, if hidden, the last visible one before it.

    If none before it in the sequence is visible, this is the next visible one; if none at all is, the first position.

    >>> _shown_before(np.array([True, False, True, True, False, True]), np.array([5, 1])).tolist()
    [1, 1, 1, 1, 4, 5]
    """
    n, at = len(is_hidden), np.arange(len(is_hidden))
    starts, ends = firsts(lengths), np.repeat(lengths.cumsum(), lengths)
    before = np.maximum.accumulate(np.where(is_hidden, -1, at))
    behind = np.minimum.accumulate(np.where(is_hidden, n, at)[::-1])[::-1]
    return np.where(before >= starts, before, np.where(behind < ends, behind, starts))


def _words(numbers: Int64s) -> Words:
    return numbers.astype(np.uint64)


def _uniform(keys: Words, purpose: int) -> Float64s:
    """Return a float64 in [0, 1) for each key, from the upper 53 bits of its hash; independent for each `purpose`."""
    upper = splitmix64(keys, _words(np.array([-purpose - 1]))) >> np.uint64(11)
    return upper.astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Shifting:
    """Makes causal batches: the target of each position is the next item (SASRec, section 3.1).

    With `times` "history", each position has its own time and the seconds since the previous item; with "target", the
    time of the next item and the seconds until then.

    If the items have kinds of events, each position has its own. `event_weights` are by kind: only items of a positive
    weight are predicted. A sequence without any has a position without a target.

    If the input of a prediction is only the first items of its sequence, the last of these predicts it. A position may
    then predict several items or none.
    """

    times: str = "none"
    event_weights: Sequence[float] = ()

    def __call__(self, rows: "Rows", sequence_ids: Int64s, epoch: int) -> Batch:
        """Return the training batch of `rows`, the same in every `epoch`.

        A sequence of one item stays in the batch, without a target.
        """
        lasts, is_alone = rows.lengths.cumsum() - 1, rows.lengths == 1
        is_shown = np.ones(len(rows.items), bool)
        is_shown[lasts[~is_alone]] = False
        targets = np.roll(rows.items, -1)
        targets[lasts[is_alone]] = NO_ITEM
        targets, shown = targets[is_shown], rows.part(is_shown)
        gaps = instants = None
        if (seconds := seconds_of(rows)) is not None:
            is_next = self.times == "target"
            gaps = (until_next if is_next else time_deltas)(seconds, torch.from_numpy(rows.lengths))
            gaps, instants = gaps[is_shown], (seconds + gaps if is_next else seconds)[is_shown]
        positions = torch.arange(len(targets))
        batch = Batch.from_items(*tensors_of(shown), positions, long(targets), gaps, instants)
        batch, weights = batch._replace(events=events_of(shown)), _weights_of(rows, self.event_weights)
        if weights is None:
            return batch
        if rows.n_visible is not None:
            return self._with_short_inputs(batch, rows, weights)
        weights = np.roll(weights, -1)[is_shown]
        is_target = (weights > 0) & (targets != NO_ITEM)
        is_position = is_target | _is_last_of_empty(is_target, shown.lengths)
        positions = torch.from_numpy(np.flatnonzero(is_position))
        return batch._replace(
            positions=positions,
            targets=long(np.where(is_target, targets, NO_ITEM))[positions],
            instants=None if instants is None else instants[positions],
            weights=_weights_at(positions, weights, rows, self.event_weights),
        )

    def _with_short_inputs(self, batch: Batch, rows: "Rows", weights: Float32s) -> Batch:
        """Return the `batch` of `rows` in which the last of the first items that are input predicts each item.

        `weights` [total] are those of the items in the loss; an item without input is not predicted.
        """
        assert rows.n_visible is not None, "some events are no input"
        predicted = np.flatnonzero((weights > 0) & (rows.n_visible > 0))
        n_shown = batch.lengths.numpy()
        places = (n_shown.cumsum() - n_shown)[rows.numbers[predicted]] + rows.n_visible[predicted] - 1
        is_asked = np.zeros(n_shown.sum(), bool)
        is_asked[places] = True
        without = np.flatnonzero(_is_last_of_empty(is_asked, n_shown))
        if len(places) + len(without) == len(is_asked):  # by this number, attention would take each position once
            without = np.append(without, len(is_asked) - 1)
        order = np.argsort(np.append(places, without), kind="stable")
        positions = torch.from_numpy(np.append(places, without)[order])
        at = torch.from_numpy(order)
        return batch._replace(
            positions=positions,
            targets=F.pad(long(rows.items[predicted]), (0, len(without)), value=NO_ITEM)[at],
            instants=None if batch.instants is None else batch.instants[positions],
            weights=_weights_at(
                at, np.append(weights[predicted], np.zeros(len(without), np.float32)), rows, self.event_weights
            ),
            widths=Widths.of(batch.lengths, positions),
        )
