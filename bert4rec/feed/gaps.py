"""The time between two items of a sequence, at each position of ragged sequences, and when predictions are made.

Shapes: N positions in all, B sequences; `seconds` [N] int64, of one sequence after another, `lengths` [B].
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def since_previous(seconds: Tensor, lengths: Tensor) -> Tensor:
    """Return the seconds since the previous position [N]; 0 at the first of a sequence.

    >>> since_previous(torch.tensor([5, 7, 20, 100]), torch.tensor([3, 1])).tolist()
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


def while_asking(seconds: Tensor, lengths: Tensor, at: Tensor | None, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Return the gaps of histories that query at `at` [B], and these instants [B].

    Without `at` nobody knows when the next item comes: they ask at the instant of their last one.

    A causal model is told at each position when the next item comes, or where that is not known how long ago the one
    before was. Another one has a position more behind each history, the mask token's, and gets the latter of all.

    >>> seconds, lengths, at = torch.tensor([5, 7, 20, 100]), torch.tensor([3, 1]), torch.tensor([50, 101])
    >>> while_asking(seconds, lengths, at, is_causal=True)[0].tolist()
    [2, 13, 30, 1]
    >>> while_asking(seconds, lengths, at, is_causal=False)[0].tolist()
    [0, 2, 13, 30, 0, 1]
    """
    ends = lengths.cumsum(0) - 1
    last = seconds[ends] if at is None else at
    if is_causal and at is None:
        return since_previous(seconds, lengths), last
    if is_causal:
        return until_next(seconds, lengths).index_copy(0, ends, last - seconds[ends]), last
    before = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    places = torch.arange(len(seconds), device=lengths.device) + before
    whole = last.new_empty(len(seconds) + len(lengths)).index_copy(0, places, seconds)
    masks = ends + 1 + torch.arange(len(lengths), device=lengths.device)
    return since_previous(whole.index_copy(0, masks, last), lengths + 1), last
