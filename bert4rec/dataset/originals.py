"""Columns of original ids and titles as one array, whatever their size."""

import pyarrow as pa


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return all of a column as one array, text with offsets of 64 bits: those of 32 end at 2 GiB.

    >>> one_array(pa.chunked_array([["a"], ["b"]])).type
    DataType(large_string)
    """
    if pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
