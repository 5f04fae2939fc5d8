"""The best items for each user, exactly: the catalogue streams by in tiles, and ties go to the lower id."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

TILE = 16_384  # items that are scored at once


def top_k(
    hidden: Tensor, vectors: Tensor, k: int, *, exclude: Callable[[Tensor, int], None] | None = None
) -> tuple[Tensor, Tensor]:
    """The scores [B, k] of the best rows of `vectors` [V, D] for `hidden` [B, D], best first, and their indices [B, k].

    `exclude` is called with the scores [B, C] of a tile and its first row, and sets those to -inf that are not to be
    found. Where fewer than k are left, -inf stands in place of scores.
    """
    scores = hidden.new_full((len(hidden), k), -torch.inf)
    indices = torch.zeros(len(hidden), k, dtype=torch.int64, device=hidden.device)
    for first, tile in _tiles(vectors):
        of_tile = (hidden @ tile.T).float()
        if exclude is not None:
            exclude(of_tile, first)
        # A tie with what was found before loses: its id is higher.
        rows = (of_tile.amax(1) > scores[:, -1]).nonzero().squeeze(1)
        if len(rows):
            best, columns = _best(of_tile if len(rows) == len(of_tile) else of_tile[rows], k)
            candidates = torch.cat([scores[rows], best], 1), torch.cat([indices[rows], columns + first], 1)
            order = candidates[0].sort(dim=1, descending=True, stable=True).indices[:, :k]
            scores[rows], indices[rows] = (values.gather(1, order) for values in candidates)
    return scores, indices


def _tiles(vectors: Tensor) -> Iterator[tuple[int, Tensor]]:
    for first in range(0, len(vectors), TILE):
        yield first, vectors[first : first + TILE]


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """At most `k` of the best `scores` [B, C], in the order of their columns [B, ≤ k]; the first ones of equal ones."""
    values, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    if values.shape[1] > k:
        columns = columns[:, :k]
        for row in (values[:, k] == values[:, k - 1]).nonzero().squeeze(1).tolist():  # topk takes any of equal ones
            columns[row] = scores[row].sort(descending=True, stable=True).indices[:k]
    columns = columns.sort(dim=1).values
    return scores.gather(1, columns), columns
