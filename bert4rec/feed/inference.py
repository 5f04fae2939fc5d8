"""Histories as batches that ask for the next item: each kind of model in its own way.

`targets` hold those of the rows, or nothing but zeros where they have none.
"""

import torch
from torch import Tensor

from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import MASK_ID
from bert4rec.feed.batch import Batch, long, tensors_of


def with_mask(rows: Rows, max_len: int) -> Batch:
    """The last `max_len` - 1 items of each history and the mask token after them, which is to be predicted."""
    items, kept, place = _last_items(rows, max_len - 1)
    ends = (kept + 1).cumsum(0)
    shown = torch.full((int(ends[-1]),), MASK_ID, dtype=torch.int64)
    shown[torch.repeat_interleave(ends - 1, kept) + place] = items
    return Batch.showing(shown, kept + 1, ends - 1, _targets(rows))


def as_they_are(rows: Rows, max_len: int) -> Batch:
    """The last `max_len` - 1 items of each history, as many as a whole window has before its last target."""
    items, kept, _ = _last_items(rows, max_len - 1)
    return Batch.showing(items, kept, kept.cumsum(0) - 1, _targets(rows))


def _last_items(rows: Rows, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """At most the `n` last items of each row, how many these are [B], and the place of each from the end, below 0."""
    items, lengths = tensors_of(rows)
    kept = lengths.clamp(max=n)
    place = torch.arange(int(kept.sum())) - torch.repeat_interleave(kept.cumsum(0), kept)
    return items[torch.repeat_interleave(lengths.cumsum(0), kept) + place], kept, place


def _targets(rows: Rows) -> Tensor:
    return torch.zeros(len(rows.lengths), dtype=torch.int64) if rows.targets is None else long(rows.targets)
