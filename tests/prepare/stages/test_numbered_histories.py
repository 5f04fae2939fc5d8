"""Ids of users: known ones, and new ones behind them."""

from pathlib import Path

import numpy as np
import polars as pl

from bert4rec.prepare.stages.numbered_histories import NumberedHistories
from tests.prepare.stages.rows import ordered


def test_known_users_keep_their_ids_and_new_ones_come_behind_them(tmp_path: Path) -> None:
    parts = ordered(tmp_path / "parts", [(2, [1, 0])], [("p", [0]), ("q", [3, 3, 1])], [], [("r", [1])], n_known=1)
    histories = NumberedHistories(parts, np.array([5, 2, 0, 3], np.int32), known=pl.Series("original", ["x", "y", "z"]))
    assert [part.rows() for part in histories] == [[(2, [2, 5])], [(3, [5]), (4, [3, 3, 2])], [(5, [2])]]
    assert (histories.n_rows, histories.columns) == (7, ["user", "item"])
    assert [part.rows() for part in histories.users()] == [
        [(0, "x", 0), (1, "y", 0), (2, "z", 2)],
        [(3, "p", 1), (4, "q", 3)],
        [(5, "r", 1)],
    ]
