"""Recognize files by their names and first bytes: the source that reads a path, and the format of a table.

Imports neither Polars nor torch, since this runs before anything else.
"""

import glob
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from bert4rec.runtime.errors import DataError

SCHEMES = ("s3", "gs", "hf", "https", "http")
LISTED = ("s3", "gs", "hf")  # their files can be listed, so a pattern can name several


def is_url(path: str) -> bool:
    """Return whether `path` is a URL and not a local path.

    >>> is_url("s3://bucket/log.csv"), is_url("logs/log.csv")
    (True, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def check_url(path: str) -> str:
    """Return `path`; raise `ValueError` if it is a URL that cannot be read."""
    scheme, _, rest = path.partition("://")
    if not is_url(path):
        return path
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES[:-1])
        raise ValueError(f"{scheme}:// cannot be read; expected: {known} or {SCHEMES[-1]}://")
    if rest.endswith("/") or "/" not in rest:
        raise ValueError(
            "names no file; name one, or several of s3://, gs:// and hf:// by a pattern: s3://bucket/*.csv"
        )
    if scheme not in LISTED and "*" in rest:
        raise ValueError(f"{scheme}:// does not list its files, so patterns do not work; name one file")
    return path


def without_secrets(text: str) -> str:
    """Return `text`, which ends with a URL, without the URL's login and query, which may hold a signature.

    >>> without_secrets("--data.path=https://ann:pw@host/log.csv?X-Amz-Signature=1f"), without_secrets("s3://b/log?.csv")
    ('--data.path=https://host/log.csv', 's3://b/log?.csv')
    """
    return re.sub(r"(https?://[^?#]*)[?#].*", r"\1", re.sub(r"(://)[^/\s]*@", r"\1", text), flags=re.DOTALL)


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
BY_PANDAS = "write the table as Parquet or CSV, for instance with pandas"
REPACK = "unpack it, or pack it with gzip or zstd"


LOGIN = "it may be a page to log in: download the file itself"
UNREAD: tuple[tuple[str, str, tuple[bytes, ...], tuple[str, ...]], ...] = (  # format, advice, first bytes, suffixes
    ("a web page (HTML)", LOGIN, (b"<!doctype html", b"<html"), (".html", ".htm")),
    ("an Excel workbook", "save the sheet as CSV", (b"\xd0\xcf\x11\xe0",), (".xlsx", ".xls")),
    ("a ZIP archive", "unpack it", (ZIP,), (".zip",)),
    ("a SQLite database", "export the table as CSV", (b"SQLite format 3",), (".db", ".sqlite", ".sqlite3")),
    ("an HDF5 file", BY_PANDAS, (b"\x89HDF",), (".h5", ".hdf5")),
    ("a pickle", BY_PANDAS, (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), (".pickle", ".pkl")),
    ("a Feather file of version 1", "write the table as Parquet, or as Feather of version 2", (b"FEA1",), ()),
    ("packed with bzip2", REPACK, (), (".bz2",)),
    ("packed with xz", REPACK, (b"\xfd7zXZ",), (".xz",)),
)  # fmt: skip
SEPARATORS = ("\t", "::", ";", ",")
GROUPLENS_LINES = {
    "ratings.dat": ("ml-1m", re.compile(r"\d+::\d+::[\d.]+::\d+"), "user::movie::rating::time"),
    "u.data": ("ml-100k", re.compile(r"\d+\t\d+\t\d+\t\d+"), "user, movie, rating and time between tabs"),
}
GROUPLENS_HEADER = ["userId", "movieId", "rating", "timestamp"]
GROUPLENS_FOLDERS = ("ml-20m", "ml-25m", "ml-32m", "ml-latest-small")
GOODREADS_HEADER = ["user_id", "book_id", "is_read"]
PUBLIC_FILES = (*GROUPLENS_LINES, "ratings.csv", "goodreads_interactions.csv")
NOT_DATA = ("readme", "license", "changelog")
HEAD = 1 << 16  # bytes that are read to recognize a file
FIRST_LINE = 1 << 20  # bytes that are searched for the first line of a table
N_LINES = 20  # largest number of lines to look at
SHOWN = 8  # number of columns, runs or datasets to list
ADVICE = "say what it is: --data.source=table (columns by their names), sequences (lines of a user and items), ml-1m, …"


@dataclass(frozen=True)
class DetectedSource:
    """Hold the recognized `source`, and the reason ("log.csv is a CSV file …")."""

    source: str
    reason: str


def recognize(path: str) -> DetectedSource:
    """Return the source of the file at `path`, of the file in that folder, or of the first file that fits a pattern.

    A URL is recognized only by its name, so that a training does not need the network. Raises `DataError` for a path
    that does not exist and for a file that is not recognized.
    """
    if is_url(path):
        url = without_secrets(path)
        if what := _by_suffix(_unpacked_name(Path(url)))[1]:
            return DetectedSource("table", f"{Path(url).name} is {what} by its name")
        raise DataError(f"{url}: not recognized by its name; {ADVICE}")
    if files := matching_files(path):
        first = _of_file(files[0]) or _refuse(files[0])
        return DetectedSource(first.source, first.reason + (f" (the first of {len(files)})" if len(files) > 1 else ""))
    place = Path(path)
    try:
        place.stat()
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; correct data.path; if only the dataset folder is on this machine, add "
            "--data.source=… or give --data.dataset_dir=… instead"
        ) from None
    return _of_folder(place) if place.is_dir() else _of_file(place) or _refuse(place)


def what_is(path: Path) -> str:
    """Return what lies at `path` in a few words, for a message that something else is expected there."""
    if not path.exists():
        return "there is no such folder"
    if path.is_file():
        return f"this is a file; prepare a dataset from it first: bert4rec prepare {path}"
    if (path / "metadata.json").is_file() and (path / "histories").is_dir():
        return f"this is a dataset; train on it: bert4rec train {path}"
    if (path / "checkpoints").is_dir() or (path / "report.json").is_file():
        return "this is a run"
    runs = sorted(child.name for child in path.iterdir() if (child / "config.toml").is_file())
    sets = sorted(child.name for child in path.iterdir() if (child / "metadata.json").is_file())
    for kind, names in (("runs", runs), ("datasets", sets)):
        if names:
            shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
            return f"this is a folder of {kind}; name one of them: {shown}"
    return "this is another folder"


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
    raise DataError(f"{path}: no file fits this pattern; correct data.path")


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
    return _are_sequences(_lines(_first_bytes(file, HEAD)))


def infer_separator(line: str) -> str:
    """Return the separator of `SEPARATORS` that `line` has most of."""
    return max(reversed(SEPARATORS), key=line.count)


def _of_folder(folder: Path) -> DetectedSource:
    """Return the source of the first public file in the folder, or else of the only file that is recognized."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; correct data.path") from None
    for file in files:
        if _unpacked_name(file) in PUBLIC_FILES and (found := _of_file(file)) and found.source != "table":
            return found
    known = {file.name: found for file in files if (found := _of_file(file))}
    if len(known) == 1:
        return next(iter(known.values()))
    if known:
        names = ", ".join([*known][:3]) + (", …" if len(known) > 3 else "")
        raise DataError(
            f"{folder}: has several files: {names}; name one in data.path, or several by a pattern in quotes"
        )
    for file in files:
        refuse_unsupported_format(str(file), _first_bytes(file, HEAD))
    raise DataError(f"{folder}: holds no file that is recognized; name it in data.path, and {ADVICE}")


def _of_file(file: Path) -> DetectedSource | None:
    name = _unpacked_name(file)
    kind, what = _by_suffix(name)
    if what and kind != "text":
        return DetectedSource("table", f"{file.name} is {what}")
    if name.startswith(NOT_DATA):
        return None
    head = _first_bytes(file, HEAD)
    if typed := _typed_format(head):
        return DetectedSource("table", f"{file.name} is {TYPED_NAMES[typed]}")
    if _problem_of_format(str(file), head):
        return _refuse(file) if what else None
    lines = _lines(head)
    if public := _public(file, lines):
        return public
    if not what and _are_sequences(lines):
        return DetectedSource("sequences", f"the lines of {file.name} are whole numbers with blanks between them")
    if not what and not _are_rows(lines):
        return None
    return DetectedSource("table", f"{file.name} is {what or 'text'}{_with_columns(lines)}")


def _public(file: Path, lines: Sequence[str]) -> DetectedSource | None:
    """Return the source of a file of GroupLens or Goodreads; None for another file."""
    if lines and (known := GROUPLENS_LINES.get(_unpacked_name(file))):
        source, form, words = known
        return DetectedSource(source, f"{file.name} has lines of {words}") if form.fullmatch(lines[0]) else None
    header = _cells(lines[0]) if lines else []
    if header[: len(GOODREADS_HEADER)] == GOODREADS_HEADER:
        return DetectedSource("goodreads", f"{file.name} has the columns {', '.join(header)}")
    if header != GROUPLENS_HEADER:
        return None
    folders = {Path(absolute(file)).parent.name for absolute in (os.path.abspath, os.path.realpath)}
    for folder in folders.intersection(GROUPLENS_FOLDERS):
        return DetectedSource(folder, f"{file.name} has the columns {', '.join(header)}, in a folder {folder}")
    return None  # another file with these columns is a table


def _refuse(file: Path) -> NoReturn:
    head = _first_bytes(file, HEAD)
    refuse_unsupported_format(str(file), head)
    lines = _lines(head)
    start = f'it begins with "{lines[0][:60]}"' if lines else "it is empty"
    raise DataError(f"{file}: not recognized by its name and first lines ({start}); {ADVICE}")


def _problem_of_format(name: str, start: bytes) -> str:
    """Return the unsupported format of the file `name`, which begins with `start`, and the advice; "" if supported."""
    start, suffix = start[:1024], Path(name).suffix.lower()
    if start.startswith(ZIP) and OFFICE.search(start):
        suffix = ".xlsx"
    begins = (start, start.lstrip().lower())
    matches = [(what, advice) for what, advice, _, suffixes in UNREAD if suffix in suffixes]
    matches += [(what, advice) for what, advice, magic, _ in UNREAD if any(text.startswith(magic) for text in begins)]
    if matches:
        return f"is {matches[0][0]}, which is not read: {matches[0][1]}"
    return JSON_IN_ONE_PIECE if ARRAY.match(start) else ""


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
            raise DataError(f"{file}: cannot be read: {error.strerror}; name a file that can be read") from None
        raise DataError(f"{file}: damaged or cut off ({error}); copy the whole file again") from None


def _lines(head: bytes) -> list[str]:
    """Return the first lines that are not blank, without a last line that is cut off."""
    text = head.decode("utf-8", "replace")
    whole = text[: text.rfind("\n")] if len(head) >= HEAD - 3 and "\n" in text else text
    return [line.rstrip("\r") for line in whole.split("\n") if line.strip()][:N_LINES]


def _are_sequences(lines: Sequence[str]) -> bool:
    """Return whether the lines are `user item` pairs, or have each user once with all items.

    Lines that all have one length above two, or a user on two longer lines, may be rows of a table.
    """
    rows = [line.split() for line in lines]
    if not rows or not all(len(row) > 1 and all(word.isdecimal() for word in row) for row in rows):
        return False
    lengths = {len(row) for row in rows}
    is_line_a_user = len({row[0] for row in rows}) == len(rows) and (len(lengths) > 1 or len(rows) == 1)
    return lengths == {2} or is_line_a_user


def _are_rows(lines: Sequence[str]) -> bool:
    """Return whether a header and at least one row have the same number of fields, more than one."""
    is_other = not lines or lines[0].startswith(("{", "[", "<"))  # JSON, XML
    if len(lines) < 2 or is_other or _has_number(_cells(lines[0])):
        return False
    counts = {line.count(infer_separator(lines[0])) for line in lines}
    return len(counts) == 1 and counts != {0}


def _with_columns(lines: Sequence[str]) -> str:
    """Return the end of a message that describes the columns; "" if the first line has fewer than two."""
    cells = _cells(lines[0]) if lines else []
    if len(cells) < 2:
        return ""
    if _has_number(cells):
        return " without a header"
    return f" with the columns {', '.join(cells[:SHOWN])}{', …' if len(cells) > SHOWN else ''}"


def _cells(line: str) -> list[str]:
    return [cell.strip().strip('"') for cell in line.split(infer_separator(line))]


def _has_number(cells: Iterable[str]) -> bool:
    return any(re.fullmatch(r"[-+]?\d+(\.\d*)?", cell) for cell in cells)
