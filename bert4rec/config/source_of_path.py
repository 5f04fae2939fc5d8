"""Which source reads what lies at a path: told by names and first lines alone, without Polars and without torch."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert4rec.config.file_kinds import (
    BYTE_ORDER_MARK,
    PACKED,
    SUFFIXES,
    compression_by_bytes,
    format_by_bytes,
    problem_of_format,
    refuse_unread,
)
from bert4rec.config.urls import is_url, without_secrets
from bert4rec.runtime.errors import DataError

HEAD = 1 << 16  # bytes that are looked at
N_LINES = 20  # of them, at most
SHOWN = 8  # columns that are named
SEPARATORS = ("\t", "::", ";", ",")
GROUPLENS_LINES = {
    "ratings.dat": ("ml-1m", re.compile(r"\d+::\d+::[\d.]+::\d+"), "user::movie::rating::time"),
    "u.data": ("ml-100k", re.compile(r"\d+\t\d+\t\d+\t\d+"), "user, movie, rating and time between tabs"),
}
GROUPLENS_HEADER = ["userId", "movieId", "rating", "timestamp"]
GROUPLENS_FOLDERS = ("ml-20m", "ml-25m", "ml-32m", "ml-latest-small")
GOODREADS_HEADER = ["user_id", "book_id", "is_read"]
PUBLIC_FILES = (*GROUPLENS_LINES, "ratings.csv", "goodreads_interactions.csv")
OTHER_STARTS = ("{", "[", "<")  # JSON, XML
NOT_DATA = ("readme", "license", "changelog")
SAY = "say what it is: --data.source=table (columns by their names), sequences (lines of a user and items), ml-1m, …"


@dataclass(frozen=True)
class Recognized:
    """The `source` that reads what was found, and what makes it so ("log.csv is a CSV file …")."""

    source: str
    reason: str


def recognize(path: str) -> Recognized:
    """The source of the file at `path`, of the one in the folder there, or of the first that fits the pattern.

    Of an address by its name alone, since a training should not need the network for it.
    Raises `DataError`, with what to type, for what is not there or not known.
    """
    if is_url(path):
        return _of_url(without_secrets(path))
    place = Path(path)
    if glob.has_magic(path) and not place.exists():
        return _of_pattern(path)
    try:
        place.stat()
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; correct data.path, or, where only the dataset folder is on this machine, give "
            "--data.source=… as well, or --data.dataset_dir=… in its place"
        ) from None
    return _of_folder(place) if place.is_dir() else _of_file(place) or _refuse(place)


def has_sequences(file: Path) -> bool:
    """Whether the lines of `file` are whole numbers with blanks between them: a user and items."""
    return _are_sequences(_lines(_head(file)))


def likely_separator(line: str) -> str:
    """What separates the fields of `line`: that of `SEPARATORS` which it has most of."""
    return max(reversed(SEPARATORS), key=line.count)


def _of_url(url: str) -> Recognized:
    name = Path(url).name
    if what := SUFFIXES.get(Path(_unpacked(Path(name))).suffix, (None, ""))[1]:
        return Recognized("table", f"{name} is {what} by its name")
    raise DataError(f"{url}: not recognized by its name; {SAY}")


def _of_pattern(pattern: str) -> Recognized:
    files = sorted(path for path in map(Path, glob.glob(pattern, recursive=True)) if path.is_file())
    if not files:
        raise DataError(f"{pattern}: no file fits this pattern; correct data.path")
    found = _of_file(files[0]) or _refuse(files[0])
    return Recognized(found.source, found.reason + (f" (the first of {len(files)})" if len(files) > 1 else ""))


def _of_folder(folder: Path) -> Recognized:
    """By the one file in it that is known by its name, else by the only one that is known at all."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; correct data.path") from None
    for file in files:
        if _unpacked(file) in PUBLIC_FILES and (found := _of_file(file)) and found.source != "table":
            return found
    known = {file.name: found for file in files if (found := _of_file(file))}
    if len(known) == 1:
        return next(iter(known.values()))
    if known:
        names = ", ".join([*known][:3]) + (", …" if len(known) > 3 else "")
        raise DataError(f"{folder}: which of {names}? name it in data.path, or several by a pattern in quotes")
    for file in files:
        refuse_unread(str(file), _head(file))
    raise DataError(f"{folder}: holds no file that is recognized; name it in data.path, and {SAY}")


def _refuse(file: Path) -> Recognized:
    head = _head(file)
    refuse_unread(str(file), head)
    lines = _lines(head)
    start = f'it begins with "{lines[0][:60]}"' if lines else "it is empty"
    raise DataError(f"{file}: not recognized by its name and first lines ({start}); {SAY}")


def _of_file(file: Path) -> Recognized | None:
    name = _unpacked(file)
    kind, what = SUFFIXES.get(Path(name).suffix, (None, ""))
    if what and kind != "text":
        return Recognized("table", f"{file.name} is {what}")
    if name.startswith(NOT_DATA):
        return None
    head = _head(file)
    if typed := format_by_bytes(head):
        return Recognized("table", f"{file.name} is {'a Parquet' if typed == 'parquet' else 'an Arrow'} file")
    if problem_of_format(str(file), head):
        return _refuse(file) if what else None
    lines = _lines(head)
    if public := _public(file, lines):
        return public
    if what:
        return Recognized("table", f"{file.name} is {what}{_with_columns(lines)}")
    if _are_sequences(lines):
        return Recognized("sequences", f"the lines of {file.name} are whole numbers with blanks between them")
    if _are_rows(lines):
        return Recognized("table", f"{file.name} is text{_with_columns(lines)}")
    return None


def _public(file: Path, lines: Sequence[str]) -> Recognized | None:
    """GroupLens' and Goodreads' own files."""
    if lines and (known := GROUPLENS_LINES.get(_unpacked(file))):
        source, form, words = known
        return Recognized(source, f"{file.name} has lines of {words}") if form.fullmatch(lines[0]) else None
    header = _cells(lines[0], ",") if lines else []
    if header[: len(GOODREADS_HEADER)] == GOODREADS_HEADER:
        return Recognized("goodreads", f"{file.name} has the columns {', '.join(header)}")
    if header != GROUPLENS_HEADER:
        return None
    folders = {Path(absolute(file)).parent.name for absolute in (os.path.abspath, os.path.realpath)}
    for folder in folders.intersection(GROUPLENS_FOLDERS):
        return Recognized(folder, f"{file.name} has the columns {', '.join(header)}, in a folder {folder}")
    sets = ", ".join(GROUPLENS_FOLDERS)
    raise DataError(f"{file}: a MovieLens file, but of which set? name it with --data.source=… ({sets})")


def _unpacked(file: Path) -> str:
    """The name in small letters, without what says how the file is packed."""
    name = file.name.lower()
    return name.removesuffix(next((end for end in PACKED if name.endswith(end)), ""))


def _head(file: Path) -> bytes:
    """The first bytes, unpacked."""
    try:
        with file.open("rb") as stream:
            start = stream.read(HEAD)
        if compression := compression_by_bytes(start):
            import pyarrow  # here: only a packed file takes it

            with pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), compression) as unpacked:
                return bytes(unpacked.read(HEAD))
        return start
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None


def _lines(head: bytes) -> list[str]:
    """The first lines that hold something; a last one that is cut off does not count."""
    text = head.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    whole = text[: text.rfind("\n")] if len(head) >= HEAD and "\n" in text else text
    return [line.rstrip("\r") for line in whole.split("\n") if line.strip()][:N_LINES]


def _are_sequences(lines: Sequence[str]) -> bool:
    """Pairs, or one line a user: those are of many lengths, and no user comes again, else they are a table's rows."""
    rows = [line.split() for line in lines]
    if not rows or not all(len(row) > 1 and all(word.isdecimal() for word in row) for row in rows):
        return False
    lengths = {len(row) for row in rows}
    is_line_a_user = len({row[0] for row in rows}) == len(rows) and (len(lengths) > 1 or len(rows) == 1)
    return lengths == {2} or is_line_a_user


def _are_rows(lines: Sequence[str]) -> bool:
    """Whether a header and at least one row have the same number of fields, more than one."""
    if len(lines) < 2 or lines[0].startswith(OTHER_STARTS) or _has_number(_cells(lines[0], likely_separator(lines[0]))):
        return False
    counts = {line.count(likely_separator(lines[0])) for line in lines}
    return len(counts) == 1 and counts != {0}


def _with_columns(lines: Sequence[str]) -> str:
    """What is to be said of the columns, where the first line names them."""
    cells = _cells(lines[0], likely_separator(lines[0])) if lines else []
    if len(cells) < 2:
        return ""
    if _has_number(cells):
        return " without a header"
    return f" with the columns {', '.join(cells[:SHOWN])}{', …' if len(cells) > SHOWN else ''}"


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip().strip('"') for cell in line.split(separator)]


def _has_number(cells: Sequence[str]) -> bool:
    return any(re.fullmatch(r"[-+]?\d+(\.\d*)?", cell) for cell in cells)
