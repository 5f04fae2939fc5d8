from typing import Literal

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare import splitting
from bert4rec.prepare.splitting import (
    by_time,
    cut,
    instant_of_share,
    leave_one_out,
    validation_sample,
    windows,
)


def histories(*items: list[int]) -> pl.DataFrame:
    return pl.DataFrame(
        {"user": list(range(len(items))), "items": list(items)}, schema={"user": pl.Int32, "items": pl.List(pl.Int32)}
    )


def validated(frame: pl.DataFrame, *users: int) -> pl.DataFrame:
    return frame.with_columns(validated=pl.col("user").is_in(users)).drop("able")


def test_leave_one_out_by_hand() -> None:
    marked = leave_one_out(histories([2, 3], [4, 5, 6], [7, 8, 9, 10]))
    assert marked["able"].to_list() == [False, True, True]
    train, validation, test = (split.rows() for split in cut(validated(marked, 2)))
    assert train == [(0, [2, 3]), (1, [4, 5]), (2, [7, 8])]
    assert validation == [(2, [7, 8], 9)]
    assert test == [(1, [4, 5], 6), (2, [7, 8, 9], 10)]


def test_a_split_by_time_by_hand() -> None:
    frame = histories([2, 3, 4], [5, 6], [7], [8, 9, 10])
    times = pl.Series("times", [[1, 4, 5], [5, 6], [1], [1, 2, 3]])
    marked = by_time(frame.with_columns(times), instant=5)
    assert marked["able"].to_list() == [True, False, False, True]
    train, validation, test = (split.drop("times").rows() for split in cut(validated(marked, 0, 3)))
    assert train == [(0, [2]), (2, [7]), (3, [8, 9])]  # user 1 begins too late, user 2 ends too early
    assert validation == [(0, [2], 3, 4), (3, [8, 9], 10, 3)]  # with the time of the target
    assert test == [(0, [2, 3], 4, 5)]


def test_times_and_ratings_are_cut_as_the_items() -> None:
    frame = leave_one_out(histories([2, 3, 4]).with_columns(times=pl.Series([[1, 2, 3]])))
    assert [split["times"].to_list() for split in cut(validated(frame, 0))] == [[[1]], [[1]], [[1, 2]]]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2_000_000), max_size=9), min_size=1, max_size=4).filter(any),
    st.floats(0.01, 0.99),
    st.sampled_from([4, 1 << 16]),
)
def test_the_instant_of_a_share_is_the_first_that_leaves_no_more(
    parts: list[list[int]], share: float, bins: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "N_BINS", bins)
        found = instant_of_share(lambda: [pl.Series(part, dtype=pl.Int64) for part in parts], share)
    every = [time for part in parts for time in part]
    assert sum(time >= found for time in every) <= share * len(every) < sum(time >= found - 1 for time in every)


def test_the_validation_sample_is_seeded() -> None:
    users = np.arange(1, 40, 2)

    def sample(n_users: int | Literal["all"], seed: int) -> list[int]:
        return validation_sample(users, n_users=n_users, seed=seed).tolist()

    assert sample("all", 1) == sample(100, 1) == users.tolist()
    assert len(set(sample(5, 1))) == 5
    assert set(sample(5, 1)) < set(users.tolist())
    assert sample(5, 1) == sample(5, 1) != sample(5, 2)


def test_windows_end_at_the_end_and_step_back() -> None:
    frame = histories([2, 3, 4, 5, 6, 7, 8], [9, 10])
    found = windows(frame, max_len=4, step=2).rows()
    assert found == [(0, [2, 3, 4]), (0, [3, 4, 5, 6]), (0, [5, 6, 7, 8]), (1, [9, 10])]
    assert windows(frame, max_len=3, step=3).rows()[:3] == [(0, [2]), (0, [3, 4, 5]), (0, [6, 7, 8])]


def test_windows_carry_parallel_lists() -> None:
    frame = histories([2, 3, 4]).with_columns(ratings=pl.Series([[1.0, 2.0, 3.0]], dtype=pl.List(pl.Float32)))
    assert windows(frame, max_len=2, step=2)["ratings"].to_list() == [[1.0], [2.0, 3.0]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 9), st.data())
def test_windows_cover_every_position(lengths: list[int], max_len: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, max_len))
    frame = histories(*[list(range(100 * user, 100 * user + length)) for user, length in enumerate(lengths)])
    found = windows(frame, max_len=max_len, step=step)
    assert set(found["items"].explode()) == set(frame["items"].explode())
    for (user,), part in found.group_by(["user"], maintain_order=True):
        lists = part["items"].to_list()
        ends = [items[-1] - 100 * user + 1 for items in lists]
        assert ends == [lengths[user] - step * i for i in reversed(range(len(ends)))]
        assert all(items == list(range(items[0], items[-1] + 1)) for items in lists)
        assert [len(items) for items in lists] == [min(end, max_len) for end in ends]
        assert [items[0] == 100 * user for items in lists] == [True] + [False] * (len(ends) - 1)


@pytest.mark.parametrize("step", [0, 4])
def test_a_step_that_would_leave_gaps_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"step = {step} "):
        windows(histories([2]), max_len=3, step=step)
