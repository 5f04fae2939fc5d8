"""Inference batches: histories with a query for the next item, for masked and for causal models.

The `targets` of a batch are those of the rows, or zeros if the rows have none. `times` is the setting of the model:
with "history" or "target" the rows must have the timestamps of items and targets.
"""

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Batch, events_of, long, seconds_of, tensors_of
from bert4rec.feed.masking import inference_time_deltas


def append_mask_batch(rows: Rows, max_len: int, times: str = "none") -> Batch:
    """Return the last `max_len` - 1 items of each history, followed by the mask token, the position to predict."""
    rows = _last_items(rows, max_len - 1)
    items, lengths = tensors_of(rows)
    ends = (lengths + 1).cumsum(0)
    is_item = torch.ones(int(ends[-1]), dtype=torch.bool)
    is_item[ends - 1] = False
    shown = torch.full((len(is_item),), NO_ITEM, dtype=torch.int64)
    shown[is_item] = items
    gaps, instants = _times(rows, times, is_causal=False)
    batch = Batch.from_items(shown, lengths + 1, ends - 1, _targets(rows), gaps, instants)
    events = events_of(rows)
    return batch if events is None else batch._replace(events=torch.zeros_like(shown).masked_scatter(is_item, events))


def causal_batch(rows: Rows, max_len: int, times: str = "none") -> Batch:
    """Return the last `max_len` - 1 items of each history, as many as a full training window has inputs."""
    rows = _last_items(rows, max_len - 1)
    items, lengths = tensors_of(rows)
    gaps, instants = _times(rows, times, is_causal=True)
    batch = Batch.from_items(items, lengths, lengths.cumsum(0) - 1, _targets(rows), gaps, instants)
    return batch._replace(events=events_of(rows))


def _last_items(rows: Rows, n: int) -> Rows:
    """Return the last positions of each row, at most `n`."""
    ends = np.repeat(rows.lengths.cumsum(), rows.lengths)
    return rows.part(np.arange(len(ends)) >= ends - n)


def _times(rows: Rows, times: str, *, is_causal: bool) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return gaps and instants for the items; None without timestamps."""
    seconds = seconds_of(rows)
    if seconds is None:
        return None, None
    assert rows.target_times is not None, "a split that is read with times has the times of the targets"
    at = torch.from_numpy(rows.target_times) if times == "target" else None
    return inference_time_deltas(seconds, torch.from_numpy(rows.lengths), at, is_causal=is_causal)


def _targets(rows: Rows) -> Tensor:
    return torch.zeros(len(rows.lengths), dtype=torch.int64) if rows.targets is None else long(rows.targets)
