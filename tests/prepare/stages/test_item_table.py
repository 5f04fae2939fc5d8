"""The table of items by dense id, with titles where there are some."""

from pathlib import Path

import numpy as np
import polars as pl

from bert4rec.prepare.stages.item_table import item_table
from bert4rec.prepare.stages.survey import Survey
from tests.prepare.stages.rows import ordered


def test_items_stand_by_dense_id_and_those_dropped_are_left_out(tmp_path: Path) -> None:
    rows = ordered(tmp_path / "parts", [(1, [0, 0, 2, 3])])
    survey = Survey(np.array([4]), np.array([1, 1, 0]), np.array([False]), None)
    ids = np.array([4, 0, 2, 3], np.int32)
    titles = pl.DataFrame({"item": ["d", "b"], "title": ["Drei", "Bee"]})
    found = item_table(rows, ids, survey, titles)
    assert found.rows() == [(2, "c", 1, 1, None), (3, "d", 1, 1, "Drei"), (4, "a", 2, 0, None)]
    assert item_table(rows, ids, survey, None).columns == ["item", "original", "count", "train_count"]
