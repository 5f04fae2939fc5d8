"""Filters by row, and the instant of a split."""

from collections import Counter

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.config.tables import Preprocessing
from bert4rec.prepare.rows import apply, filters_by_row
from bert4rec.prepare.split import instant_of_share
from bert4rec.runtime.arrays import Int64s


def test_filters_follow_each_other_and_what_each_drops_is_counted() -> None:
    limits = {"min_rating": 4, "time_from": "1970-01-01T00:00:01", "time_until": "1970-01-01T00:00:04"}
    rows = pl.DataFrame(
        {"time": range(5), "rating": [4.0, 3.9, 4.0, 5.0, 4.5], "is_read": [True, True, True, False, True]}
    )
    dropped = Counter[str]()
    filters = filters_by_row(Preprocessing(only_read=True, **limits), rows.columns)  # type: ignore[arg-type]
    assert apply(filters, rows, dropped)["time"].to_list() == [2]
    assert dropped == dict.fromkeys([*limits, "only_read"], 1)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2_000_000), max_size=9), min_size=1, max_size=4).filter(any),
    st.floats(0.01, 0.99),
    st.sampled_from([4, 1 << 16]),
)
def test_the_instant_of_a_share_is_the_first_that_leaves_no_more(
    parts: list[list[int]], share: float, bins: int
) -> None:
    every = np.array([time for part in parts for time in part])

    def count(low: int, high: int, width: int) -> Int64s:
        inside = every[(every >= low) & (every < high)]
        return np.bincount((inside - low) // width, minlength=-(-(high - low) // width))

    found = instant_of_share(count, int(every.min()), 1 + int(every.max()), share * len(every), n_bins=bins)
    assert sum(time >= found for time in every) <= share * len(every) < sum(time >= found - 1 for time in every)
