"""Columns of original ids as one array."""

import pyarrow as pa

from bert4rec.dataset.format import one_array


def test_text_has_offsets_of_64_bits() -> None:
    text = one_array(pa.chunked_array([["a", "b"], [None, "c"]], pa.string()))
    assert text.equals(pa.array(["a", "b", None, "c"], pa.large_string()))


def test_numbers_and_empty_columns_stay() -> None:
    assert one_array(pa.chunked_array([[1], [2, 3]])).equals(pa.array([1, 2, 3]))
    assert one_array(pa.chunked_array([], pa.string())).equals(pa.array([], pa.large_string()))
