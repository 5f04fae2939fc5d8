"""Limits of users and items, which may have to be tried again and again."""

from pathlib import Path

import pytest

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.progress import Progress
from bert4rec.prepare.stages.limited_rows import limit_rows
from bert4rec.runtime.errors import DataError
from tests.prepare.stages.rows import ordered


@pytest.mark.parametrize(
    ("k_core", "left", "counts", "dropped"),
    [  # without users 2 and 3, of whom one row each is left, item 1 has become rare
        (False, [[(1, 0), (1, 1), (1, 0)], []], [2, 1, 0, 0], {"min_item_interactions": 2, "min_user_interactions": 2}),
        (True, [[(1, 0), (1, 0)], []], [2, 0, 0, 0], {"min_item_interactions": 3, "min_user_interactions": 2}),
    ],
)
def test_the_limits_hold_for_users_and_items_together_where_it_is_asked_for(
    tmp_path: Path, k_core: bool, left: list[list[tuple[int, int]]], counts: list[int], dropped: dict[str, int]
) -> None:
    rows = ordered(tmp_path / "parts", [(1, [0, 1, 0]), (2, [0, 2])], [(3, [1, 3])])
    settings = Preprocessing(min_item_interactions=2, min_user_interactions=2, k_core=k_core)
    limit_rows(rows, settings, progress=Progress())
    assert [part.rows() for part in rows.parts] == left
    assert (rows.counts.tolist(), rows.dropped) == (counts, dropped)


def test_where_no_row_is_left_the_filters_are_named(tmp_path: Path) -> None:
    rows = ordered(tmp_path / "parts", [(1, [0, 1])])
    rows.n_rows_read, rows.n_users_read = 3, 2
    message = r"0 of 3 rows and 2 users pass \[preprocessing\] min_rating = 2.0, min_item_interactions = 2; relax"
    with pytest.raises(DataError, match=message):
        limit_rows(rows, Preprocessing(min_item_interactions=2, min_rating=2.0), progress=Progress())
