"""The catalogue in tiles for evaluation, the items of each tile that users have seen, and those that equal targets."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.evaluation.batches import chunks
from bert4rec.runtime.arrays import Int32s, Int64s
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.footprint import ROWS_PER_LOOKUP

MIN_TILE, MAX_TILE = 256, 4096  # items per product: enough work, and still in the cache
USERS_AT_ONCE = 128  # users per product
VECTORS_AT_ONCE = 1024  # for their keys, in cache
FACTOR_SEED = 0  # of the factors of the keys
MIN_TILES, MAX_TILES = 32, 16_384  # tiles: enough for several processes, few enough for a loop


class Catalogue:
    """The items 0 … n_items - 1 in tiles, which depend on n_items alone; one product scores a tile.

    >>> [len(Catalogue(n).tiles) for n in (20, 3416, 10**9)]
    [1, 14, 16384]
    """

    def __init__(self, n_items: int) -> None:
        self._n_items = n_items
        self.tile = max(MIN_TILE, min(MAX_TILE, -(-n_items // MIN_TILES)), -(-n_items // MAX_TILES))
        self.tiles = range(-(-n_items // self.tile))

    @property
    def together(self) -> int:
        """Return how many items are compared together."""
        return max(1, MAX_TILE // self.tile) * self.tile

    def items(self, tiles: range) -> tuple[int, int]:
        """Return the first item of consecutive `tiles`, and the item after the last."""
        return min(tiles.start * self.tile, self._n_items), min(tiles.stop * self.tile, self._n_items)

    def lookups(self, partition: Partition) -> Iterator[range]:
        """Yield this process's tiles by lookup; all processes have the same number of lookups, some of them empty."""
        share, step = partition.of(len(self.tiles)), max(1, ROWS_PER_LOOKUP // self.tile)
        for first in range(0, partition.largest(len(self.tiles)), step):
            yield share[first : first + step]

    def groups(self, tiles: range) -> Iterator[range]:
        """Yield groups of consecutive `tiles` that are compared together, of about `MAX_TILE` items each."""
        step = self.together // self.tile
        for first in range(0, len(tiles), step):
            yield tiles[first : first + step]

    def owners(self, items: Int32s, shares: Sequence[range]) -> Int64s:
        """Return the process [n] that scores the tile of each of the `items` [n]."""
        firsts, ends = np.array([self.items(tiles) for tiles in shares]).T
        in_order = np.lexsort((ends, firsts))  # an empty share precedes the share that begins at the same item
        return in_order[np.searchsorted(firsts[in_order], items, side="right") - 1]


class Seen:
    """The items in some `tiles` that some users have seen: pairs of `users` [n], below `n_users`, and `items` [n].

    The seen items are those that the ranker excludes, or the targets.
    """

    def __init__(
        self, users: Int32s, items: Int32s, n_users: int, catalogue: Catalogue, tiles: range, device: torch.device
    ) -> None:
        self._first, self._n_tiles, self._n_users = tiles.start, len(tiles), n_users
        cell = users // USERS_AT_ONCE * self._n_tiles + (items // catalogue.tile - tiles.start)
        n_cells = -(-n_users // USERS_AT_ONCE) * self._n_tiles
        # NumPy sorts integers of at most 16 bits with a radix sort.
        order = np.argsort(cell.astype(np.min_scalar_type(n_cells)), kind="stable")
        self._bounds = np.concatenate([[0], np.bincount(cell, minlength=n_cells).cumsum()])
        within, items = (users[order] % USERS_AT_ONCE).astype(np.int64), items[order].astype(np.int64)
        self._users, self._items = (torch.from_numpy(v).to(device, non_blocking=True) for v in (within, items))

    @property
    def parts(self) -> Iterator[slice]:
        """Yield the parts of the users whose scores are compared together."""
        return chunks(self._n_users, USERS_AT_ONCE)

    def at(self, tiles: range, part: int) -> tuple[Tensor, Tensor]:
        """Return the pairs of a part of the users in consecutive `tiles`: rows within the part, and items."""
        first = part * self._n_tiles - self._first
        where = slice(self._bounds[first + tiles.start], self._bounds[first + tiles.stop])
        return self._users[where], self._items[where]


class Twins:
    """Find the items whose vectors equal that of a target, of users whose targets are at `places` [U] of `items` [n].

    Equal items tie, but the score of a target is a sum of products, and that of a candidate an element of a matrix
    product: they round differently. So twins get the score of the target. The items are distinct and have `vectors`
    [n, D].
    """

    def __init__(self, items: Tensor, vectors: Tensor, places: Tensor) -> None:
        keys = keys_of(vectors)
        self._keys, order = keys.sort()
        self._items, self._user_keys = items[order], keys[places]

    def among(self, first: int, vectors: Tensor) -> "Equal | None":
        """Return which of `vectors` [V, D], those of the items from `first` on, are twins; None for none of them.

        An item that is the only target with its vector is not its own twin. Waits for the device.
        """
        keys = keys_of(vectors)
        start, stop = (torch.searchsorted(self._keys, keys, right=is_right) for is_right in (False, True))
        items = torch.arange(first, first + len(keys), device=keys.device)
        is_alone = (stop - start == 1) & (self._items[start.clamp(max=len(self._items) - 1)] == items)
        columns = ((stop > start) & ~is_alone).nonzero().squeeze(1)
        return Equal(self._user_keys, columns, keys[columns]) if len(columns) else None


class Equal(NamedTuple):
    """The `columns` [m] of items that are twins of targets, their `keys` [m], and those of the targets [U]."""

    user_keys: Tensor
    columns: Tensor
    keys: Tensor

    def between(self, start: int, stop: int) -> "Equal":
        """Return those in the columns `start` to `stop`, counted from `start`."""
        is_inside = (self.columns >= start) & (self.columns < stop)
        return Equal(self.user_keys, self.columns[is_inside] - start, self.keys[is_inside])

    def tie(self, scores: Tensor, users: slice, target_scores: Tensor) -> None:
        """Set the `scores` [B, C] by `users` of the twins of their targets to `target_scores` [U] of all users.

        A score of -inf stays: the item is not a candidate.
        """
        columns = scores[:, self.columns]
        is_tied = (self.user_keys[users, None] == self.keys) & columns.isfinite()
        scores[:, self.columns] = torch.where(is_tied, target_scores[users, None], columns)


def keys_of(vectors: Tensor) -> Tensor:
    """Return a hash [n] int64 of the bits of each of `vectors` [n, D], the same for 0 and -0.

    >>> keys_of(torch.tensor([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]])).unique().numel()
    2
    """
    n_pairs = -(-vectors.shape[1] // 2)  # of float32, 64 bits each
    factors = torch.from_numpy(np.random.default_rng(FACTOR_SEED).integers(1, 2**62, n_pairs) * 2 + 1)
    factors = factors.to(vectors.device, non_blocking=True)
    bits = F.pad(vectors.float() + 0.0, (0, vectors.shape[1] % 2)).view(torch.int64)
    return torch.cat([(part * factors).sum(1) for part in bits.split(VECTORS_AT_ONCE)])
