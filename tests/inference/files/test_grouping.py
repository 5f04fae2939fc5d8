"""Rows as histories: as a dictionary of lists would hold them."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.inference.files.grouping import by_user
from bert4rec.inference.history import TimedHistory

ROWS = st.lists(st.tuples(st.sampled_from("uvwx"), st.integers(0, 9)), max_size=40)


@settings(deadline=None)
@given(rows=ROWS, cut=st.integers(0, 40))
def test_each_user_has_its_items_in_their_order(rows: list[tuple[str, int]], cut: int) -> None:
    wanted: dict[str, list[int]] = {}
    for user, item in rows:
        wanted.setdefault(user, []).append(item)
    schema = pa.schema([("user", pa.string()), ("item", pa.int64())])
    parts = [
        pa.record_batch({"user": [user for user, _ in part], "item": [item for _, item in part]}, schema=schema)
        for part in (rows[:cut], rows[cut:])
    ]
    assert list(by_user(parts)) == list(wanted.items())
    assert list(by_user([])) == []


def test_rows_are_put_in_the_order_of_their_times() -> None:
    """Those of one time stay in the order of the rows."""
    rows = {"user": ["u", "v", "u", "u", "v"], "item": [1, 2, 3, 4, 5], "time": [7.0, 6.0, 5.0, 7.0, 6.0]}
    parts = [pa.record_batch(rows).slice(0, 2), pa.record_batch(rows).slice(2)]
    assert list(by_user(parts)) == [("u", [3, 1, 4]), ("v", [2, 5])]
    assert list(by_user(parts, with_times=True)) == [
        ("u", TimedHistory([3, 1, 4], [5.0, 7.0, 7.0])),
        ("v", TimedHistory([2, 5], [6.0, 6.0])),
    ]


def test_rows_without_times_may_stand_newest_first() -> None:
    rows = pa.record_batch({"user": ["u", "v", "u"], "item": [1, 2, 3]})
    assert list(by_user([rows], newest_first=True)) == [("u", [3, 1]), ("v", [2])]


def test_times_go_with_their_items() -> None:
    rows = {"user": ["u", "v", "u"], "item": [1, 2, 3], "time": [5.0, 6.0, 7.5]}
    assert list(by_user([pa.record_batch(rows)], with_times=True)) == [
        ("u", TimedHistory([1, 3], [5.0, 7.5])),
        ("v", ([2], [6.0], None)),
    ]
