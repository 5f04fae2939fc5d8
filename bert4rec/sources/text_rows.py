"""Parse lines of CSV or JSON into rows of text fields; lines that cannot be parsed are bad rows.

Arrow parses a whole block of CSV at once, without the lines that have another number of fields; Polars a block of JSON.
If that fails, or may read a line otherwise than `csv`, the block is halved repeatedly, until the few lines with the
problem are parsed one by one.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import accumulate, pairwise
from operator import xor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pc

from bert4rec.config.first_lines import (
    column_names,
    has_runs_of_blanks,
    infer_separator,
    is_above_header,
    without_separator_line,
)
from bert4rec.dataset.ids import OUTER_BLANKS
from bert4rec.runtime.console import visible
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.sources.progress import LINE, BadRows, line_numbers
from bert4rec.sources.text_blocks import NEWLINE, QUOTE, Block, head, inside_quotes, parsed

UNIT_SEPARATOR = b"\x1f"  # replaces a separator of several characters, which Polars does not support
SEPARATOR_BYTES = 1 << 16  # bytes in which the separator is looked for
NOT_UTF_8 = "is not UTF-8 text; convert the file, for instance with iconv -f ISO-8859-1 -t UTF-8"
QUOTED_FIELD = rb'(?<![^%b\n])"[^"]*(?:""[^"]*)*"(?=[%b\n]|\r\n)'
BLANKS = re.compile(rb'(?m)(?<![^ \t\n])("[^"]*")(?![^ \t\r\n])|(^[ \t]+|[ \t]+(?=\r?$))|[ \t]+')
ARROW_TYPES: dict[type[pl.DataType], pa.DataType] = {pl.Int64: pa.int64(), pl.Float32: pa.float32()}
EMPTY_LINE = "empty line"  # a kind of problem
HEADER_AGAIN = ("header line again", "is the header line again")
UNCLOSED = ("unclosed quote", 'has a quote (") that nothing closes')
RETURN = "\udc0d"  # replaces a carriage return inside a line, where `csv` would end the row; no decoded text has it

Problem: TypeAlias = tuple[str, str]  # kind of problem, and message for the line
OTHER = "\n"  # begins the new name of a column that no field needs, so that no value of it makes a bad row
LONGEST_SHOWN = 40  # characters of a value in a message
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # an unpaired surrogate is no valid text
NO_FIELD = r"^(?:true|false|[\[{])"  # values, as text, that may be neither text nor number


@dataclass(frozen=True)
class Layout:
    """Describe the lines of a text file: `columns` in order, `separator`, whether fields may be `quoted`.

    `header`: the fields of the first line, since a repeated header line is no row; () = no header. `types`: columns
    that are numbers in every usable row. A block in which this holds is parsed with these types, which takes half the
    time. `has_runs`: the separator is one blank or several, also tabs. `n_above`: lines above the header, to skip.
    """

    columns: tuple[str, ...]
    separator: bytes
    quoted: bool
    header: tuple[str, ...]
    types: Mapping[str, type[pl.DataType]] = field(default_factory=dict)
    has_runs: bool = False
    n_above: int = 0


def parse(block: Block, layout: Layout, bad: BadRows) -> Iterator[pl.DataFrame]:
    """Yield `LINE` and the columns of the layout, as text (null for an empty field) or typed; a row per usable line.

    Lines with too many or too few fields, that are not UTF-8, with an unclosed quote, or that repeat the header go to
    `bad`.
    """
    text = _single_blanks(block.text) if layout.has_runs else _without_blanks(block.text, layout.separator)
    block = replace(block, text=text) if text is not block.text else block
    one_by_one = partial(_one_by_one, layout=layout, bad=bad)
    return parsed(block, partial(_at_once, layout=layout, bad=bad), one_by_one, quoted=layout.quoted)


def _without_blanks(text: bytes, separator: bytes) -> bytes:
    """Return `text` without the blanks around quoted fields: for `csv`, a quote after a blank would be text."""
    if len(separator) > 1 or separator == b" " or b" " + QUOTE not in text:
        return text
    bar = re.escape(separator)
    return re.sub(rb'(?<![^%b\n]) *("[^"]*(?:""[^"]*)*") *(?=[%b\r\n]|$)' % (bar, bar), rb"\1", text)


def _single_blanks(text: bytes) -> bytes:
    """Return the lines of `text` with one blank between two fields, and none at the ends; quoted fields are kept."""
    if QUOTE in text:
        return BLANKS.sub(lambda match: match[1] or (b" " if match[2] is None else b""), text)
    text = re.sub(rb"[ \t]+", b" ", text)
    return text.replace(b" \r\n", b"\r\n").replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" ")


def _at_once(block: Block, layout: Layout, bad: BadRows) -> pl.DataFrame | None:
    """Return the rows as Arrow reads them, without lines that it cannot read; None if it may differ from `csv`."""
    text, separator = block.text, layout.separator
    if not text.endswith(NEWLINE):
        text += NEWLINE
    if len(separator) > 1:
        if UNIT_SEPARATOR in text:
            return None
        text, separator = text.replace(separator, UNIT_SEPARATOR), UNIT_SEPARATOR
    try:
        _ = text.isascii() or text.decode()  # else Arrow prints a traceback of an invalid row
    except UnicodeDecodeError:
        return None
    has_quotes, bar = layout.quoted and QUOTE in text, re.escape(separator)
    if text.count(b"\r") != text.count(b"\r\n") or (
        has_quotes and QUOTE in re.sub(QUOTED_FIELD % (bar, bar), b"", text)
    ):
        return None  # Arrow reads a quote within a field otherwise
    read = _read(text, separator, layout)
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE[0])
    is_last = inside_quotes(text)[ends] == 0 if has_quotes else np.ones(len(ends), bool)
    starts = np.concatenate([[0], 1 + np.flatnonzero(is_last)[:-1]])  # the index of the line on which each row starts
    if read is None or len(starts) != len(read[0]) + len(read[1]):
        return None
    frame, invalid = read
    is_row = np.ones(len(starts), bool)
    is_row[invalid] = False
    frame.insert_column(0, pl.Series(LINE, starts[is_row], dtype=pl.Int64))
    empty = frame.filter(pl.all_horizontal(pl.exclude(LINE).is_null()))[LINE].to_list()
    problems: dict[int, Problem] = {}
    if len(invalid) or empty:
        if (np.diff(starts, append=len(ends))[invalid] > 1).any():
            return None  # only the first line of such a row is bad
        for line in [*starts[invalid].tolist(), *empty]:
            cut = text[ends[line - 1] + 1 if line else 0 : ends[line]].decode("utf-8", "surrogateescape")
            if problem := _problem(split_fields([cut], separator.decode(), quoted=layout.quoted)[0], layout):
                problems[line] = problem
        frame = frame.filter(~pl.col(LINE).is_in([*problems]))
    if layout.header:
        frame = _without_headers(frame, layout, problems)
    for line in sorted(problems):
        bad.add_line(block.path, block.first_line + line, *problems[line])
    return frame.with_columns(pl.col(LINE) + block.first_line)


def _read(text: bytes, separator: bytes, layout: Layout) -> tuple[pl.DataFrame, list[int]] | None:
    """Return the rows, with their types or all as text if some value is not of its type, and the invalid rows."""
    invalid: list[int] = []

    def skip(row: pc.InvalidRow) -> str:
        invalid.append(row.number - 1)
        return "skip"

    names = [f"{number}" for number in range(len(layout.columns))]
    reading = pc.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1)
    parsing = pc.ParseOptions(
        delimiter=separator.decode(), quote_char=layout.quoted and '"', newlines_in_values=layout.quoted,
        ignore_empty_lines=False, invalid_row_handler=skip,
    )  # fmt: skip
    as_text = dict.fromkeys(layout.columns, pa.string())
    typed = {name: ARROW_TYPES[dtype] for name, dtype in layout.types.items()}
    for types in [as_text | typed, as_text] if typed else [as_text]:
        invalid.clear()
        converting = pc.ConvertOptions(
            column_types=dict(zip(names, types.values(), strict=True)), null_values=[""], strings_can_be_null=True
        )
        try:
            table = pc.read_csv(pa.BufferReader(text), reading, parsing, converting)
        except pa.ArrowInvalid:
            continue
        if types is as_text or not any(column.null_count for column in table.columns):
            return pl.DataFrame(pl.from_arrow(table)).rename(dict(zip(names, layout.columns, strict=True))), invalid
    return None


def _without_headers(frame: pl.DataFrame, layout: Layout, problems: dict[int, Problem]) -> pl.DataFrame:
    names, first = dict(zip(layout.columns, layout.header, strict=True)), layout.header[0]
    if any(frame[name].dtype != pl.String for name in names) or (
        first and not (frame[layout.columns[0]] == first).any()
    ):
        return frame
    is_again = pl.all_horizontal(pl.col(name).fill_null("") == text for name, text in names.items())
    problems |= dict.fromkeys(frame.filter(is_again)[LINE], HEADER_AGAIN)
    return frame.filter(~is_again)


def _one_by_one(block: Block, layout: Layout, bad: BadRows) -> pl.DataFrame:
    """Return the rows as `csv` reads them; a stray quote makes only its own line a bad row."""
    rows: list[tuple[int, *tuple[str | None, ...]]] = []
    lines = block.text.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    # A row may end only where the number of quotes is even, like every block.
    is_inside = [*accumulate((layout.quoted and line.count('"') % 2 for line in lines[:-1]), xor), False]
    at = 0
    while at < len(lines):
        group = lines[at : is_inside.index(False, at) + 1]
        fields, n_lines = split_fields(group, layout.separator.decode(), quoted=layout.quoted)
        if n_lines > 1 and len(fields) != len(layout.columns):
            fields, n_lines = [], 1
        if problem := _problem(fields, layout):
            bad.add_line(block.path, block.first_line + at, *problem)
        else:
            rows.append((block.first_line + at, *(field or None for field in fields)))
        at += n_lines
    return pl.DataFrame(rows, {LINE: pl.Int64, **dict.fromkeys(layout.columns, pl.String)}, orient="row")


def split_fields(lines: list[str], separator: str, *, quoted: bool) -> tuple[list[str], int]:
    """Return the fields of the first row of `lines`, and the number of its lines.

    Returns no field if a quote is unclosed, or if text follows a closing quote in a row of several lines.

    >>> split_fields(['1,"a', 'b ""c"" ",5"', "2,d,6"], ",", quoted=True)
    (['1', 'a\\nb "c" ', '5"'], 2)
    """
    if not quoted:
        return lines[0].removesuffix("\r").split(separator), 1
    csv.field_size_limit(1 << 31)  # for the whole process: a text may be longer than the default limit of 128 KB
    reader = csv.reader(map(_as_csv_line, lines), delimiter=separator, strict=True)
    try:
        fields = next(reader)
        n_lines = reader.line_num
    except csv.Error:  # not strict: text after a closing quote belongs to the field
        reader = csv.reader([_as_csv_line(lines[0]), ""], delimiter=separator)
        fields, n_lines = next(reader), 1
        if reader.line_num > 1:
            return [], 1
    return [field.replace(RETURN, "\r") for field in fields] or [""], n_lines


def _as_csv_line(line: str) -> str:
    return line[:-1].replace("\r", RETURN) + line[-1:] + "\n"


def _problem(fields: list[str], layout: Layout) -> Problem | None:
    if not fields:
        return UNCLOSED
    if any("\udc80" <= letter <= "\udcff" for field in fields for letter in field):
        return "not UTF-8", NOT_UTF_8
    if layout.header and fields == list(layout.header):
        return HEADER_AGAIN
    if len(fields) != len(layout.columns):
        n_expected, why = len(layout.columns), "as the header has" if layout.header else "expected"
        if fields == [""]:
            return EMPTY_LINE, f"is empty; {n_expected} fields {why}"
        decimal = _decimal_comma(fields) if len(fields) > n_expected and layout.separator == b"," else ""
        return "wrong number of fields", f"has {pluralize(len(fields), 'field')}; {n_expected} {why}{decimal}"
    return None


def _decimal_comma(fields: Sequence[str]) -> str:
    """Return the end of a message that names a number with a decimal comma among the fields; "" if there is none."""
    numbers = [
        (whole, digits) for whole, digits in pairwise(fields)
        if re.fullmatch(r"[-+]?\d{1,6}", whole) and re.fullmatch(r"\d{1,2}", digits)
    ]  # fmt: skip
    if len(numbers) != 1:
        return ""
    whole, digits = numbers[0]
    return f'; if "{whole},{digits}" is one number, write it as {whole}.{digits} or in quotes'


def read_layout(
    path: Path, *, separator: str, has_header: bool, types: Mapping[str, type[pl.DataType]] | None = None
) -> Layout:
    """Return the layout of the file at `path`; "auto" chooses the separator that fits the first lines best.

    Raises `DataError` for an empty file, or a header with an unclosed quote.
    """
    whole = _first_text(path)
    text = without_separator_line(whole)
    n_above = int(len(text) < len(whole))
    start = text[:SEPARATOR_BYTES].decode("utf-8", "replace")
    if has_header and is_above_header(start):
        shown = visible(start.lstrip().partition("\n")[0].strip(), keep="")[:LONGEST_SHOWN]
        raise DataError(
            f'{path}, line {1 + n_above}: "{shown}" is not a header (the lines below it have other fields); remove the '
            "lines above the header"
        )
    bar = infer_separator(start) if separator == "auto" else separator.replace("\\t", "\t")
    quoted, has_runs = len(bar) == 1, bar == " " and has_runs_of_blanks(start)
    plain = _single_blanks(text) if has_runs else _without_blanks(text, bar.encode())
    lines = plain.decode("utf-8", "replace").split("\n")
    cells, n_lines = split_fields(lines, bar, quoted=quoted)
    header = tuple(cells) if has_header else ()
    if not cells or (header and n_lines > 1):
        raise DataError(f'{path}, line 1: has a quote (") that is not closed on it; correct the line')
    names = column_names([cell.strip(OUTER_BLANKS) for cell in header]) or [f"{n + 1}" for n in range(len(cells))]
    # A repeated name gets its position appended, so that no setting names it by accident.
    columns = tuple(name if names.index(name) == i else f"{name} {i + 1}" for i, name in enumerate(names))
    return Layout(columns, bar.encode(), quoted, header, types or {}, has_runs, n_above)


def _first_text(path: Path) -> bytes:
    start = head(path)
    if not start.strip():
        raise DataError(f"{path}: is empty; name another file")
    return start


def shortened(text: str) -> str:
    """Return a text cut to a length for a message."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


class _UnusableError(ValueError):
    """A line cannot be parsed; the arguments are the kind of problem and the message."""


def json_columns(path: Path) -> dict[str, bool]:
    """Return the keys of the first objects, in order, and whether each can be a field (is no object or list).

    Raises `DataError` for an empty file.
    """
    columns: dict[str, bool] = {}
    for line in _first_text(path).split(b"\n"):
        try:
            record = _record(line)
        except _UnusableError:
            continue
        for name, value in record.items():
            columns[name] = columns.get(name, True) and not isinstance(value, dict | list)
    return columns


def parse_json(block: Block, columns: Mapping[str, str], bad: BadRows) -> Iterator[pl.DataFrame]:
    """Yield `LINE` and, as text, the values of `columns` (new name → key of the objects); null for a missing key.

    Lines that are no objects, and lines with an object, a list, true or false as a value, go to `bad`; but a column
    whose new name begins with `OTHER` may have them, as JSON.
    """
    one_by_one = partial(_json_one_by_one, columns=columns, bad=bad)
    return parsed(block, partial(_json_at_once, columns=columns), one_by_one, quoted=False)


def _json_at_once(block: Block, columns: Mapping[str, str]) -> pl.DataFrame | None:
    """Return the rows as Polars reads them; None unless each line gives one row and all values can be fields."""
    if SURROGATE.search(block.text):
        return None
    try:
        frame = pl.read_ndjson(block.text, schema=dict.fromkeys(columns.values(), pl.String))
    except pl.exceptions.PolarsError:
        return None
    n_lines = block.text.count(NEWLINE) + (not block.text.endswith(NEWLINE))
    fields = {column for new, column in columns.items() if not new.startswith(OTHER)}
    if len(frame) != n_lines or any(frame[column].str.contains(NO_FIELD).any() for column in fields):
        return None
    return frame.select(line_numbers(block.first_line), **{new: pl.col(name) for new, name in columns.items()})


def _json_one_by_one(block: Block, columns: Mapping[str, str], bad: BadRows) -> pl.DataFrame:
    rows: list[tuple[int | str | None, ...]] = []
    for number, line in enumerate(block.text.removesuffix(NEWLINE).split(NEWLINE), block.first_line):
        try:
            rows.append((number, *_values(_record(line), columns)))
        except _UnusableError as error:
            bad.add_line(block.path, number, *error.args)
    return pl.DataFrame(rows, {LINE: pl.Int64, **dict.fromkeys(columns, pl.String)}, orient="row")


def _record(line: bytes) -> dict[str, Any]:
    try:
        decoded = line.decode()
    except UnicodeDecodeError:
        raise _UnusableError("not UTF-8", NOT_UTF_8) from None
    if not decoded.strip():
        raise _UnusableError(EMPTY_LINE, "is empty")
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
    """Return the pairs as a dict; the first value of a repeated key counts, as in Polars."""
    return dict(reversed(pairs)) if len({key for key, _ in pairs}) < len(pairs) else dict(pairs)


def _values(record: Mapping[str, Any], columns: Mapping[str, str]) -> Iterator[str | None]:
    for new, name in columns.items():
        value = record.get(name)
        if new.startswith(OTHER) and isinstance(value, dict | list | bool):
            value = json.dumps(value, ensure_ascii=False)
        elif isinstance(value, dict | list | bool):
            shown = shortened(json.dumps(value, ensure_ascii=False))
            raise _UnusableError(f"{new} is neither text nor number", f"{name} is {shown}: must be text or a number")
        yield _as_text(value)


def _as_text(value: str | float | None) -> str | None:
    """Return the value as Polars writes it, without an exponent, and whole numbers without ".0"; None for NaN."""
    if value is None or value != value:
        return None
    return f"{Decimal(repr(value)):f}".removesuffix(".0") if isinstance(value, float) else str(value)
