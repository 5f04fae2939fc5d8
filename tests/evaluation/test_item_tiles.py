"""The tiles of the catalogue, and what of each is not counted for whom, worked out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.evaluation.item_tiles import Catalogue, Seen
from bert4rec.runtime.collectives import Partition


@given(n_items=st.integers(1, 200_000), n_processes=st.integers(1, 9))
def test_the_processes_share_the_tiles_in_equally_many_lookups(n_items: int, n_processes: int) -> None:
    catalogue = Catalogue(n_items)
    lookups = [list(catalogue.lookups(Partition(rank, n_processes))) for rank in range(n_processes)]
    assert len({len(tiles) for tiles in lookups}) == 1
    assert [tile for tiles in lookups for some in tiles for tile in some] == list(catalogue.tiles)
    bounds = [catalogue.items(range(tile, tile + 1)) for tile in catalogue.tiles]
    assert [bounds[0][0], *(stop for _, stop in bounds)] == [*(start for start, _ in bounds), n_items]


def test_tiles_end_with_the_catalogue() -> None:
    """At least 256 items a tile: 600 items are tiles of 256, 256 and 88."""
    catalogue = Catalogue(600)
    assert (catalogue.tile, catalogue.tiles) == (256, range(3))
    places = [catalogue.items(tiles) for tiles in (range(1), range(2, 3), range(3), range(3, 3))]
    assert places == [(0, 256), (512, 600), (0, 600), (600, 600)]


@given(n_items=st.integers(1, 20_000), n_processes=st.integers(1, 9), item=st.integers(0, 19_999))
def test_an_item_belongs_to_the_process_that_scores_its_tile(n_items: int, n_processes: int, item: int) -> None:
    catalogue, item = Catalogue(n_items), item % n_items
    (owner,) = catalogue.owners(np.array([item], np.int32), Partition(0, n_processes))
    assert item // catalogue.tile in Partition(int(owner), n_processes).of(len(catalogue.tiles))


def test_what_is_not_counted_stands_at_its_tile_and_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users at once, three items a tile, of which the last one has but one."""
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MIN_TILE", 3)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.SCORES_AT_ONCE", 7)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MIN_USERS", 1)
    catalogue, cpu = Catalogue(7), torch.device("cpu")
    users, items = np.array([0, 0, 1, 1, 2, 0, 1, 2], np.int32), np.array([0, 3, 6, 6, 2, 1, 4, 0], np.int32)
    seen = Seen(users, items, 3, catalogue, catalogue.tiles, cpu)
    found = {(part, tile): sorted(seen.at(tile, part).tolist()) for part in range(2) for tile in catalogue.tiles}
    assert found == {
        (0, 0): [0, 1],  # of the first user the items 0 and 1
        (0, 1): [0, 3 + 1],  # item 3 of the first user, item 4 of the second
        (0, 2): [1, 1],  # item 6 of the second user, seen twice: the first place of the second row of one
        (1, 0): [0, 2],  # of the third user the items 0 and 2
        (1, 1): [],
        (1, 2): [],
    }
    is_last = items == 6
    of_last = Seen(users[is_last], items[is_last], 3, catalogue, catalogue.tiles[2:], cpu)
    assert (of_last.at(2, 0).tolist(), of_last.at(2, 1).tolist()) == ([1, 1], [])


def test_so_many_users_come_at_once_that_their_scores_stay_in_the_cache() -> None:
    found = [(Catalogue(n).tile, Catalogue(n).users_at_once) for n in (20, 3416, 32_768, 10**6)]
    assert found == [(256, 1024), (256, 1024), (1024, 256), (4096, 128)]
