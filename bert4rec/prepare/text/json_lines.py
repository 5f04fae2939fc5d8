"""JSON lines: one object on each line, as rows of text fields; lines of which no row can be made are set apart.

A number becomes the text that a CSV file would have for it; a whole one has no fraction, as JSON tells 7 and 7.0 not
apart. A block is parsed by Polars at once. Only where that fails, or does not give one row for each line, the block is
halved again and again, until the few lines in question are looked at one by one.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bert4rec.prepare.progress import LINE, BadRows, line_numbers
from bert4rec.prepare.text import text_blocks
from bert4rec.prepare.text.csv_rows import NOT_UTF_8
from bert4rec.runtime.errors import DataError

HEAD = 1 << 20  # bytes of the lines that show which columns there are
LONGEST_SHOWN = 40  # characters of a value in a message
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a pair is no text
NO_FIELD = r"^(?:true|false|[\[{])"  # as text, a value that may be no text or number


class _UnusableError(ValueError):
    """A line of which no row can be made: what kind of problem it has, and what to say of it."""


def json_columns(path: Path) -> dict[str, bool]:
    """Return the keys of the first objects, in their order, and of each whether it can be a field: no object or list.

    Raises `DataError` for an empty file.
    """
    start = text_blocks.head(path, size=HEAD)
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
    columns: Mapping[str, str], bad: BadRows, blocks: Iterable[text_blocks.Block]
) -> Iterator[tuple[pl.DataFrame, int]]:
    """Yield frames of the rows of the `blocks`, and how many bytes of the file have been read with each.

    They have `LINE` and, as text, the values of `columns`: new name → key of the objects; null where an object lacks
    the key. Lines that are no objects go to `bad`, and those with an object, a list, true or false as a value.
    """
    for block in blocks:
        for rows in text_blocks.parsed(
            block,
            lambda part: _at_once(part, columns, bad),
            lambda part: _one_by_one(part, columns, bad, enumerate(_lines(part)))[0],
            quoted=False,
        ):
            yield rows, block.done


def _lines(block: text_blocks.Block) -> list[bytes]:
    return block.text.removesuffix(b"\n").split(b"\n")


def _at_once(block: text_blocks.Block, columns: Mapping[str, str], bad: BadRows) -> pl.DataFrame | None:
    """Return the rows as Polars reads them; None where they are not one for each line."""
    if SURROGATE.search(block.text):
        return None
    try:
        frame = pl.read_ndjson(block.text, schema=dict.fromkeys(columns.values(), pl.String))
    except pl.exceptions.PolarsError:
        return None
    lines = _lines(block)
    if len(frame) != len(lines):
        return None
    frame = frame.select(line_numbers(block.first_line), **{new: pl.col(name) for new, name in columns.items()})
    doubtful = frame.select(pl.any_horizontal(pl.col(*columns).str.contains(NO_FIELD).fill_null(False))).to_series()
    _, wrong = _one_by_one(block, columns, bad, ((int(i), lines[i]) for i in np.flatnonzero(doubtful.to_numpy())))
    return frame.filter(~pl.col(LINE).is_in(wrong)) if wrong else frame


def _one_by_one(
    block: text_blocks.Block, columns: Mapping[str, str], bad: BadRows, lines: Iterable[tuple[int, bytes]]
) -> tuple[pl.DataFrame, list[int]]:
    """Return the rows of the `lines` (place in the block, text), and the numbers of those that went to `bad`."""
    rows: list[tuple[int | str | None, ...]] = []
    wrong: list[int] = []
    for place, line in lines:
        try:
            rows.append((block.first_line + place, *_values(_record(line), columns)))
        except _UnusableError as error:
            bad.add_line(block.path, block.first_line + place, *error.args)
            wrong.append(block.first_line + place)
    return pl.DataFrame(rows, {LINE: pl.Int64, **dict.fromkeys(columns, pl.String)}, orient="row"), wrong


def _record(line: bytes) -> dict[str, Any]:
    try:
        decoded = line.decode()
    except UnicodeDecodeError:
        raise _UnusableError("not UTF-8", NOT_UTF_8) from None
    if not decoded.strip():
        raise _UnusableError("empty line", "is empty")
    try:
        record = json.loads(decoded, object_pairs_hook=_first_of_each)
        if SURROGATE.search(line):
            json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise _UnusableError("not a JSON object", "is not a JSON object")
    return record


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; of a repeated key the first value counts, as for Polars."""
    return dict(reversed(pairs)) if len({key for key, _ in pairs}) < len(pairs) else dict(pairs)


def _values(record: Mapping[str, Any], columns: Mapping[str, str]) -> Iterator[str | None]:
    for field, name in columns.items():
        value = record.get(name)
        if isinstance(value, dict | list | bool):
            shown = json.dumps(value, ensure_ascii=False)
            shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[: LONGEST_SHOWN - 1]}…"
            raise _UnusableError(f"{field} is neither text nor number", f"{name} is {shown}: must be text or a number")
        yield _as_text(value)


def _as_text(value: str | float | None) -> str | None:
    """Return the value as Polars writes it: without exponent or fraction of a whole number. NaN is a missing value."""
    if value is None or value != value:
        return None
    return f"{Decimal(repr(value)):f}".removesuffix(".0") if isinstance(value, float) else str(value)
