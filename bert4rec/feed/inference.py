"""Histories as batches that ask for the next item: each kind of model in its own way."""

import torch

from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import MASK_ID
from bert4rec.feed.batch import Batch, long, tensors_of


def with_mask(rows: Rows, max_len: int) -> Batch:
    """The last `max_len` - 1 items of each history and the mask token after them, which is what is to be told.

    `targets` holds the rows' targets, or nothing but zeros where they have none.
    """
    items, lengths = tensors_of(rows)
    kept = lengths.clamp(max=max_len - 1)
    ends = (kept + 1).cumsum(0)
    shown = torch.full((int(ends[-1]),), MASK_ID, dtype=torch.int64)
    rows_of = torch.repeat_interleave(torch.arange(len(kept)), kept)
    from_end = torch.arange(len(rows_of)) - torch.repeat_interleave(kept.cumsum(0), kept)
    shown[ends[rows_of] - 1 + from_end] = items[lengths.cumsum(0)[rows_of] + from_end]
    targets = torch.zeros(len(kept), dtype=torch.int64) if rows.targets is None else long(rows.targets)
    return Batch(shown, kept + 1, ends - 1, targets)
