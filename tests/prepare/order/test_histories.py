import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.order.histories import in_time_order, to_histories, with_codes

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=40)


def interactions(rows: list[tuple[int, int, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"user": pl.Int64, "item": pl.Int64, "time": pl.Int64}, orient="row")


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_order_is_by_time_and_ties_stay_in_file_order(rows: list[tuple[int, int, int]]) -> None:
    found = in_time_order(interactions(rows), newest_first=True).rows()
    assert found == sorted(rows, key=lambda row: (row[0], row[2]))  # Python's sort is stable


def test_without_times_the_file_order_counts_or_its_reverse() -> None:
    rows = interactions([(1, 10, 0), (2, 20, 0), (1, 11, 0), (1, 12, 0)]).drop("time")
    assert to_histories(in_time_order(rows)).rows() == [(1, [10, 11, 12]), (2, [20])]
    assert to_histories(in_time_order(rows, newest_first=True)).rows() == [(1, [12, 11, 10]), (2, [20])]


def test_codes_stand_for_items_and_the_rest_is_left() -> None:
    codes = pl.DataFrame({"original": ["a", "b", "c"], "code": [0, 1, 2]}, schema_overrides={"code": pl.Int32})
    rows = pl.DataFrame({"user": [1, 2, 3], "item": ["c", "a", "c"], "rating": [1.0, 2.0, 3.0]})
    assert with_codes(rows, codes).rows() == [(1, 2, 1.0), (2, 0, 2.0), (3, 2, 3.0)]


def test_histories_carry_times_and_ratings() -> None:
    rows = pl.DataFrame({"user": [1, 1], "item": [5, 6], "time": [9, 8], "rating": [1.0, 2.0]})
    assert to_histories(in_time_order(rows)).to_dicts() == [
        {"user": 1, "items": [6, 5], "times": [8, 9], "ratings": [2.0, 1.0]}
    ]
