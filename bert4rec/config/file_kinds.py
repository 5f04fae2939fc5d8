"""What a file is: by its first bytes, whatever it is called, and by the end of its name."""

from typing import Literal, TypeAlias

Format: TypeAlias = Literal["text", "json lines", "parquet", "arrow file", "arrow stream"]

MAGIC: dict[bytes, Format] = {b"PAR1": "parquet", b"ARROW1": "arrow file", b"\xff\xff\xff\xff": "arrow stream"}
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
PACKED = (".gz", ".zst")  # behind the suffix of what is packed
SUFFIXES: dict[str, tuple[Format, str]] = {
    ".csv": ("text", "a CSV file"),
    ".tsv": ("text", "a TSV file"),
    ".parquet": ("parquet", "a Parquet file"),
    ".pq": ("parquet", "a Parquet file"),
    ".jsonl": ("json lines", "a file of JSON lines"),
    ".ndjson": ("json lines", "a file of JSON lines"),
    ".feather": ("arrow file", "a Feather file"),
    ".arrow": ("arrow file", "an Arrow file"),
    ".ipc": ("arrow file", "an Arrow file"),
}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def format_by_bytes(start: bytes) -> Format | None:
    """The format of a table that carries its types; None for text and all else.

    >>> format_by_bytes(b"PAR1\\x15"), format_by_bytes(b"user,item")
    ('parquet', None)
    """
    return next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)


def compression_by_bytes(start: bytes) -> str | None:
    """How the file is compressed, as pyarrow calls it; None for a file that is not.

    >>> compression_by_bytes(b"\\x1f\\x8b\\x08")
    'gzip'
    """
    return next((name for magic, name in COMPRESSIONS.items() if start.startswith(magic)), None)
