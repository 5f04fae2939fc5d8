"""JSON lines: one object on each line, as rows of text fields; lines of which no row can be made are set apart.

A number becomes the text that stands for it, so that the same table as CSV and as JSON lines is the same.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from bert4rec.errors import DataError
from bert4rec.prepare import text
from bert4rec.prepare.bad_rows import BadRows
from bert4rec.prepare.rows import LINE, NOT_UTF_8

HEAD = 1 << 20  # bytes of the lines that show which columns there are
LONGEST_SHOWN = 40  # characters of a value in a message


class _UnusableError(ValueError):
    """A line of which no row can be made: what kind of problem it has, and what to say of it."""


def json_columns(path: Path) -> dict[str, bool]:
    """The keys of the first objects, in their order, and of each whether it can be a field: no object or list.

    Raises `DataError` for an empty file.
    """
    start = text.head(path, size=HEAD)
    if not start.strip():
        raise DataError(f"{path}: is empty; name another file in data.path")
    found: dict[str, bool] = {}
    for line in start.split(b"\n"):
        try:
            record = _record(line)
        except _UnusableError:
            continue
        for name, value in record.items():
            found[name] = found.get(name, True) and not isinstance(value, dict | list)
    return found


def json_rows(
    path: Path, columns: Mapping[str, str], bad: BadRows, blocks: Iterable[text.Block]
) -> Iterator[tuple[pl.DataFrame, int]]:
    """A frame for each of the `blocks` of the file at `path`, and how many of its bytes have been read with it.

    They have `LINE` and, as text, the values of `columns`: new name → key of the objects; null where an object lacks
    the key. Lines that are no objects go to `bad`, and those with an object, a list, true or false as a value.
    """
    for block in blocks:
        rows: list[tuple[int | str | None, ...]] = []
        for number, line in enumerate(block.text.removesuffix(b"\n").split(b"\n"), block.first_line):
            try:
                rows.append((number, *_values(_record(line), columns)))
            except _UnusableError as error:
                kind, problem = error.args
                bad.add(kind)
                bad.show(path, "line", number, problem)
        yield pl.DataFrame(rows, {LINE: pl.Int64, **dict.fromkeys(columns, pl.String)}, orient="row"), block.done


def _record(line: bytes) -> dict[str, Any]:
    try:
        decoded = line.decode()
    except UnicodeDecodeError:
        raise _UnusableError("not UTF-8", NOT_UTF_8) from None
    if not decoded.strip():
        raise _UnusableError("empty line", "is empty")
    try:
        record = json.loads(decoded)
        if "\\u" in decoded:
            json.dumps(record, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise _UnusableError("not a JSON object", "is not a JSON object")
    return record


def _values(record: Mapping[str, Any], columns: Mapping[str, str]) -> Iterator[str | None]:
    for field, name in columns.items():
        value = record.get(name)
        if isinstance(value, dict | list | bool):
            shown = json.dumps(value, ensure_ascii=False)
            shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[: LONGEST_SHOWN - 1]}…"
            raise _UnusableError(f"{field} is neither text nor number", f"{name} is {shown}: must be text or a number")
        yield None if value is None or value != value else str(value)  # NaN is what Python writes for nothing
