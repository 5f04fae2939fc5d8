"""The form of the dataset folder, to the letter: what other programs read."""

import pyarrow as pa

from bert4rec.dataset.format import (
    NEGATIVE_COLUMNS,
    history_columns,
    one_array,
)


def test_the_folders_have_these_columns_of_these_types() -> None:
    numbers, offsets = pa.list_(pa.int32()), dict.fromkeys(("n_train", "validation", "test"), pa.int32())
    history = {"user": pa.int32(), "items": numbers}
    assert history_columns(has_times=False, has_ratings=False) == history | offsets
    expected = history | {"times": pa.list_(pa.int64()), "ratings": pa.list_(pa.float32())} | offsets
    found = history_columns(has_times=True, has_ratings=True)
    assert (found, list(found)) == (expected, list(expected))
    negatives = {"user": pa.int32(), "popular_negatives": numbers, "uniform_negatives": numbers}
    assert (NEGATIVE_COLUMNS, list(NEGATIVE_COLUMNS)) == (negatives, list(negatives))


def test_original_ids_are_one_array_text_with_offsets_of_64_bits() -> None:
    text = one_array(pa.chunked_array([["a", "b"], [None, "c"]], pa.string()))
    assert text.equals(pa.array(["a", "b", None, "c"], pa.large_string()))
    assert one_array(pa.chunked_array([], pa.string())).equals(pa.array([], pa.large_string()))
    assert one_array(pa.chunked_array([[1], [2, 3]])).equals(pa.array([1, 2, 3]))
