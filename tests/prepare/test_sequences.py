from typing import Literal

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.errors import DataError
from bert4rec.prepare.sequences import (
    dense_ids,
    drop_low_ratings,
    drop_rare_items,
    drop_users,
    in_time_order,
    keep_repeats,
    leave_one_out,
    mark_validated,
    number_rows,
    to_histories,
    windows,
    with_dense_ids,
)

few = settings(max_examples=30, deadline=None)
ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=40)


def interactions(rows: list[tuple[int, int, int]]) -> pl.LazyFrame:
    return pl.LazyFrame(rows, schema={"user": pl.Int64, "item": pl.Int64, "time": pl.Int64}, orient="row")


def histories(*items: list[int]) -> pl.LazyFrame:
    return pl.LazyFrame(
        {"user": list(range(len(items))), "items": list(items)}, schema={"user": pl.Int32, "items": pl.List(pl.Int32)}
    )


def test_rows_are_numbered_backwards_only_without_a_time() -> None:
    with_time = interactions([(1, 1, 5), (1, 2, 5)])
    assert number_rows(with_time, reverse=True).collect()["row"].to_list() == [0, 1]
    assert number_rows(with_time.drop("time"), reverse=True).collect()["row"].to_list() == [0, -1]


def test_reversed_file_order_gives_reversed_histories() -> None:
    newest_first = interactions([(1, 10, 0), (2, 20, 0), (1, 11, 0), (1, 12, 0)]).drop("time")
    found = newest_first.pipe(number_rows, reverse=True).pipe(in_time_order).pipe(to_histories).collect()
    assert found.rows() == [(1, [12, 11, 10]), (2, [20])]


def test_a_low_rating_is_dropped_and_the_limit_kept() -> None:
    frame = pl.LazyFrame({"rating": [3.5, 4.0, 0.0, 5.0]})
    assert drop_low_ratings(frame, min_rating=4.0).collect()["rating"].to_list() == [4.0, 5.0]
    assert len(drop_low_ratings(frame, min_rating=0).collect()) == 4


def test_min_rating_without_ratings_is_refused() -> None:
    with pytest.raises(DataError, match=r"min_rating = 4.0: the source has no ratings"):
        drop_low_ratings(pl.LazyFrame({"item": [1]}), min_rating=4.0)


@pytest.mark.parametrize(("which", "rows"), [("keep", [0, 1, 2, 3, 4]), ("first", [1, 2, 3]), ("last", [0, 2, 4])])
def test_repeats_are_first_and_last_in_time_not_in_the_file(
    which: Literal["keep", "first", "last"], rows: list[int]
) -> None:
    frame = interactions([(1, 7, 9), (1, 7, 2), (1, 8, 5), (2, 7, 4), (2, 7, 4)])  # rows 3 and 4 of one second
    assert keep_repeats(number_rows(frame), which=which).collect()["row"].sort().to_list() == rows


def test_items_are_dropped_before_users_are_counted() -> None:
    frame = interactions([(1, 7, 0), (1, 8, 0), (2, 7, 0), (2, 7, 0)])
    kept = frame.pipe(drop_rare_items, min_interactions=2).pipe(drop_users, min_interactions=2).collect()
    assert kept.rows() == [(2, 7, 0), (2, 7, 0)]


def test_users_within_both_limits_stay() -> None:
    frame = pl.LazyFrame({"user": [1] * 2 + [2] * 3 + [3] * 4 + [4] * 5})
    assert set(drop_users(frame, min_interactions=3, max_interactions=4).collect()["user"]) == {2, 3}
    assert set(drop_users(frame, min_interactions=3).collect()["user"]) == {2, 3, 4}


@few
@given(ROWS)
def test_order_is_by_time_and_ties_stay_in_file_order(rows: list[tuple[int, int, int]]) -> None:
    found = interactions(rows).pipe(number_rows).pipe(in_time_order).collect().select("user", "item", "time").rows()
    assert found == sorted(rows, key=lambda row: (row[0], row[2]))  # Python's sort is stable


@few
@given(st.sets(st.integers(-(10**12), 10**12), min_size=1, max_size=50), st.integers(0, 5))
def test_dense_ids_are_a_bijection(originals: set[int], seed: int) -> None:
    frame = pl.LazyFrame({"item": sorted(originals, key=hash)})
    found = dense_ids(frame, "item", first=2, seed=seed).collect()
    assert found["item"].to_list() == list(range(2, 2 + len(originals)))
    assert set(found["original"]) == originals
    assert found["item"].dtype == pl.Int32


def test_seeded_ids_are_the_permutation_of_the_sorted_originals() -> None:
    frame = pl.LazyFrame({"item": ["d", "a", "c", "b", "a"]})
    order = np.random.Generator(np.random.PCG64(7)).permutation(4)
    found = dense_ids(frame, "item", first=2, seed=7).collect()
    assert dict(zip(found["original"], found["item"], strict=True)) == dict(zip("abcd", 2 + order, strict=True))
    assert dict(zip(found["original"], found["count"], strict=True)) == {"a": 2, "b": 1, "c": 1, "d": 1}


def test_dense_ids_replace_the_original_ones_and_leave_the_rest() -> None:
    frame = number_rows(interactions([(30, 7, 5), (10, 9, 6), (30, 9, 7)]))
    ids = dense_ids(frame, "user"), dense_ids(frame, "item", first=2)
    found = with_dense_ids(frame, *ids).collect().sort("row")
    assert found.select("user", "item", "row", "time").rows() == [(1, 2, 0, 5), (0, 3, 1, 6), (1, 3, 2, 7)]


def test_histories_carry_times_and_ratings() -> None:
    frame = pl.LazyFrame({"row": [0, 1], "user": [1, 1], "item": [5, 6], "time": [9, 8], "rating": [1.0, 2.0]})
    found = to_histories(in_time_order(frame)).collect()
    assert found.to_dicts() == [{"user": 1, "items": [6, 5], "times": [8, 9], "ratings": [2.0, 1.0]}]


def test_leave_one_out_by_hand() -> None:
    frame = histories([2, 3], [4, 5, 6], [7, 8, 9, 10]).with_columns(validated=pl.Series([False, False, True]))
    train, validation, test = (split.collect().rows() for split in leave_one_out(frame))
    assert train == [(0, [2, 3]), (1, [4, 5]), (2, [7, 8])]
    assert validation == [(2, [7, 8], 9)]
    assert test == [(1, [4, 5], 6), (2, [7, 8, 9], 10)]


def test_times_and_ratings_are_cut_as_the_items() -> None:
    frame = histories([2, 3, 4]).with_columns(times=pl.Series([[1, 2, 3]]), validated=True)
    assert [split.collect()["times"].to_list() for split in leave_one_out(frame)] == [[[1]], [[1]], [[1, 2]]]


def test_the_validation_sample_is_seeded_and_takes_only_users_with_three_items() -> None:
    frame = histories(*[[2] * (2 + user % 2) for user in range(40)])

    def sample(n_users: int | Literal["all"], seed: int) -> list[int]:
        return mark_validated(frame, n_users=n_users, seed=seed).filter("validated").collect()["user"].to_list()

    odd = list(range(1, 40, 2))
    assert sample("all", 1) == odd
    assert sample(100, 1) == odd
    assert len(sample(5, 1)) == 5
    assert set(sample(5, 1)) < set(odd)
    assert sample(5, 1) == sample(5, 1) != sample(5, 2)


def test_windows_end_at_the_end_and_step_back() -> None:
    frame = histories([2, 3, 4, 5, 6, 7, 8], [9, 10])
    found = windows(frame, max_len=4, step=2).collect().rows()
    assert found == [(0, [2, 3, 4]), (0, [3, 4, 5, 6]), (0, [5, 6, 7, 8]), (1, [9, 10])]
    assert windows(frame, max_len=3, step=3).collect().rows()[:3] == [(0, [2]), (0, [3, 4, 5]), (0, [6, 7, 8])]


def test_windows_carry_parallel_lists() -> None:
    frame = histories([2, 3, 4]).with_columns(ratings=pl.Series([[1.0, 2.0, 3.0]], dtype=pl.List(pl.Float32)))
    assert windows(frame, max_len=2, step=2).collect()["ratings"].to_list() == [[1.0], [2.0, 3.0]]


@few
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 9), st.data())
def test_windows_cover_every_position(lengths: list[int], max_len: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, max_len))
    frame = histories(*[list(range(100 * user, 100 * user + length)) for user, length in enumerate(lengths)])
    found = windows(frame, max_len=max_len, step=step).collect()
    assert set(found["items"].explode()) == set(frame.collect()["items"].explode())
    for (user,), part in found.group_by(["user"], maintain_order=True):
        lists = part["items"].to_list()
        ends = [items[-1] - 100 * user + 1 for items in lists]
        assert ends == [lengths[user] - step * i for i in reversed(range(len(ends)))]
        assert all(items == list(range(items[0], items[-1] + 1)) for items in lists)
        assert [len(items) for items in lists] == [min(end, max_len) for end in ends]
        assert [items[0] == 100 * user for items in lists] == [True] + [False] * (len(ends) - 1)


@pytest.mark.parametrize("step", [0, 4])
def test_a_step_that_would_leave_gaps_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"step = {step} must be from 1 to max_len = 3"):
        windows(histories([2]), max_len=3, step=step)
