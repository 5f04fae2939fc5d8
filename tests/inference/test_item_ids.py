"""Items by their own ids, numbers and text."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec.inference.item_ids import UNKNOWN, ItemIds
from bert4rec.runtime.errors import DataError


def test_numbers_may_be_given_as_text() -> None:
    ids = ItemIds(pa.array([7, 1, 30]))
    assert ids.indices([30, "7", "x", None, 2, 1.0]).tolist() == [2, 0, UNKNOWN, UNKNOWN, UNKNOWN, 1]
    assert ids.indices([1.7, "1.7", float("inf"), float("nan"), [7]]).tolist() == [UNKNOWN] * 5
    assert ids.of([2, 0]) == [30, 7]
    assert ids.titles_of([2, 0]) == ["", ""]


def test_text_stays_text() -> None:
    ids = ItemIds(pa.array(["7", "SKU-1"], pa.large_string()), pa.array(["Seven", ""]))
    assert ids.indices([7, "SKU-1", "sku-1"]).tolist() == [0, 1, UNKNOWN]
    assert ids.titles_of([0, 1]) == ["Seven", ""]
    assert len(ids) == 2


def test_the_table_of_a_dataset_is_read_by_id(tmp_path: Path) -> None:
    table = pa.table({"item": [3, 2], "original": ["b", "a"], "title": [None, "A"], "count": [1, 1]})
    pq.write_table(table, tmp_path / "items.parquet")
    ids = ItemIds.read(tmp_path)
    assert ids.of([0, 1]) == ["a", "b"]
    assert ids.titles_of([0, 1]) == ["A", ""]
    with pytest.raises(DataError, match=r"nowhere/items.parquet: cannot be read"):
        ItemIds.read(Path("nowhere"))


def test_text_may_be_longer_than_32_bits_can_count(tmp_path: Path) -> None:
    """Offsets of 32 bits end at 2 GiB of text, as 62 million ids of 36 characters have."""
    table = pa.table({"item": [2, 3], "original": ["a", "b"], "title": ["A", None]})
    pq.write_table(
        table.cast(pa.schema([("item", pa.int32()), ("original", pa.string()), ("title", pa.string())])),
        tmp_path / "items.parquet",
        row_group_size=1,
    )
    ids = ItemIds.read(tmp_path)
    ids.write_lines(tmp_path / "items.jsonl")
    for found in (ids, ItemIds.read_lines(tmp_path / "items.jsonl", are_numbers=False)):
        assert found.titles is not None
        assert (found.originals.type, found.titles.type) == (pa.large_string(), pa.large_string())
        assert (found.of([0, 1]), found.titles_of([0, 1])) == (["a", "b"], ["A", ""])


def test_the_most_popular_items_have_most_training_positions(tmp_path: Path) -> None:
    table = {"item": [4, 2, 3, 5], "original": ["c", "a", "b", "d"], "count": [9] * 4, "train_count": [1, 3, 3, 8]}
    pq.write_table(pa.table(table), tmp_path / "items.parquet")
    ids = ItemIds.read(tmp_path)
    ids.write_lines(tmp_path / "items.jsonl")
    for known in (ids, ItemIds.read_lines(tmp_path / "items.jsonl", are_numbers=False)):
        assert known.of(known.most_popular(2).tolist()) == ["d", "a"]
        assert known.of(known.most_popular(9, np.array([False, False, True, True])).tolist()) == ["a", "b"]
        assert known.most_popular(3, np.ones(4, bool)).tolist() == []
    assert ItemIds(pa.array(["a"])).most_popular(3).tolist() == []
