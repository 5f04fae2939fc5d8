"""Ids once, and where each was."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.feed.lookup import ID_ROWS, LARGEST_COUNTED, Lookup, distinct


@settings(deadline=None)
@given(st.lists(st.integers(0, 3) | st.integers(0, 2**40), max_size=30))
def test_each_id_comes_once_and_all_come_back(ids: list[int]) -> None:
    """Few and small ones are counted, large ones are sorted."""
    found, places = distinct(torch.tensor(ids, dtype=torch.int64))
    assert found.ids.tolist() == sorted({*ids})
    assert found.ids[places].tolist() == ids
    assert {tensor.dtype for tensor in (*found, places)} == {torch.int64}


@pytest.mark.parametrize("largest", [5 * LARGEST_COUNTED - 1, 5 * LARGEST_COUNTED])
def test_both_ways_agree(largest: int) -> None:
    found, places = distinct(torch.tensor([largest, 3, largest, 0, 3]))
    assert (found.ids.tolist(), places.tolist()) == ([0, 3, largest], [2, 1, 2, 0, 1])


@pytest.mark.parametrize("n", [0, 1, ID_ROWS, 3 * ID_ROWS + 5])
def test_ids_are_spread_evenly_over_the_rows(n: int) -> None:
    lengths = Lookup.of(torch.arange(n)).lengths
    assert (len(lengths), int(lengths.sum())) == (ID_ROWS, n)
    assert int(lengths.max() - lengths.min()) <= 1
