"""The exact k best items for each user: the catalogue is processed in tiles, and ties go to the lower id."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from bert4rec.runtime.collectives import Partition

TILE = 16_384  # items that are scored at once
BLOCKS_PER_TILE = 1024  # blocks of a tile whose highest scores are compared first


@dataclass
class TopK:
    """The best k items so far of U users: `scores` [U, k], best first, and their `indices` [U, k].

    Missing items have the score -inf. Tiles must be added in the order of their items.
    """

    scores: Tensor
    indices: Tensor

    @classmethod
    def nothing(cls, n_users: int, k: int, *, dtype: torch.dtype, device: torch.device) -> Self:
        """Return empty lists: all scores are -inf."""
        scores = torch.full((n_users, k), -torch.inf, dtype=dtype, device=device)
        return cls(scores, torch.zeros(n_users, k, dtype=torch.int64, device=device))

    def update(self, users: slice, scores: Tensor, first: int) -> None:
        """Update the lists of `users` with the items `first`, `first` + 1, …, by `scores` [B, C]; -inf is no item."""
        if scores.device.type != "cpu":  # no selection of rows, for which the host would wait for the device
            self._update_all(users, scores, first)
            return
        best_scores, indices = self.scores[users], self.indices[users]
        k, highest = best_scores.shape[1], _highest(scores)
        # A tie with an earlier item loses, since its id is higher.
        rows = (highest.amax(1) > best_scores[:, -1]).nonzero().squeeze(1)
        if not len(rows):
            return
        if 2 * len(rows) < len(scores):
            scores, highest = scores[rows], highest[rows]
        else:  # selecting nearly all rows would only copy them
            rows = torch.arange(len(scores), device=rows.device)
        best, columns = _best(scores, highest, k)
        candidates = torch.cat([best_scores[rows], best], 1), torch.cat([indices[rows], columns + first], 1)
        order = candidates[0].sort(dim=1, descending=True, stable=True).indices[:, :k]
        best_scores[rows], indices[rows] = (values.gather(1, order) for values in candidates)

    def _update_all(self, users: slice, scores: Tensor, first: int) -> None:
        """Update the lists of `users` by one sort of each row, which an accelerator does at once."""
        columns = torch.arange(first, first + scores.shape[1], device=scores.device).expand(scores.shape)
        candidates = torch.cat([self.scores[users], scores], 1), torch.cat([self.indices[users], columns], 1)
        order = candidates[0].sort(dim=1, descending=True, stable=True).indices[:, : self.scores.shape[1]]
        self.scores[users], self.indices[users] = (values.gather(1, order) for values in candidates)

    def merge_share(self, partition: Partition) -> "TopK":
        """Return the best items of this process's share of the users, from the lists of all processes."""
        if partition.n_processes == 1:
            return self
        n_users, k = self.scores.shape
        shares, places = partition.parts(n_users), partition.parts(partition.n_processes)
        by_item = torch.tensor([place.start for place in places], device=self.scores.device).argsort()
        scores, indices = (
            partition.exchange(torch.cat([values[share.start : share.stop] for share in shares]), [*map(len, shares)])
            .view(partition.n_processes, len(shares[partition.rank]), k)[by_item]
            .transpose(0, 1)
            .flatten(1)
            for values in (self.scores, self.indices)
        )
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
        return TopK(scores.gather(1, order), indices.gather(1, order))

    def merge_all(self, partition: Partition) -> "TopK":
        """Return the best items of all users, from the lists of all processes."""
        local, share = self.merge_share(partition), partition.of(len(self.scores))
        numbers = torch.arange(share.start, share.stop, device=self.scores.device)
        users, scores, indices = (partition.concatenate(v)[0] for v in (numbers, local.scores, local.indices))
        by_user = users.argsort()
        return TopK(scores[by_user], indices[by_user])

    def without(self, rows: Tensor, items: Tensor, n_users: int, k: int) -> "TopK":
        """Return the best k for each of `n_users`, from the single list of this object, without excluded items.

        The excluded items are pairs of `rows` [N], the users, and `items` [N]. The list must be long enough to leave k
        items after the exclusion, if the catalogue has as many.
        """
        n = min(self.scores.shape[1], k + int(torch.bincount(rows).max()))
        scores, indices = self.scores[0, :n], self.indices[0, :n]
        in_order, order = indices.sort()
        places = torch.searchsorted(in_order, items).clamp(max=n - 1)
        is_listed = in_order[places] == items
        left = torch.arange(n, device=items.device).repeat(n_users, 1)
        left[rows[is_listed], order[places[is_listed]]] = n
        left = left.topk(min(k, n), dim=1, largest=False).values
        places = left.clamp(max=n - 1)
        return TopK(torch.where(left < n, scores[places], -torch.inf), indices[places])


class TileScorer(Protocol):
    """The items of a catalogue that are scored in another way than by products of vectors."""

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def tile_scores(self, queries: Tensor, first: int, stop: int) -> Tensor:
        """Return a new tensor [B, C] of the scores of the items `first` … `stop` - 1 for `queries` [B, D]."""
        ...


def top_k(
    hidden: Tensor, vectors: Tensor | TileScorer, k: int, *, adjust: Callable[[Tensor, int], None] | None = None,
    norms: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return scores and indices [B, k] of the best rows of `vectors` [V, D] for `hidden` [B, D], best first.

    Instead of vectors, a `TileScorer` can score the rows. Scores have the precision of `hidden`, at least float32.

    `adjust` is called with the scores [B, C] of a tile and its first row, and changes them in place: the score -inf
    excludes a row. If fewer than k rows are left, the missing ones have the score -inf. With `norms` [V, 1], rows are
    divided by them first.
    """
    best = TopK.nothing(len(hidden), k, dtype=scores_dtype(hidden), device=hidden.device)
    for first, scores in _tiles(hidden, vectors, norms):
        if adjust is not None:
            adjust(scores, first)
        best.update(slice(None), scores, first)
    return best.scores, best.indices


def scores_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of the scores of `top_k`."""
    return torch.promote_types(hidden.dtype, torch.float32)


def _tiles(hidden: Tensor, vectors: Tensor | TileScorer, norms: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """Yield the first row of each tile, and the tile's scores [B, C], which the next tile may overwrite."""
    if not isinstance(vectors, Tensor):
        for first in range(0, len(vectors), TILE):
            yield first, vectors.tile_scores(hidden, first, min(first + TILE, len(vectors)))
        return
    # Reused for the scores of each tile: allocating new pages takes longer than the products.
    room = hidden.new_empty(len(hidden) * min(TILE, len(vectors)))
    for first in range(0, len(vectors), TILE):
        tile = vectors[first : first + TILE]
        if norms is not None:
            tile = tile / norms[first : first + TILE]
        scores = torch.mm(hidden, tile.T, out=room[: len(hidden) * len(tile)].view(-1, len(tile)))
        yield first, scores.to(scores_dtype(hidden))


def log_shares(
    hidden: Tensor, vectors: Tensor, index: int, *, adjust: Callable[[Tensor, int], None] | None = None
) -> Tensor:
    """Return log softmax of the scores of `vectors` [V, D] for `hidden` [B, D], at the row `index`, as float64 [B].

    `adjust` changes the scores as in `top_k`.
    """
    total = torch.full((len(hidden),), -torch.inf, dtype=torch.float64, device=hidden.device)
    score = total
    for first in range(0, len(vectors), TILE):
        scores = hidden @ vectors[first : first + TILE].T
        if adjust is not None:
            adjust(scores, first)
        total = torch.logaddexp(total, scores.double().logsumexp(1))
        if first <= index < first + TILE:
            score = scores[:, index - first].double()
    return score - total


def excluder(rows: Tensor, items: Tensor) -> Callable[[Tensor, int], None]:
    """Return a function for `top_k` that sets the scores of the pairs (`rows` [N], `items` [N]) to -inf."""

    def exclude(scores: Tensor, first: int) -> None:
        is_in_tile = (items >= first) & (items < first + scores.shape[1])
        scores[rows[is_in_tile], items[is_in_tile] - first] = -torch.inf

    return exclude


def _highest(scores: Tensor) -> Tensor:
    """Return the highest of `scores` [B, C] in each of `BLOCKS_PER_TILE` blocks, [B, n]; `scores` itself if C is small.

    Block b has the columns b, b + n, …, which vectorizes the comparison.
    """
    n_left = scores.shape[1] % BLOCKS_PER_TILE
    n_whole = scores.shape[1] - n_left
    if n_whole < 2 * BLOCKS_PER_TILE:
        return scores
    highest = scores[:, :n_whole].unflatten(1, (-1, BLOCKS_PER_TILE)).amax(1)
    highest[:, :n_left] = torch.maximum(highest[:, :n_left], scores[:, n_whole:])
    return highest


def _best(scores: Tensor, highest: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return at most `k` of the best `scores` [B, C] and their columns, ordered by column; ties go to the first column.

    Scores outside the k blocks with the `highest` scores are at most the (k + 1)-th highest of the blocks. Only if this
    equals the k-th best score, a row is searched again in all columns.
    """
    n_columns = scores.shape[1]
    if n_columns < 2 * BLOCKS_PER_TILE or 4 * k > BLOCKS_PER_TILE:
        return _best_of_all(scores, k)
    limits, blocks = highest.topk(k + 1, dim=1)
    blocks = blocks[:, :k].sort(dim=1).values
    columns = (torch.arange(0, n_columns, BLOCKS_PER_TILE, device=scores.device)[:, None] + blocks[:, None]).flatten(1)
    within = columns.clamp(max=n_columns - 1)
    best, places = _best_of_all(scores.gather(1, within).masked_fill_(columns >= n_columns, -torch.inf), k)
    best_columns = within.gather(1, places)
    is_unsure = (limits[:, k] == best.amin(1)).nonzero().squeeze(1)
    if len(is_unsure):
        best[is_unsure], best_columns[is_unsure] = _best_of_all(scores[is_unsure], k)
    return best, best_columns


def _best_of_all(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the same as `_best`, by a search in all columns."""
    values, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    if values.shape[1] > k:
        columns = columns[:, :k]
        rows = (values[:, k] == values[:, k - 1]).nonzero().squeeze(1)  # topk returns arbitrary ones of equal scores
        if len(rows):
            columns[rows] = _first_best(scores[rows], values[rows, k - 1 : k], k)
    columns = columns.sort(dim=1).values
    return scores.gather(1, columns), columns


def _first_best(scores: Tensor, limits: Tensor, k: int) -> Tensor:
    """Return the columns [B, k] of the `scores` [B, C] above `limits` [B, 1], and of the first equal ones, up to k."""
    is_above, is_equal = scores > limits, scores == limits
    n_missing = k - is_above.sum(1, keepdim=True)
    return (is_above | (is_equal & (is_equal.cumsum(1) <= n_missing))).nonzero()[:, 1].view(-1, k)
