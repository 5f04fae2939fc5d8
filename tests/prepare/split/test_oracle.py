"""The ranks of an oracle that knows the weights of all items, by hand."""

import numpy as np
import polars as pl
import pytest

from bert4rec.prepare import synthetic as oracles
from bert4rec.prepare.synthetic import Oracle, oracle_ranks

NEGATIVES, LIST = ("popular_negatives", "uniform_negatives"), pl.List(pl.Int32)
ORACLE = Oracle(
    cluster=np.zeros(5, np.int64), weight=np.array([3.0, 1.0, 2.0, 2.0, 2.0]),
    current=np.array([0, 0]), following=np.array([0, 0]), popularity=np.array([1.0]),
)  # fmt: skip
ITEMS = pl.DataFrame({"item": [2, 3, 4, 5, 6], "original": [5, 1, 4, 3, 2]})
USERS = pl.DataFrame({"user": [0, 1], "original": [1, 2]})


def test_ranks_count_better_items_and_give_ties_to_the_lower_id() -> None:
    lists = {"items": [[6]], "popular_negatives": [[3, 5]], "uniform_negatives": [[5, 2]]}
    test = pl.DataFrame({"user": [0], "target": [4], **lists})
    found = oracle_ranks(ORACLE, test, users=USERS, items=ITEMS)
    assert found is not None
    # weights by dense id: 2 → 2, 3 → 3, 4 → 2 (target), 5 → 2, 6 seen
    assert found.rows() == [(0, 3, 2, 2)]
    none = pl.DataFrame({"popular_negatives": [[]], "uniform_negatives": [[]]}, schema=dict.fromkeys(NEGATIVES, LIST))
    found = oracle_ranks(ORACLE, test.with_columns(none), users=USERS, items=ITEMS)
    assert found is not None
    assert found.rows() == [(0, 3, None, None)]
    some = pl.concat([test.with_columns(none), test.cast(dict.fromkeys(NEGATIVES, LIST))])
    found = oracle_ranks(ORACLE, some, users=USERS, items=ITEMS)
    assert found is not None
    assert found.rows() == [(0, 3, None, None), (0, 3, 2, 2)]


def test_blocks_of_users_are_ranked_alike_and_too_many_cells_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {"items": [[6], [3]], "popular_negatives": [[3, 5], [4, 2]], "uniform_negatives": [[5, 2], [4, 5]]}
    test = pl.DataFrame({"user": [0, 1], "target": [4, 6], **lists})
    for cells_at_once in (1, 9, 10):
        monkeypatch.setattr(oracles, "CELLS_AT_ONCE", cells_at_once)
        monkeypatch.setattr(oracles, "MAX_CELLS", 10)
        found = oracle_ranks(ORACLE, test, users=USERS, items=ITEMS)
        assert found is not None
        assert found.rows() == [(0, 3, 2, 2), (1, 4, 3, 3)]
    monkeypatch.setattr(oracles, "MAX_CELLS", 9)
    assert oracle_ranks(ORACLE, test, users=USERS, items=ITEMS) is None
