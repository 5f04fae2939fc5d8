"""Histories as batches that ask for the next item: each kind of model in its own way.

`targets` hold those of the rows, or nothing but zeros where they have none. `times`: what the model knows of them; rows
have some then, and for "target" those of the targets.
"""

import torch
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Rows
from bert4rec.feed.batch import Batch, long, seconds_of, tensors_of
from bert4rec.feed.masking import inference_time_deltas


def append_mask_batch(rows: Rows, max_len: int, times: str = "none") -> Batch:
    """Return the last `max_len` - 1 items of each history and the mask token after them, which is to be predicted."""
    items, kept, chosen = _last_items(rows, max_len - 1)
    ends = (kept + 1).cumsum(0)
    is_item = torch.ones(int(ends[-1]), dtype=torch.bool)
    is_item[ends - 1] = False
    shown = torch.full((len(is_item),), NO_ITEM, dtype=torch.int64)
    shown[is_item] = items
    gaps, instants = _times(rows, kept, chosen, times, is_causal=False)
    return Batch.from_items(shown, kept + 1, ends - 1, _targets(rows), gaps, instants)


def causal_batch(rows: Rows, max_len: int, times: str = "none") -> Batch:
    """Return the last `max_len` - 1 items of each history, as many as a whole window has before its last target."""
    items, kept, chosen = _last_items(rows, max_len - 1)
    gaps, instants = _times(rows, kept, chosen, times, is_causal=True)
    return Batch.from_items(items, kept, kept.cumsum(0) - 1, _targets(rows), gaps, instants)


def _last_items(rows: Rows, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return at most `n` last items of each row, their counts [B], and their places among all rows' items."""
    items, lengths = tensors_of(rows)
    kept = lengths.clamp(max=n)
    from_end = torch.repeat_interleave(kept.cumsum(0), kept) - torch.arange(int(kept.sum()))
    chosen = torch.repeat_interleave(lengths.cumsum(0), kept) - from_end
    return items[chosen], kept, chosen


def _times(
    rows: Rows, kept: Tensor, chosen: Tensor, times: str, *, is_causal: bool
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return gaps and instants where the items stand at the places `chosen`, of which each row has `kept` [B]."""
    seconds = seconds_of(rows)
    if seconds is None:
        return None, None
    assert rows.target_times is not None, "a split that is read with times has those of the targets"
    at = torch.from_numpy(rows.target_times) if times == "target" else None
    return inference_time_deltas(seconds[chosen], kept, at, is_causal=is_causal)


def _targets(rows: Rows) -> Tensor:
    return torch.zeros(len(rows.lengths), dtype=torch.int64) if rows.targets is None else long(rows.targets)
