"""BERT masking of a ragged batch, as a pure function.

Every decision is a hash of (seed, epoch, sequence index, position), not a draw from a generator: the masks of a
sequence do not depend on the rank, the batch or a restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import Batch, Widths
from bert4rec.feed.seeded import Words, splitmix64
from bert4rec.runtime.arrays import Bools, Float64s, Int64s


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

    def __call__(
        self, items: Tensor, lengths: Tensor, sequence_ids: Tensor, epoch: int, seconds: Tensor | None = None,
        events: Tensor | None = None, n_visible: Int64s | None = None,
    ) -> Batch:  # fmt: skip
        """Return the training batch of the sequences in `epoch`.

        `items` [total] int64 are the concatenated sequences, `lengths` [B] their lengths, `sequence_ids` [B] their ids
        in the whole training set, `seconds` [total] the timestamps of the items, `events` [total] their kinds,
        `n_visible` [total] the number of first items of the sequence that are input when each item is predicted.
        """
        epoch_key = splitmix64(_words(np.array([self.seed])), _words(np.array([epoch])))
        sequence_keys = splitmix64(epoch_key, _words(sequence_ids.numpy()))
        only_last = _uniform(sequence_keys, 1) < self.last_item_mask_prob
        weights = _weights_of(events, self.event_weights)
        if weights is not None and events is not None:
            kept = torch.from_numpy(_until_last(weights.numpy() > 0, lengths.numpy(), only_last))
            row_numbers = torch.repeat_interleave(lengths)
            lengths = torch.bincount(row_numbers[kept], minlength=len(lengths))
            items, events, weights = items[kept], events[kept], weights[kept]
            seconds = None if seconds is None else seconds[kept]
            n_visible = None if n_visible is None else n_visible[kept.numpy()]
        rows = np.repeat(np.arange(len(lengths)), lengths)
        starts = lengths.cumsum(0).numpy() - lengths.numpy()
        keys = splitmix64(sequence_keys[rows], _words(np.arange(len(items)) - starts[rows]))
        is_target = np.ones(len(items), bool) if weights is None else weights.numpy() > 0
        is_chosen = self._choose(keys, sequence_keys, only_last, rows, is_target)
        if n_visible is not None:
            assert events is not None, "events are hidden before some of their kinds"
            assert weights is not None, "and only these kinds are predicted"
            shown = ~_are_hidden(is_chosen, n_visible, starts[rows])
            lengths = torch.from_numpy(np.bincount(rows[shown], minlength=len(lengths)))
            rows, keys, is_chosen, kept = rows[shown], keys[shown], is_chosen[shown], torch.from_numpy(shown)
            items, events, weights = items[kept], events[kept], weights[kept]
            seconds = None if seconds is None else seconds[kept]
        # Without weights, a position of each sequence is chosen.
        is_position = is_chosen if weights is None else is_chosen | _is_last_of_empty(is_chosen, lengths.numpy())
        positions = torch.from_numpy(np.flatnonzero(is_position))
        inputs = torch.from_numpy(self._hide(items.numpy(), is_chosen, keys, only_last[rows]))
        gaps = instants = None
        if seconds is not None:
            visible_seconds = seconds if self.times == "target" else seconds[_shown_before(is_chosen, lengths)]
            gaps, instants = time_deltas(visible_seconds, lengths), visible_seconds[positions]
        hidden = torch.from_numpy(is_chosen)
        targets = torch.where(hidden[positions], items[positions], NO_ITEM)
        batch = Batch.from_items(inputs, lengths, positions, targets, gaps, instants)
        return batch._replace(
            events=None if events is None else events.masked_fill(hidden, 0),
            weights=weights[positions] if weights is not None and _differ(self.event_weights) else None,
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

    def _hide(self, items: Int64s, chosen: Bools, keys: Words, only_last: Bools) -> Int64s:
        """Return the inputs [total]: the `chosen` items become the mask token, a random item, or stay."""
        kind = _uniform(keys, 4)
        is_mask = chosen & ((kind < self.mask_token_share) | only_last)
        is_random = chosen & ~is_mask & (kind < self.mask_token_share + self.random_token_share)
        random_items = (_uniform(keys, 5) * self.n_items).astype(np.int64)
        return np.select([is_mask, is_random], [np.int64(NO_ITEM), random_items], items)


def _weights_of(events: Tensor | None, event_weights: Sequence[float]) -> Tensor | None:
    """Return the weights [total] float32 of positions in the loss by their `events`; None if all are 1."""
    return None if events is None or not event_weights else torch.tensor(event_weights)[events]


def _differ(event_weights: Sequence[float]) -> bool:
    """Return whether the weights of positions to predict are not all 1."""
    return any(weight not in (0, 1) for weight in event_weights)


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


def _shown_before(is_hidden: Bools, lengths: Tensor) -> Tensor:
    """Return for each position [total] the position itself or, if hidden, the last visible one before it.

    If none before it in the sequence is visible, this is the next visible one; if none at all is, the first position.

    >>> _shown_before(np.array([True, False, True, True, False, True]), torch.tensor([5, 1])).tolist()
    [1, 1, 1, 1, 4, 5]
    """
    n, at = len(is_hidden), np.arange(len(is_hidden))
    ends = lengths.cumsum(0).numpy()
    firsts, ends = (np.repeat(bounds, lengths) for bounds in (ends - lengths.numpy(), ends))
    before = np.maximum.accumulate(np.where(is_hidden, -1, at))
    behind = np.minimum.accumulate(np.where(is_hidden, n, at)[::-1])[::-1]
    source = np.where(before >= firsts, before, np.where(behind < ends, behind, firsts))
    return torch.from_numpy(source)


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

    def __call__(
        self, items: Tensor, lengths: Tensor, sequence_ids: Tensor, epoch: int, seconds: Tensor | None = None,
        events: Tensor | None = None, n_visible: Int64s | None = None,
    ) -> Batch:  # fmt: skip
        """Return the training batch of the sequences, the same in every `epoch`.

        `items` [total] int64 are the concatenated sequences, `lengths` [B] their lengths, `seconds` [total] the
        timestamps of the items, `events` [total] their kinds, `n_visible` [total] the number of first items of the
        sequence that are input when each item is predicted. A sequence of one item stays in the batch, without a
        target.
        """
        ends = lengths.cumsum(0)
        is_alone = lengths == 1
        is_shown = torch.ones(len(items), dtype=torch.bool)
        is_shown[ends[~is_alone] - 1] = False
        targets = items.roll(-1)
        targets[ends[is_alone] - 1] = NO_ITEM
        shown, n_shown, targets = items[is_shown], torch.where(is_alone, 1, lengths - 1), targets[is_shown]
        gaps = instants = None
        if seconds is not None:
            all_gaps, all_instants = self._times(seconds, lengths)
            gaps, instants = all_gaps[is_shown], all_instants[is_shown]
        batch = Batch.from_items(shown, n_shown, torch.arange(len(shown)), targets, gaps, instants)
        if events is None:
            return batch
        batch = batch._replace(events=events[is_shown])
        weights = _weights_of(events.roll(-1)[is_shown], self.event_weights)
        if weights is None:
            return batch
        if n_visible is not None:
            return self._with_short_inputs(batch, items, lengths, _weights_of(events, self.event_weights), n_visible)
        is_target = (weights > 0) & (targets != NO_ITEM)
        is_position = is_target.numpy() | _is_last_of_empty(is_target.numpy(), n_shown.numpy())
        positions = torch.from_numpy(np.flatnonzero(is_position))
        return batch._replace(
            positions=positions,
            targets=torch.where(is_target, targets, NO_ITEM)[positions],
            instants=None if instants is None else instants[positions],
            weights=weights[positions] if _differ(self.event_weights) else None,
        )

    def _with_short_inputs(
        self, batch: Batch, items: Tensor, lengths: Tensor, weights: Tensor | None, n_visible: Int64s
    ) -> Batch:
        """Return the `batch` in which the last of the `n_visible` [total] first items predicts each item.

        `weights` [total] are those of the `items` in the loss; an item without input is not predicted.
        """
        assert weights is not None, "events are hidden before some of the kinds"
        predicted = np.flatnonzero((weights.numpy() > 0) & (n_visible > 0))
        rows, n_shown = np.repeat(np.arange(len(lengths)), lengths)[predicted], batch.lengths.numpy()
        places = (n_shown.cumsum() - n_shown)[rows] + n_visible[predicted] - 1
        is_asked = np.zeros(n_shown.sum(), bool)
        is_asked[places] = True
        without = np.flatnonzero(_is_last_of_empty(is_asked, n_shown))
        if len(places) + len(without) == len(is_asked):  # by this number, attention would take each position once
            without = np.append(without, len(is_asked) - 1)
        order = torch.from_numpy(np.argsort(np.append(places, without), kind="stable"))
        positions = torch.from_numpy(np.append(places, without))[order]
        return batch._replace(
            positions=positions,
            targets=F.pad(items[predicted], (0, len(without)), value=NO_ITEM)[order],
            instants=None if batch.instants is None else batch.instants[positions],
            weights=F.pad(weights[predicted], (0, len(without)))[order] if _differ(self.event_weights) else None,
            widths=Widths.of(batch.lengths, positions),
        )

    def _times(self, seconds: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gaps and instants [total] of all positions."""
        if self.times == "target":
            gaps = until_next(seconds, lengths)
            return gaps, seconds + gaps
        return time_deltas(seconds, lengths), seconds
