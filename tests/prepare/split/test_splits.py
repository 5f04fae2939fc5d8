from typing import Literal

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare import histories
from bert4rec.prepare.histories import instant_of_share, validation_sample


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
        patch.setattr(histories, "N_BINS", bins)
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
