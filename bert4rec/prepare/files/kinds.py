"""The format of a file of the source `table`: told by its first bytes more than by its name; what is not read is named.

Text and JSON lines may be packed with gzip or zstd; Parquet and Arrow files pack themselves.
"""

import json
from pathlib import Path

from bert4rec.config.file_kinds import (
    JSON_IN_ONE_PIECE,
    SUFFIXES,
    UNREAD_HEAD,
    Format,
    format_by_bytes,
    refuse_unread,
)
from bert4rec.prepare.files import text_blocks
from bert4rec.runtime.errors import DataError

NAMES: dict[Format, str] = {
    "parquet": "a Parquet file",
    "arrow file": "an Arrow IPC (Feather) file",
    "arrow stream": "an Arrow IPC stream",
}
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


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(UNREAD_HEAD)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _kind_of_text(path: Path) -> Format:
    start = text_blocks.head(path, size=HEAD)
    if format_by_bytes(start):
        raise DataError(f"{path}: is packed twice: this format packs itself; unpack it")
    if _is_object(start.lstrip().split(b"\n", 1)[0]):
        return "json lines"
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    refuse_unread(str(path), start[:UNREAD_HEAD])
    if ".json" in suffixes and start.strip():
        raise DataError(f"{path}: {JSON_IN_ONE_PIECE}")
    return "json lines" if any(_by_suffix(suffix) == "json lines" for suffix in suffixes) else "text"


def _by_suffix(suffix: str) -> Format:
    return SUFFIXES.get(suffix, ("text", ""))[0]


def _is_object(line: bytes) -> bool:
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
