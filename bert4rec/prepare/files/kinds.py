"""The format of a file of the source `table`: told by its first bytes more than by its name; what is not read is named.

Text and JSON lines may be packed with gzip or zstd; Parquet and Arrow files pack themselves.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from bert4rec.config.file_kinds import SUFFIXES, Format, format_by_bytes
from bert4rec.prepare.files import text_blocks
from bert4rec.runtime.errors import DataError

NAMES: dict[Format, str] = {
    "parquet": "a Parquet file",
    "arrow file": "an Arrow IPC (Feather) file",
    "arrow stream": "an Arrow IPC stream",
}
IN_ONE_PIECE = re.compile(rb"\s*\[\s*[\[{]")  # how an array of records begins
BY_PANDAS = "write the table as Parquet or CSV, for instance with pandas"
REPACK = "unpack it, or pack it with gzip or zstd"


class Unread(NamedTuple):
    """A format that is not read: what to do with it, its first bytes and its suffixes."""

    name: str
    advice: str
    magic: tuple[bytes, ...]
    suffixes: tuple[str, ...]


UNREAD = (
    Unread("an Excel workbook", "save the sheet as CSV", (b"\xd0\xcf\x11\xe0",), (".xlsx", ".xls")),
    Unread("a ZIP archive", "unpack it", (b"PK\x03\x04",), (".zip",)),
    Unread("a SQLite database", "export the table as CSV", (b"SQLite format 3",), (".db", ".sqlite", ".sqlite3")),
    Unread("an HDF5 file", BY_PANDAS, (b"\x89HDF",), (".h5", ".hdf5")),
    Unread("a pickle", BY_PANDAS, (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), (".pickle", ".pkl")),
    Unread("a Feather file of version 1", "write the table as Parquet, or as Feather of version 2", (b"FEA1",), ()),
    Unread("packed with bzip2", REPACK, (), (".bz2",)),
    Unread("packed with xz", REPACK, (b"\xfd7zXZ",), (".xz",)),
)
HEAD = 1 << 20  # bytes among which the first line is looked for


def format_of(path: Path) -> Format:
    """The format of the table in the file at `path`.

    Raises `DataError` for a format that is not read, with what to convert it to, and for a file that is not what its
    name says.
    """
    start, suffix = _start(path), path.suffix.lower()
    if found := format_by_bytes(start):
        return found
    refuse_unread(str(path), start)
    if named := NAMES.get(_by_suffix(suffix)):
        raise DataError(f"{path}: not {named}, or damaged; bring the whole file")
    return _kind_of_text(path)


def refuse_unread(name: str, start: bytes = b"") -> None:
    """Raise `DataError` where the file called `name`, with these first bytes, has a format that is not read."""
    by_suffix = [unread for unread in UNREAD if Path(name).suffix.lower() in unread.suffixes]
    for unread in by_suffix or [unread for unread in UNREAD if start.startswith(unread.magic)]:
        raise DataError(f"{name}: is {unread.name}, which is not read: {unread.advice}")


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _kind_of_text(path: Path) -> Format:
    start = text_blocks.head(path, size=HEAD)
    if format_by_bytes(start):
        raise DataError(f"{path}: is packed twice: this format packs itself; unpack it")
    if _is_object(start.lstrip().split(b"\n", 1)[0]):
        return "json lines"
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if IN_ONE_PIECE.match(start) or (".json" in suffixes and start.strip()):
        raise DataError(
            f"{path}: is JSON in one piece, which is not read: write an object on each line (JSON lines), with pandas: "
            'frame.to_json("log.jsonl", orient="records", lines=True)'
        )
    return "json lines" if any(_by_suffix(suffix) == "json lines" for suffix in suffixes) else "text"


def _by_suffix(suffix: str) -> Format:
    return SUFFIXES.get(suffix, ("text", ""))[0]


def _is_object(line: bytes) -> bool:
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
