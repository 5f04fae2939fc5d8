"""The tiles of the catalogue, and what of each is not counted for whom, worked out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.evaluation.item_tiles import Catalogue, Seen
from bert4rec.runtime.collectives import Partition


@settings(deadline=None)
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


@settings(deadline=None)
@given(n_items=st.integers(1, 20_000), n_processes=st.integers(1, 9), item=st.integers(0, 19_999))
def test_an_item_belongs_to_the_process_that_scores_its_tile(n_items: int, n_processes: int, item: int) -> None:
    catalogue, item = Catalogue(n_items), item % n_items
    shares = [Partition(rank, n_processes).of(len(catalogue.tiles)) for rank in range(n_processes)]
    for in_any_order in (shares, shares[::-1], shares[1::2] + shares[::2]):
        (owner,) = catalogue.owners(np.array([item], np.int32), in_any_order)
        assert item // catalogue.tile in in_any_order[int(owner)]


def test_what_is_not_counted_stands_at_its_tile_and_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users at once, three items a tile."""
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MIN_TILE", 3)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.USERS_AT_ONCE", 2)
    catalogue, cpu = Catalogue(7), torch.device("cpu")
    users, items = np.array([0, 0, 1, 1, 2, 0, 1, 2], np.int32), np.array([0, 3, 6, 6, 2, 1, 4, 0], np.int32)
    seen = Seen(users, items, 3, catalogue, catalogue.tiles, cpu)
    found = {
        (part, tile): sorted(zip(*(values.tolist() for values in seen.at(range(tile, tile + 1), part)), strict=True))
        for part in range(2)
        for tile in catalogue.tiles
    }
    assert found == {
        (0, 0): [(0, 0), (0, 1)],
        (0, 1): [(0, 3), (1, 4)],
        (0, 2): [(1, 6), (1, 6)],  # the second user's item 6, seen twice
        (1, 0): [(0, 0), (0, 2)],  # the third user is the first of the next ones
        (1, 1): [],
        (1, 2): [],
    }
    assert [sorted(values.tolist()) for values in seen.at(range(1, 3), 0)] == [[0, 1, 1, 1], [3, 4, 6, 6]]
    is_last = items == 6
    of_last = Seen(users[is_last], items[is_last], 3, catalogue, catalogue.tiles[2:], cpu)
    assert [[values.tolist() for values in of_last.at(range(2, 3), part)] for part in (0, 1)] == [
        [[1, 1], [6, 6]],
        [[], []],
    ]


def test_tiles_come_in_groups_of_about_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MIN_TILE", 3)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MAX_TILE", 7)
    catalogue = Catalogue(20)
    assert (catalogue.tile, catalogue.tiles) == (3, range(7))
    assert list(catalogue.groups(range(1, 6))) == [range(1, 3), range(3, 5), range(5, 6)]
    assert list(Catalogue(10**9).groups(range(2, 4))) == [range(2, 3), range(3, 4)]
