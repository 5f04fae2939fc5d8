"""The form of the dataset folder, to the letter: what other programs read."""

import pyarrow as pa

from bert4rec.dataset.format import history_columns, negative_columns


def test_the_folders_have_these_columns_of_these_types() -> None:
    numbers, offsets = pa.list_(pa.int32()), dict.fromkeys(("n_train", "validation", "test"), pa.int32())
    history = {"user": pa.int32(), "items": numbers}
    assert history_columns(has_times=False, has_ratings=False) == history | offsets
    expected = history | {"times": pa.list_(pa.int64()), "ratings": pa.list_(pa.float32())} | offsets
    found = history_columns(has_times=True, has_ratings=True)
    assert (found, list(found)) == (expected, list(expected))
    negatives = {"user": pa.int32(), "popular_negatives": numbers, "uniform_negatives": numbers}
    assert (negative_columns(), list(negative_columns())) == (negatives, list(negatives))
