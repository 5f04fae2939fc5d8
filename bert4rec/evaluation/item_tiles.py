"""The catalogue cut into tiles for evaluation, and what of each tile not to count for whom."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bert4rec.dataset.reader import Rows
from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.footprint import ROWS_PER_LOOKUP

MIN_TILE, MAX_TILE = 256, 4096  # items whose scores are one product: enough work, and still in the cache
MIN_TILES, MAX_TILES = 32, 16_384  # tiles: enough for some processes, few enough for a loop


class Catalogue:
    """The items 0 … n_items - 1 in tiles, which depend on their number alone: a tile's scores are always one product.

    >>> [len(Catalogue(n).tiles) for n in (20, 3416, 10**9)]
    [1, 14, 16384]
    """

    def __init__(self, n_items: int) -> None:
        self._n_items = n_items
        self.tile = max(MIN_TILE, min(MAX_TILE, -(-n_items // MIN_TILES)), -(-n_items // MAX_TILES))
        self.tiles = range(-(-n_items // self.tile))

    def items(self, tiles: range) -> tuple[int, int]:
        """The first item of consecutive `tiles`, and the one after the last."""
        return min(tiles.start * self.tile, self._n_items), min(tiles.stop * self.tile, self._n_items)

    def lookups(self, partition: Partition) -> Iterator[range]:
        """This process's tiles, in as many lookups as every other process needs; some may be empty."""
        share, step = partition.of(len(self.tiles)), max(1, ROWS_PER_LOOKUP // self.tile)
        for first in range(0, partition.largest(len(self.tiles)), step):
            yield share[first : first + step]

    def groups(self, tiles: range) -> Iterator[range]:
        """Consecutive `tiles` in parts whose scores are looked at together, each about as many as a large tile."""
        step = max(1, MAX_TILE // self.tile)
        for first in range(0, len(tiles), step):
            yield tiles[first : first + step]


class Seen:
    """What not to count: the items that users have seen, and the targets themselves, by batch of users and tile."""

    def __init__(self, rows: Rows, batch_size: int, catalogue: Catalogue, device: torch.device) -> None:
        assert rows.targets is not None, "an evaluation split has targets"
        self.n_users, self._n_tiles = len(rows.lengths), len(catalogue.tiles)
        self.n_most = int(rows.lengths.max(initial=0)) + 1  # of the user who has most of them
        users = np.concatenate([np.repeat(np.arange(self.n_users), rows.lengths), np.arange(self.n_users)])
        items = np.concatenate([rows.items, rows.targets]).astype(np.int64) - FIRST_ITEM_ID
        cell = users // batch_size * self._n_tiles + items // catalogue.tile
        n_cells = -(-self.n_users // batch_size) * self._n_tiles
        # Numbers of 16 bits, where they suffice, are sorted by counting.
        order = np.argsort(cell.astype(np.min_scalar_type(n_cells)), kind="stable")
        self._bounds = np.concatenate([[0], np.bincount(cell, minlength=n_cells).cumsum()])
        self._users = torch.from_numpy(users[order] % batch_size).to(device)
        self._items = torch.from_numpy(items[order]).to(device)

    def at(self, tiles: range, batch: int) -> tuple[Tensor, Tensor]:
        """What a batch of users has seen of consecutive `tiles`: the rows of the users there, and the items."""
        first = batch * self._n_tiles
        where = slice(self._bounds[first + tiles.start], self._bounds[first + tiles.stop])
        return self._users[where], self._items[where]
