from collections import Counter
from functools import partial
from typing import Literal

import numpy as np
import polars as pl
import pytest

from bert4rec.prepare.order.filters import (
    apply,
    drop_consecutive_duplicates,
    drop_low_ratings,
    drop_rare_items,
    drop_unread,
    drop_users,
    keep_repeats,
    keep_times,
)
from bert4rec.runtime.errors import DataError

ROWS = pl.DataFrame({"user": [1, 1, 1, 1, 2, 2], "item": [7, 7, 8, 7, 7, 7], "at": [0, 1, 2, 3, 4, 5]})


def test_a_low_rating_is_dropped_and_the_limit_kept() -> None:
    frame = pl.DataFrame({"rating": [3.5, 4.0, 0.0, 5.0]})
    assert drop_low_ratings(frame, min_rating=4.0)["rating"].to_list() == [4.0, 5.0]
    assert drop_low_ratings(frame, min_rating=0).equals(frame)


def test_min_rating_without_ratings_is_refused() -> None:
    with pytest.raises(DataError, match=r"min_rating = 4.0: the source has no ratings"):
        drop_low_ratings(pl.DataFrame({"item": [1]}), min_rating=4.0)


def test_books_on_a_shelf_are_dropped_only_if_asked_for() -> None:
    frame = pl.DataFrame({"item": [1, 2, 3], "is_read": [True, False, True]})
    assert drop_unread(frame).rows() == [(1,), (3,)]
    assert drop_unread(frame, only_read=False).equals(frame)


@pytest.mark.parametrize(
    ("start", "end", "times"), [(None, None, [1, 2, 3]), (2, None, [2, 3]), (None, 2, [1]), (2, 3, [2]), (3, 3, [])]
)
def test_a_window_of_time_has_its_start_and_not_its_end(start: int | None, end: int | None, times: list[int]) -> None:
    assert keep_times(pl.DataFrame({"time": [1, 2, 3]}), start=start, end=end)["time"].to_list() == times


def test_a_window_of_time_without_times_is_refused() -> None:
    with pytest.raises(DataError, match="time_from, time_until: the source has no times"):
        keep_times(ROWS, start=1)


@pytest.mark.parametrize(("which", "kept"), [("keep", [0, 1, 2, 3, 4, 5]), ("first", [0, 2, 4]), ("last", [2, 3, 5])])
def test_repeats_of_a_user_and_an_item(which: Literal["keep", "first", "last"], kept: list[int]) -> None:
    assert keep_repeats(ROWS, which=which)["at"].to_list() == kept


def test_consecutive_duplicates_end_with_the_user() -> None:
    assert drop_consecutive_duplicates(ROWS)["at"].to_list() == [0, 2, 3, 4]
    assert drop_consecutive_duplicates(ROWS.clear()).is_empty()


def test_rare_items_are_those_of_few_rows_in_all_not_only_here() -> None:
    frame = pl.DataFrame({"item": [0, 1, 2]}, schema={"item": pl.Int32})
    assert drop_rare_items(frame, np.array([1, 5, 4]), min_interactions=4)["item"].to_list() == [1, 2]


def test_users_within_both_limits_stay() -> None:
    frame = pl.DataFrame({"user": [1] * 2 + [2] * 3 + [3] * 4 + [4] * 5})
    assert set(drop_users(frame, min_interactions=3, max_interactions=4)["user"]) == {2, 3}
    assert set(drop_users(frame, min_interactions=3)["user"]) == {2, 3, 4}
    assert set(drop_users(frame, min_interactions=1, max_interactions=3)["user"]) == {1, 2}


def test_filters_follow_each_other_and_what_each_drops_is_counted() -> None:
    verbs = {
        "repeats": partial(keep_repeats, which="last"),
        "min_user_interactions": partial(drop_users, min_interactions=2),
    }
    dropped = Counter({"repeats": 1})
    assert apply(verbs, ROWS, dropped)["at"].to_list() == [2, 3]
    assert dropped == {"repeats": 4, "min_user_interactions": 1}
