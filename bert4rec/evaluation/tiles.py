"""The catalogue in tiles for evaluation, and the items of each tile that users have seen."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from bert4rec.evaluation.batches import chunks
from bert4rec.runtime.arrays import Int32s, Int64s
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.footprint import ROWS_PER_LOOKUP

MIN_TILE, MAX_TILE = 256, 4096  # items per product: enough work, and still in the cache
USERS_AT_ONCE = 128  # users per product
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
        step = max(1, MAX_TILE // self.tile)
        for first in range(0, len(tiles), step):
            yield tiles[first : first + step]

    def owners(self, items: Int32s, shares: Sequence[range]) -> Int64s:
        """Return the process [n] that scores the tile of each of the `items` [n]."""
        firsts, ends = np.array([self.items(tiles) for tiles in shares]).T
        in_order = np.lexsort((ends, firsts))  # an empty share precedes the share that begins at the same item
        return in_order[np.searchsorted(firsts[in_order], items, side="right") - 1]


class Seen:
    """Hold the items in some `tiles` that some users have seen: pairs of `users` [n], below `n_users`, and `items` [n].

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
