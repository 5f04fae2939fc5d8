"""BERT masking of a ragged batch, as a pure function.

Every decision is a hash of (seed, epoch, sequence index, position), not a draw from a stream: the masks of a sequence
are the same on whichever rank, in whichever batch and after whichever restart it is met.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bert4rec.dataset.schema import FIRST_ITEM_ID, MASK_ID
from bert4rec.feed.batch import Batch

# Constants of splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit integers.
_GAMMA = -0x61C8864680B583EB
_MIX_1 = -0x40A7B892E31B1A47
_MIX_2 = -0x6B2FB644ECCEEE15


@dataclass(frozen=True)
class Masked:
    """What the model sees and what it shall say: `items` [total], `positions` [M] into it, `targets` [M]."""

    items: Tensor
    positions: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Masking:
    """Makes masked batches of sequences: `mask_items` with these arguments."""

    seed: int
    n_rows: int
    mask_prob: float
    last_item_mask_prob: float
    mask_token_share: float
    random_token_share: float

    def __call__(self, items: Tensor, lengths: Tensor, sequence_ids: Tensor, epoch: int) -> Batch:
        """What the model is trained on in `epoch`."""
        masked = mask_items(items, lengths, sequence_ids, epoch=epoch, **vars(self))
        return Batch(masked.items, lengths, masked.positions, masked.targets)


def mask_items(
    items: Tensor,
    lengths: Tensor,
    sequence_ids: Tensor,
    *,
    epoch: int,
    seed: int,
    n_rows: int,
    mask_prob: float,
    last_item_mask_prob: float,
    mask_token_share: float,
    random_token_share: float,
) -> Masked:
    """Choose the positions to predict and hide them (BERT4Rec, Sun et al. 2019, section 3.6).

    `items` [total] int64 are the sequences one after another, `lengths` [B] their lengths, `sequence_ids` [B] what
    identifies each in the whole training set. With probability `last_item_mask_prob` only the last item of a sequence
    is masked, as at inference; else each position with `mask_prob`, and at least one. A masked position shows the
    mask token (`mask_token_share`; always, for the last item alone), a random item of the catalogue of `n_rows` table
    rows (`random_token_share`), or itself.
    """
    rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    starts = lengths.cumsum(0) - lengths
    columns = torch.arange(len(items)) - starts[rows]
    sequence_keys = _hash(_hash(torch.tensor([seed]), epoch)[0], sequence_ids)
    keys = _hash(sequence_keys[rows], columns)

    only_last = _uniform(sequence_keys, 1) < last_item_mask_prob
    chosen = (_uniform(keys, 2) < mask_prob) & ~only_last[rows]
    n_chosen = torch.zeros_like(lengths).index_add_(0, rows, chosen.long())
    fallback = (_uniform(sequence_keys, 3) * lengths).long()
    fallback = starts + torch.where(only_last, lengths - 1, fallback)
    chosen[fallback[(n_chosen == 0) & (lengths > 0)]] = True

    kind = _uniform(keys, 4)
    show_mask = (kind < mask_token_share) | only_last[rows]
    show_random = ~show_mask & (kind < mask_token_share + random_token_share)
    random_items = FIRST_ITEM_ID + (_uniform(keys, 5) * (n_rows - FIRST_ITEM_ID)).long()
    shown = torch.where(chosen & show_mask, MASK_ID, items)
    shown = torch.where(chosen & show_random, random_items, shown)
    positions = chosen.nonzero().squeeze(1)
    return Masked(shown, positions, items[positions])


def _hash(key: Tensor, counter: Tensor | int) -> Tensor:
    """splitmix64 of a counter in the stream named `key`; 64-bit products wrap around."""
    x = key + (torch.as_tensor(counter) + 1) * _GAMMA
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """The logical (unsigned) right shift that torch lacks."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _uniform(keys: Tensor, purpose: int) -> Tensor:
    """float64 in [0, 1) from the upper 53 bits, an independent number for each `purpose`."""
    return _shift(_hash(keys, -purpose - 1), 11).double() * 2.0**-53
