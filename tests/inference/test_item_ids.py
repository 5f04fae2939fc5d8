"""Items by their own ids, numbers and text."""

from pathlib import Path

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
