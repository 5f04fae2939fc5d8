"""The tiles of the catalogue, and what of each is not counted for whom, worked out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert4rec.dataset.reader import Rows
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


def test_what_is_not_counted_stands_at_its_tile_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users a batch and three items a tile; ids begin with 2, so item 0 has the id 2."""
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MIN_TILE", 3)
    catalogue = Catalogue(7)
    histories, targets = [[2, 5], [8, 8], [4]], [3, 6, 2]
    rows = Rows(
        np.array([item for history in histories for item in history], np.int32),
        np.array([len(history) for history in histories]),
        np.array(targets, np.int32),
    )
    seen = Seen(rows, 2, catalogue, torch.device("cpu"))
    found = {
        (batch, tile): sorted(zip(*(part.tolist() for part in seen.at(range(tile, tile + 1), batch)), strict=True))
        for batch in range(2)
        for tile in catalogue.tiles
    }
    assert found == {
        (0, 0): [(0, 0), (0, 1)],  # the first user's item 0 and target 1
        (0, 1): [(0, 3), (1, 4)],  # the first user's item 3, the second one's target 4
        (0, 2): [(1, 6), (1, 6)],  # the second user's item 6, seen twice
        (1, 0): [(0, 0), (0, 2)],  # the third user's target 0 and item 2
        (1, 1): [],
        (1, 2): [],
    }
    assert [sorted(part.tolist()) for part in seen.at(range(1, 3), 0)] == [[0, 1, 1, 1], [3, 4, 6, 6]]
    assert (seen.n_users, seen.n_most) == (3, 3)


def test_tiles_come_in_groups_of_about_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MIN_TILE", 3)
    monkeypatch.setattr("bert4rec.evaluation.item_tiles.MAX_TILE", 7)
    catalogue = Catalogue(20)
    assert (catalogue.tile, catalogue.tiles) == (3, range(7))
    assert list(catalogue.groups(range(1, 6))) == [range(1, 3), range(3, 5), range(5, 6)]
    assert list(Catalogue(10**9).groups(range(2, 4))) == [range(2, 3), range(3, 4)]
