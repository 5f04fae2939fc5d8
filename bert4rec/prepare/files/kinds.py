"""The format of a file of the source `table`: told by its first bytes more than by its name; what is not read is named.

Text and JSON lines may be packed with gzip or zstd; Parquet and Arrow files pack themselves.
"""

import json
import re
from pathlib import Path
from typing import Literal, TypeAlias

from bert4rec.prepare.files import text_blocks
from bert4rec.runtime.errors import DataError

Format: TypeAlias = Literal["text", "json lines", "parquet", "arrow file", "arrow stream"]

NAMES: dict[Format, str] = {
    "parquet": "a Parquet file",
    "arrow file": "an Arrow IPC (Feather) file",
    "arrow stream": "an Arrow IPC stream",
}
MAGIC: dict[bytes, Format] = {b"PAR1": "parquet", b"ARROW1": "arrow file", b"\xff\xff\xff\xff": "arrow stream"}
BY_SUFFIX: dict[str, tuple[Format, ...]] = {
    **dict.fromkeys((".parquet", ".pq"), ("parquet",)),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), ("arrow file", "arrow stream")),
}
JSON_LINES = (".jsonl", ".ndjson")
IN_ONE_PIECE = re.compile(rb"\s*\[\s*[\[{]")  # how an array of records begins
EXCEL, ARCHIVE, SQLITE = "an Excel workbook", "a ZIP archive", "a SQLite database"
HDF5, PICKLE, FEATHER_1 = "an HDF5 file", "a pickle", "a Feather file of version 1"
BZIP2, XZ = "packed with bzip2", "packed with xz"
NOT_READ = {
    b"PK\x03\x04": ARCHIVE,
    b"\xd0\xcf\x11\xe0": EXCEL,
    b"SQLite format 3": SQLITE,
    b"\x89HDF": HDF5,
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), PICKLE),
    b"FEA1": FEATHER_1,
    b"\xfd7zXZ": XZ,
}
NOT_READ_SUFFIXES = {
    **dict.fromkeys((".xlsx", ".xls"), EXCEL),
    ".zip": ARCHIVE,
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), SQLITE),
    **dict.fromkeys((".h5", ".hdf5"), HDF5),
    **dict.fromkeys((".pickle", ".pkl"), PICKLE),
    ".bz2": BZIP2,
    ".xz": XZ,
}
ADVICE = {
    EXCEL: "save the sheet as CSV",
    ARCHIVE: "unpack it",
    SQLITE: "export the table as CSV",
    **dict.fromkeys((HDF5, PICKLE), "write the table as Parquet or CSV, for instance with pandas"),
    FEATHER_1: "write the table as Parquet, or as Feather of version 2",
    **dict.fromkeys((BZIP2, XZ), "unpack it, or pack it with gzip or zstd"),
}
HEAD = 1 << 20  # bytes among which the first line is looked for


def format_of(path: Path) -> Format:
    """The format of the table in the file at `path`.

    Raises `DataError` for a format that is not read, with what to convert it to, and for a file that is not what its
    name says.
    """
    start, suffix = _start(path), path.suffix.lower()
    found: Format | None = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
    if found:
        return found
    by_content = next((what for magic, what in NOT_READ.items() if start.startswith(magic)), None)
    if unread := NOT_READ_SUFFIXES.get(suffix) or by_content:
        raise DataError(f"{path}: is {unread}, which is not read: {ADVICE[unread]}")
    if wanted := BY_SUFFIX.get(suffix):
        raise DataError(f"{path}: not {NAMES[wanted[0]]}, or damaged; bring the whole file")
    return _kind_of_text(path)


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _kind_of_text(path: Path) -> Format:
    start = text_blocks.head(path, size=HEAD)
    if any(start.startswith(magic) for magic in MAGIC):
        raise DataError(f"{path}: is packed twice: this format packs itself; unpack it")
    if _is_object(start.lstrip().split(b"\n", 1)[0]):
        return "json lines"
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if IN_ONE_PIECE.match(start) or (".json" in suffixes and start.strip()):
        raise DataError(
            f"{path}: is JSON in one piece, which is not read: write an object on each line (JSON lines), with pandas: "
            'frame.to_json("log.jsonl", orient="records", lines=True)'
        )
    return "json lines" if any(suffix in suffixes for suffix in JSON_LINES) else "text"


def _is_object(line: bytes) -> bool:
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
