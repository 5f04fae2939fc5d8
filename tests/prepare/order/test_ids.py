from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.order.ids import Distinct, item_ids, read_known
from bert4rec.runtime.errors import DataError


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(-(10**12), 10**12), min_size=1, max_size=50), st.integers(0, 5))
def test_ids_are_a_permutation_by_seed_of_the_sorted_originals(originals: set[int], seed: int) -> None:
    found = item_ids(pl.Series(sorted(originals)), np.ones(len(originals), bool), seed=seed)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(originals))
    assert found.tolist() == (2 + order).tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.sets(st.integers(0, 25), max_size=10))
def test_known_items_keep_their_ids_and_new_ones_come_after(kept: list[bool], old: set[int]) -> None:
    known = pl.DataFrame({"original": [str(item) for item in old], "item": range(2, 2 + len(old))})
    known = known.cast({"original": pl.String, "item": pl.Int32})
    originals = sorted({*range(len(kept)), *old})
    mask = np.array([kept[item] if item < len(kept) else False for item in originals])
    found = dict(zip(originals, item_ids(pl.Series(originals), mask, seed=1, known=known).tolist(), strict=True))
    assert {str(item): found[item] for item in old} == dict(known.rows())
    new = [item for item, is_kept in zip(originals, mask, strict=True) if is_kept and item not in old]
    assert sorted(found[item] for item in new) == list(range(2 + len(old), 2 + len(old) + len(new)))
    assert all(found[item] == 0 for item in originals if item not in {*old, *new})


def test_the_first_row_of_an_item_counts_though_a_later_part_has_its_ids_as_text() -> None:
    titles = Distinct(title=pl.String)
    assert titles.rows().rows() == []
    titles.add(pl.DataFrame({"item": [9, 3, 9], "title": ["Nine", "Three", "Neuf"]}))
    assert titles.rows().rows() == [(9, "Nine"), (3, "Three")]
    titles.add(pl.DataFrame({"item": ["9", "x"], "title": ["Neun", "Ix"]}))
    assert titles.rows().rows() == [("9", "Nine"), ("3", "Three"), ("x", "Ix")]


def test_ids_of_what_is_no_dataset_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no dataset folder with users.parquet and items.parquet"):
        read_known(tmp_path)
