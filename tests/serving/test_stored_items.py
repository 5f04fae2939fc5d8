"""The items of a dataset are the same, whether the catalogue is small enough to be kept in memory or looked up."""

from pathlib import Path

import numpy as np
import pytest

from bert4rec.dataset.format import NO_ITEM
from bert4rec.serving import stored_items as module
from bert4rec.serving.stored_items import StoredItemIds
from tests.conftest import prepare_log
from tests.folders import write_catalogue


@pytest.mark.parametrize("block", [2, 3, 100])
def test_a_large_catalogue_is_the_same_as_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    others = {"title": ["C", None, "A", "E", ""], "price": [1.5, float("nan"), None, 2.0, 3.0], "kind": [*"xyxyx"]}
    folder = write_catalogue(tmp_path / "items", original=[*"cbaed"], train_count=[3, 2, 1, 0, 4], **others)
    small = StoredItemIds(folder)
    small.write_lines(tmp_path / "small.jsonl")
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    monkeypatch.setattr(module, "BLOCK_ITEMS", block)
    large = StoredItemIds(folder)
    large.write_lines(tmp_path / "large.jsonl")
    assert (tmp_path / "small.jsonl").read_bytes() == (tmp_path / "large.jsonl").read_bytes()
    for ids in (small, large):
        assert (len(ids), ids.have_titles, ids.are_numbers) == (5, True, False)
        assert (ids.of([4, 0, 4]), ids.titles_of([1, 3]), ids.of([])) == ([*"dcd"], ["", "E"], [])
        for _ in range(2):
            assert ids.indices(["d", "x", None, "a", "d", "c", " b"]).tolist() == [4, NO_ITEM, NO_ITEM, 2, 4, 0, 1]
        ids.look_up(["e"])
        assert ids.indices(["e", "\ud800", 7]).tolist() == [3, NO_ITEM, NO_ITEM]
        found = {item: original for items, part in ids.parts() for item, original in zip(items, part, strict=True)}
        assert [found[item] for item in range(5)] == [*"cbaed"]
        assert ids.columns.to_pydict() == small.columns.to_pydict()
        assert ids.slice(range(1, 4)).to_pydict() == small.columns.slice(1, 3).to_pydict()
        assert ids.slice(range(5, 5)).to_pydict() == small.columns.slice(5).to_pydict()
        assert ids.most_popular(2).tolist() == [4, 0]


def test_numbers_may_be_given_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare_log(tmp_path)
    small = StoredItemIds(folder)
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    large = StoredItemIds(folder)
    asked = ["7", 7.0, np.int64(7), "seven", 2**70, True, [7], 1]
    assert large.indices(asked).tolist() == small.indices(asked).tolist()
