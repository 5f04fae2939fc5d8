"""What is said of the rows: read, unusable, dropped, kept."""

from collections import Counter
from pathlib import Path

import numpy as np

from bert4rec.config.load import load_config
from bert4rec.prepare.read.synthetic import Generated
from bert4rec.prepare.stages.metadata import describe_rows
from bert4rec.prepare.stages.survey import Survey
from tests.prepare.stages.rows import ordered


def test_rows_add_up_and_filters_stand_in_the_order_in_which_they_work(tmp_path: Path) -> None:
    rows = ordered(tmp_path / "parts", [(1, [0, 0, 2]), (2, [3])])
    rows.n_rows_read, rows.dropped = 9, Counter({"min_user_interactions": 2, "repeats": 3, "min_rating": 0})
    source = Generated("random", n_users=20, n_items=20, n_rows=100, seed=1)
    source.bad.add("empty line", 2)
    survey = Survey(np.array([3, 1, 0]), np.array([1, 0, 1]), np.array([False] * 3), (5, 9))
    found = describe_rows(load_config(None, {"model.max_len": 50}), source, rows, survey)
    assert (found["rows_read"], found["rows"], found["bad_rows"]) == (11, 4, {"empty line": 2})
    assert list(found["dropped"].items()) == [("repeats", 3), ("min_user_interactions", 2)]
    assert (found["users"], found["items"], found["density"]) == (3, 3, 4 / 9)
    assert (found["lengths"]["max"], found["time_span"], found["train_positions"]) == (3, [5, 9], 2)
    assert (found["order"], found["has_times"], found["extends"]) == (source.order, False, False)
