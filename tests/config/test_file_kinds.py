"""First bytes and suffixes: each kind is known by both, and packed text by its first bytes."""

import gzip
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from bert4rec.config.file_kinds import SUFFIXES, compression_by_bytes, format_by_bytes

ROWS = pl.DataFrame({"user": [1], "item": [2]})


def test_files_that_carry_their_types_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "a")
    ROWS.write_ipc(tmp_path / "b")
    ROWS.write_ipc_stream(tmp_path / "c")
    ROWS.write_csv(tmp_path / "d")
    found = [format_by_bytes((tmp_path / name).read_bytes()) for name in "abcd"]
    assert found == ["parquet", "arrow file", "arrow stream", None]
    assert {kind for kind, _ in SUFFIXES.values()} == {"text", "json lines", "parquet", "arrow file"}


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_packed_text_is_known_by_its_first_bytes(compression: str) -> None:
    packed = gzip.compress(b"a") if compression == "gzip" else pa.compress(b"a", codec=compression, asbytes=True)
    assert compression_by_bytes(packed) == compression
    assert compression_by_bytes(b"user,item") is None
