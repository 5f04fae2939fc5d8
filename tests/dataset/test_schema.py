"""The form of the dataset folder, to the letter: what other programs read."""

import pyarrow as pa

from bert4rec.dataset.format import FIRST_ITEM_ID, MASK_ID, PAD_ID, columns, table_rows


def test_a_split_has_these_columns_of_these_types() -> None:
    history = {"user": pa.int32(), "items": pa.list_(pa.int32())}
    parallel = {"times": pa.list_(pa.int64()), "ratings": pa.list_(pa.float32())}
    negatives = {"popular_negatives": pa.list_(pa.int32()), "uniform_negatives": pa.list_(pa.int32())}
    assert columns("train", has_times=False, has_ratings=False) == history
    assert columns("train", has_times=True, has_ratings=True) == history | parallel
    for split in ("validation", "test"):
        expected = history | parallel | {"target": pa.int32(), "target_time": pa.int64()} | negatives
        assert columns(split, has_times=True, has_ratings=True) == expected
        assert list(columns(split, has_times=True, has_ratings=True)) == list(expected)


def test_special_ids_come_before_the_items() -> None:
    assert (PAD_ID, MASK_ID, FIRST_ITEM_ID) == (0, 1, 2)
    assert table_rows(5) == 7
