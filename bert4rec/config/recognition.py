"""Recognize files by their names and first bytes: the source that reads a path, and the format of a table.

Imports neither Polars nor torch, since this runs before anything else.
"""

import difflib
import glob
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from bert4rec.config.addresses import ICEBERG, is_database, is_lake_table, is_url, without_secrets
from bert4rec.config.first_lines import (
    are_rows,
    are_sequences,
    cells,
    has_number,
    may_be_baskets,
    problem_of_text,
    without_separator_line,
)
from bert4rec.config.sources import SOURCES
from bert4rec.runtime.errors import DataError, did_you_mean, join_names

Format: TypeAlias = Literal["text", "json lines", "parquet", "arrow file", "arrow stream"]
MAGIC: dict[bytes, Format] = {b"PAR1": "parquet", b"ARROW1": "arrow file", b"\xff\xff\xff\xff": "arrow stream"}
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # as pyarrow calls them
PACKED = (".gz", ".zst")  # second suffix of compressed files
TYPED_NAMES: dict[Format, str] = {  # of formats that carry the types of their columns
    "parquet": "a Parquet file", "arrow file": "an Arrow IPC (Feather) file", "arrow stream": "an Arrow IPC stream",
}  # fmt: skip
SUFFIXES: dict[str, tuple[Format, str]] = {
    ".csv": ("text", "a CSV file"),
    ".tsv": ("text", "a TSV file"),
    ".inter": ("text", "a file of interactions"),
    ".parquet": ("parquet", "a Parquet file"),
    ".pq": ("parquet", "a Parquet file"),
    ".jsonl": ("json lines", "a file of JSON lines"),
    ".ndjson": ("json lines", "a file of JSON lines"),
    ".feather": ("arrow file", "a Feather file"),
    ".arrow": ("arrow file", "an Arrow file"),
    ".ipc": ("arrow file", "an Arrow file"),
}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ARRAY = re.compile(rb"\s*\[\s*[\[{]")  # the start of an array of records
JSON_IN_ONE_PIECE = (
    "is JSON in one piece, which is not read: write one object a line (JSON lines), with pandas: "
    'frame.to_json("log.jsonl", orient="records", lines=True)'
)
ZIP = b"PK\x03\x04"
OFFICE = re.compile(rb"\[Content_Types\]|docProps/|xl/")  # names of the first files in an Excel workbook
OPEN_DOCUMENT = b"opendocument.spreadsheet"
BY_PANDAS = "write the table as Parquet or CSV, for instance with pandas"
REPACK = "unpack it, or pack it with gzip or zstd"
LOGIN_PAGE = "it may be a page to log in: download the file itself"
FETCHED = {"database": "a database", "lake": "a Delta or Iceberg table", "workbook": "a workbook"}  # → what it is
NAMED_IN = {"database": ("table", "query"), "workbook": ("table",)}  # the settings of `data` that name the rows there
BY_HAND = "name it alone in data.path, or save the"
UNREAD: tuple[tuple[str, str, tuple[bytes, ...], tuple[str, ...], str], ...] = (
    # format, advice if it is not read, first bytes, suffixes, its kind in FETCHED or ""
    ("a web page (HTML)", LOGIN_PAGE, (b"<!doctype html", b"<html"), (".html", ".htm"), ""),
    ("an Excel workbook", f"{BY_HAND} sheet as CSV", (b"\xd0\xcf\x11\xe0",), (".xlsx", ".xls"), "workbook"),
    ("an OpenDocument workbook", f"{BY_HAND} sheet as CSV", (), (".ods",), "workbook"),
    ("a ZIP archive", "unpack it", (ZIP,), (".zip",), ""),
    ("a SQLite database", f"{BY_HAND} table as CSV", (b"SQLite format 3",), (".db", ".sqlite", ".sqlite3"), "database"),
    ("an HDF5 file", BY_PANDAS, (b"\x89HDF",), (".h5", ".hdf5"), ""),
    ("a pickle", BY_PANDAS, (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), (".pickle", ".pkl"), ""),
    ("a Feather file of version 1", "write the table as Parquet, or as Feather of version 2", (b"FEA1",), (), ""),
    ("packed with bzip2", REPACK, (), (".bz2",), ""),
    ("packed with xz", REPACK, (b"\xfd7zXZ",), (".xz",), ""),
)
FETCHED_ENDINGS = tuple(suffix for *_, suffixes, kind in UNREAD if kind for suffix in suffixes)
PUBLIC_FILES = {name for source in SOURCES.values() for name in source.names if "*" not in name}
NOT_DATA = ("readme", "license", "changelog")
HEAD_BYTES = 1 << 16  # bytes that are read to recognize a file
N_FORMAT_LINES = 20  # largest number of lines to look at
FIRST_LINE = 1 << 20  # bytes that are searched for the first line of a table
MOST_CHOICES = 8  # number of columns, runs or datasets to list
SOURCE_ADVICE = (
    "say what it is: --data.source=table (columns by their names), sequences (lines of a user and items), ml-1m, …"
)


@dataclass(frozen=True)
class DetectedSource:
    """The recognized `source`, and the reason ("log.csv is a CSV file …")."""

    source: str
    reason: str


def recognize(path: str, *, advice: str = "") -> DetectedSource:
    """Return the source of the file at `path`, of the file in that folder, or of the first file that fits a pattern.

    A URL is recognized only by its name, so that a training does not need the network. Raises `DataError` for a file
    that is not recognized, and, with `advice` at the end, for a path that does not exist.
    """
    if kind := fetched_kind(path):
        return DetectedSource("table", f"{Path(without_secrets(path)).name} is {FETCHED[kind]}")
    if is_url(path):
        url = without_secrets(path)
        if what := _by_suffix(_unpacked_name(Path(url)))[1]:
            return DetectedSource("table", f"{Path(url).name} is {what} by its name")
        raise DataError(f"{url}: not recognized by its name; {SOURCE_ADVICE}")
    if files := matching_files(path):
        file = next((file for file in files if has_rows(file)), files[0])
        first = _detect_file(file) or _refuse(file)
        return DetectedSource(first.source, first.reason + (f" (the first of {len(files)})" if len(files) > 1 else ""))
    place = Path(path)
    try:
        place.stat()
    except OSError as error:
        raise DataError(f"{problem_of_path(place, error)}{advice}") from None
    return _detect_folder(place) if place.is_dir() else _detect_file(place) or _refuse(place)


def what_is(path: Path) -> str:
    """Return what lies at `path` in a few words, for a message that something else is expected there."""
    if not path.exists():
        kind, names = _contents(path.parent)
        near = _near(path) or (f"; the {kind} in {path.parent}: {join_names(names, MOST_CHOICES)}" if names else "")
        return f"there is no such folder{near}"
    if path.is_file():
        return f"this is a file; prepare a dataset from it first: bert4rec prepare {path}"
    if (path / "metadata.json").is_file() and (path / "histories").is_dir():
        return f"this is a dataset; train on it: bert4rec train {path}"
    if (path / "checkpoints").is_dir() or any((path / name).is_file() for name in ("report.json", "environment.json")):
        return "this is a run"
    kind, names = _contents(path)
    if not names:
        return "this is another folder"
    return f"this is a folder of {kind}; name one of them: {join_names(names, MOST_CHOICES)}"


def datasets_in(folder: Path) -> list[str]:
    """Return the names of the datasets in `folder`."""
    return _with_file(folder, "metadata.json")


def _contents(folder: Path) -> tuple[str, list[str]]:
    """Return "runs" or "datasets", and the names of those in the folder; no names if there are none."""
    for kind, file in (("runs", "config.toml"), ("datasets", "metadata.json")):
        if names := _with_file(folder, file):
            return kind, names
    return "", []


def _with_file(folder: Path, name: str) -> list[str]:
    """Return the names of the folders in `folder` that have a file of that name, without hidden ones."""
    return sorted(path.parent.name for path in folder.glob(f"[!.]*/{name}") if path.is_file())


def problem_of_path(path: Path, error: OSError) -> str:
    """Return the message that the file or folder at `path` cannot be found or read; it has the nearest name."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"{path}: cannot be read: {error.strerror}"
    return f"{path}: no such file or folder{_near(path)}"


def _near(path: Path) -> str:
    """Return the end of a message: the nearest name beside `path`, if there is one."""
    folder = path.parent
    try:
        names = {child.name.lower(): child.name for child in sorted(folder.iterdir())}
    except OSError:
        return f"; there is no folder {folder}"
    near = [str(folder / names[name]) for name in difflib.get_close_matches(path.name.lower(), names, n=1)]
    return did_you_mean(near)


def has_rows(file: Path, *, has_header: bool = True) -> bool:
    """Return whether the file has more than nothing or a header. A file that cannot be read counts as one with rows."""
    try:
        if file.stat().st_size > HEAD_BYTES:
            return True
        start = _first_bytes(file, FIRST_LINE)
    except (DataError, OSError):
        return True
    if _typed_format(start) or _is_json_object(start.lstrip().split(b"\n", 1)[0]):
        return True
    return len(without_separator_line(start).strip().splitlines()) > has_header


def matching_files(path: str) -> tuple[Path, ...]:
    """Return the files of the pattern `path`, or all Parquet files in the folder `path`, in the order of their names.

    Returns none if `path` is neither. Raises `DataError` if no file fits the pattern.
    """
    if Path(path).is_dir():
        return _parquet_files(Path(path))
    if not glob.has_magic(path) or Path(path).exists():
        return ()
    if files := tuple(file for file in sorted(map(Path, glob.glob(path, recursive=True))) if file.is_file()):
        return files
    raise DataError(f"{path}: no file fits this pattern")


def _parquet_files(folder: Path) -> tuple[Path, ...]:
    """Return all Parquet files below `folder`, as other programs write a table; none if it has other files of data."""
    present = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith((".", "_"))]
    tables = tuple(file for file in present if file.suffix.lower() in (".parquet", ".pq"))
    others = [file for file in present if _by_suffix(_unpacked_name(file))[1] and file not in tables]
    return () if others else tables


def format_of(path: Path) -> Format:
    """Return the format of the table in the file at `path`; its first bytes count more than its name.

    Raises `DataError` for an unsupported format, and for a file that is not what its name says.
    """
    start = _first_bytes(path, FIRST_LINE, unpack=False)
    if typed := _typed_format(start):
        return typed
    refuse_unsupported_format(str(path), start)
    if named := TYPED_NAMES.get(_by_suffix(path.name)[0]):
        raise DataError(f"{path}: not {named}, or damaged; copy the whole file again")
    start = _first_bytes(path, FIRST_LINE)
    if _typed_format(start):
        raise DataError(f"{path}: is compressed twice, but this format has its own compression; unpack it")
    if _is_json_object(start.lstrip().split(b"\n", 1)[0]):
        return "json lines"
    refuse_unsupported_format(str(path), start)
    if problem := problem_of_text(start):
        raise DataError(f"{path}: {problem}")
    suffixes = {suffix.lower() for suffix in path.suffixes[-2:]}
    if ".json" in suffixes and start.strip():
        raise DataError(f"{path}: {JSON_IN_ONE_PIECE}")
    return "json lines" if suffixes & {".jsonl", ".ndjson"} else "text"


def compression_of(start: bytes) -> str | None:
    """Return pyarrow's name for the compression of a file that begins with `start`; None if it is not compressed.

    >>> compression_of(b"\\x1f\\x8b\\x08")
    'gzip'
    """
    return next((name for magic, name in COMPRESSIONS.items() if start.startswith(magic)), None)


def refuse_unsupported_format(name: str, start: bytes = b"") -> None:
    """Raise `DataError` if the file `name`, which begins with `start`, has an unsupported format."""
    if problem := _problem_of_format(name, start):
        raise DataError(f"{name}: {problem}")


def has_sequences(file: Path) -> bool:
    """Return whether the lines of `file` are whole numbers with blanks between them: a user and items."""
    return are_sequences(_lines(_first_bytes(file, HEAD_BYTES)))


def _detect_folder(folder: Path) -> DetectedSource:
    """Return the source of the first public file in the folder, or else of the only file that is recognized."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; correct data.path") from None
    for file in files:
        if _unpacked_name(file) in PUBLIC_FILES and (found := _detect_file(file)) and found.source != "table":
            return found
    known = {file.name: found for file in files if (found := _detect_file(file))}
    if len(known) == 1:
        return next(iter(known.values()))
    if known:
        names = join_names([*known])
        raise DataError(
            f"{folder}: has several files: {names}; name one in data.path, or several by a pattern in quotes"
        )
    for file in files:
        refuse_unsupported_format(str(file), head := _first_bytes(file, HEAD_BYTES))
        if may_be_baskets(_unpacked_name(file), _lines(head)):
            _refuse(file)
    raise DataError(f"{folder}: holds no file that is recognized; name it in data.path, and {SOURCE_ADVICE}")


def _detect_file(file: Path) -> DetectedSource | None:
    name = _unpacked_name(file)
    kind, what = _by_suffix(name)
    if what and kind != "text":
        return DetectedSource("table", f"{file.name} is {what}")
    if name.startswith(NOT_DATA):
        return None
    head = _first_bytes(file, HEAD_BYTES)
    if typed := _typed_format(head):
        return DetectedSource("table", f"{file.name} is {TYPED_NAMES[typed]}")
    if _problem_of_format(str(file), head) or problem_of_text(head):
        return _refuse(file) if what else None
    lines = _lines(head)
    if public := _public(file, lines):
        return public
    if may_be_baskets(name, lines):
        return _refuse(file) if what else None
    if not what and are_sequences(lines):
        reason = f"the lines of {file.name} are whole numbers with blanks between them: a user and items"
        return DetectedSource("sequences", reason)
    if not what and not are_rows(lines):
        return None
    return DetectedSource("table", f"{file.name} is {what or 'text'}{_with_columns(lines)}")


def _public(file: Path, lines: Sequence[str]) -> DetectedSource | None:
    """Return the source of a file of GroupLens or Goodreads; None for another file."""
    header, file_name = cells(lines), _unpacked_name(file)
    folders = {Path(absolute(file)).parent.name for absolute in (os.path.abspath, os.path.realpath)}
    for name, source in SOURCES.items():
        if source.first_line and file_name in source.names and re.fullmatch(source.first_line[0], "".join(lines[:1])):
            return DetectedSource(name, f"{file.name} has lines of {source.first_line[1]}")
        begins = header if source.is_movielens else header[: len(source.header)]
        if header and begins == source.header and (name in folders or not source.is_movielens):
            folder = f", in a folder {name}" if source.is_movielens else ""
            return DetectedSource(name, f"{file.name} has the columns {', '.join(header)}{folder}")
    return None  # another file with the columns of GroupLens is a table


def _refuse(file: Path) -> NoReturn:
    head = _first_bytes(file, HEAD_BYTES)
    refuse_unsupported_format(str(file), head)
    if problem := problem_of_text(head):
        raise DataError(f"{file}: {problem}")
    lines = _lines(head)
    if may_be_baskets(_unpacked_name(file), lines):
        raise DataError(
            f'{file}: begins with "{lines[0][:60]}": is its first number a user, or an item of a basket without a '
            "user? if a user: --data.source=sequences; if each line has only items: --data.source=baskets"
        )
    start = f'it begins with "{lines[0][:60]}"' if lines else "it is empty"
    raise DataError(f"{file}: not recognized by its name and first lines ({start}); {SOURCE_ADVICE}")


def _problem_of_format(name: str, start: bytes) -> str:
    """Return the unsupported format of the file `name`, which begins with `start`, and the advice; "" if supported."""
    by_name, matches = _unread(name, start)
    if by_name and not matches and _is_text(start):
        return f"is text, not {by_name[0][0]} as its name says: rename it to {Path(name).stem}.csv"
    if matches := by_name + matches:
        return f"is {matches[0][0]}, which is not read: {matches[0][1]}"
    return JSON_IN_ONE_PIECE if ARRAY.match(start) else ""


def _unread(name: str, start: bytes) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """Return format, advice and kind of the `UNREAD` that the name says, and of those that the first bytes say."""
    start, suffix = start[:1024], Path(name).suffix.lower()
    if start.startswith(ZIP) and OFFICE.search(start):
        suffix = ".xlsx"
    elif start.startswith(ZIP) and OPEN_DOCUMENT in start:
        suffix = ".ods"
    begins = (start, start.lstrip().lower())
    by_name = [(what, advice, kind) for what, advice, _, suffixes, kind in UNREAD if suffix in suffixes]
    matches = [
        (what, advice, kind)
        for what, advice, magic, _, kind in UNREAD
        if any(text.startswith(magic) for text in begins)
    ]
    return by_name, matches


def _is_text(start: bytes) -> bool:
    return bool(start.strip()) and not problem_of_text(start) and b"\xff" not in start


def fetched_kind(path: str) -> str:
    """Return which of `FETCHED` is at `path`, to be copied into a Parquet file before it is read; "" for another.

    An address is recognized by its name alone.
    """
    if is_url(path):
        return "database" if is_database(path) else "lake" if is_lake_table(path) else ""
    place = Path(path)
    if place.is_dir():
        return "lake" if (place / "_delta_log").is_dir() or any(place.glob(f"metadata/*{ICEBERG}")) else ""
    if not place.is_file():
        return ""
    if place.name.endswith(ICEBERG):
        return "lake"
    by_name, matches = _unread(path, start := _first_bytes(place, HEAD_BYTES, unpack=False))
    found = by_name + matches if matches or not _is_text(start) else []
    return found[0][2] if found else ""


def _is_json_object(line: bytes) -> bool:
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _typed_format(start: bytes) -> Format | None:
    return next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)


def _by_suffix(name: str) -> tuple[Format, str]:
    """Return the format of a file of that name, and its description; "text" and "" if the suffix is unknown."""
    return SUFFIXES.get(Path(name).suffix.lower(), ("text", ""))


def _unpacked_name(file: Path) -> str:
    """Return the name in lower case, without the suffix of a compressed file."""
    name = file.name.lower()
    return name.removesuffix(next((end for end in PACKED if name.endswith(end)), ""))


def _first_bytes(file: Path, size: int, *, unpack: bool = True) -> bytes:
    try:
        with file.open("rb") as stream:
            start = stream.read(size)
        if unpack and (compression := compression_of(start)):
            import pyarrow  # slow to import, and needed only for compressed files

            with pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), compression) as unpacked:
                return bytes(unpacked.read(size)).removeprefix(BYTE_ORDER_MARK)
        return start.removeprefix(BYTE_ORDER_MARK)
    except OSError as error:
        if error.strerror:
            raise DataError(problem_of_path(file, error)) from None
        raise DataError(f"{file}: damaged or cut off ({error}); copy the whole file again") from None


def _lines(head: bytes) -> list[str]:
    """Return the first lines that are not blank, without a last line that is cut off."""
    text = without_separator_line(head).decode("utf-8", "replace")
    whole = text[: text.rfind("\n")] if len(head) >= HEAD_BYTES - 3 and "\n" in text else text
    return [line.rstrip("\r") for line in whole.split("\n") if line.strip()][:N_FORMAT_LINES]


def _with_columns(lines: Sequence[str]) -> str:
    """Return the end of a message that describes the columns; "" if the first line has fewer than two."""
    names = cells(lines)
    if len(names) < 2:
        return ""
    if has_number(names):
        return " without a header"
    return f" with the columns {join_names(names, MOST_CHOICES)}"
