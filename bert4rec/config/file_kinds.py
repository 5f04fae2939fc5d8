"""What a file is: by its first bytes, whatever it is called, and by the end of its name."""

import re
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from bert4rec.runtime.errors import DataError

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
BY_PANDAS = "write the table as Parquet or CSV, for instance with pandas"
REPACK = "unpack it, or pack it with gzip or zstd"
JSON_IN_ONE_PIECE = (
    "is JSON in one piece, which is not read: write one object a line (JSON lines), with pandas: "
    'frame.to_json("log.jsonl", orient="records", lines=True)'
)
ARRAY = re.compile(rb"\s*\[\s*[\[{]")  # how an array of records begins
UNREAD_HEAD = 1 << 10  # bytes that show a format that is not read
ZIP = b"PK\x03\x04"
WORKBOOK = "xl/"  # folder in the ZIP archive that an Excel workbook is


class Unread(NamedTuple):
    """A format that is not read: what to do with it, its first bytes and its suffixes."""

    name: str
    advice: str
    magic: tuple[bytes, ...]
    suffixes: tuple[str, ...]


UNREAD = (
    Unread(
        "a web page (HTML)",
        "a page to log in, perhaps; download the file itself",
        (b"<!doctype html", b"<html"),
        (".html", ".htm"),
    ),
    Unread("an Excel workbook", "save the sheet as CSV", (b"\xd0\xcf\x11\xe0",), (".xlsx", ".xls")),
    Unread("a ZIP archive", "unpack it", (ZIP,), (".zip",)),
    Unread("a SQLite database", "export the table as CSV", (b"SQLite format 3",), (".db", ".sqlite", ".sqlite3")),
    Unread("an HDF5 file", BY_PANDAS, (b"\x89HDF",), (".h5", ".hdf5")),
    Unread("a pickle", BY_PANDAS, (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), (".pickle", ".pkl")),
    Unread("a Feather file of version 1", "write the table as Parquet, or as Feather of version 2", (b"FEA1",), ()),
    Unread("packed with bzip2", REPACK, (), (".bz2",)),
    Unread("packed with xz", REPACK, (b"\xfd7zXZ",), (".xz",)),
)
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


def refuse_unread(name: str, start: bytes = b"") -> None:
    """Raise `DataError` where the file called `name`, with these first bytes, has a format that is not read."""
    if problem := problem_of_format(name, start):
        raise DataError(f"{name}: {problem}")


def problem_of_format(name: str, start: bytes) -> str:
    """Return what the file called `name`, with these first bytes, is and what to do; "" where it may be read."""
    begins = (start, start.removeprefix(BYTE_ORDER_MARK).lstrip().lower())
    found = [unread for unread in UNREAD if Path(name).suffix.lower() in unread.suffixes]
    if start.startswith(ZIP) and _is_workbook(Path(name)):
        found = [unread for unread in UNREAD if ".xlsx" in unread.suffixes]
    for unread in found or [unread for unread in UNREAD if any(text.startswith(unread.magic) for text in begins)]:
        return f"is {unread.name}, which is not read: {unread.advice}"
    return JSON_IN_ONE_PIECE if ARRAY.match(start) else ""


def _is_workbook(path: Path) -> bool:
    """Return whether the ZIP archive at `path` is an Excel workbook."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.startswith(WORKBOOK) for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
