"""Lines of text → rows of text fields; lines that do not have the fields of the others are set apart.

A block is parsed by Polars at once. Only where that fails, or does not give one row for each line, the block is halved
again and again, until the few lines in question are looked at one by one.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.prepare.bad_rows import BadRows
from bert4rec.prepare.text import NEWLINE, QUOTE, Block, inside_quotes, split_block

LINE = "line number"  # column with the line of the file, or the row of a Parquet file, that a message names
SMALL = 1 << 14  # bytes that are parsed line by line rather than halved again
UNIT_SEPARATOR = b"\x1f"  # stands in for a separator of several characters, which Polars does not know
NOT_UTF_8 = "is not UTF-8 text; convert the file, for instance with iconv -f ISO-8859-1 -t UTF-8"


UNCLOSED = ("unclosed quote", 'has a quote (") that nothing closes')

Problem: TypeAlias = tuple[str, str]  # what kind, and what to say of the line


@dataclass(frozen=True)
class Layout:
    """How the lines of a text file are cut: `columns` in order, the `separator`, whether fields may stand in quotes.

    `header`: the first line names the columns, so that the same line further down is no row. `types`: columns that are
    numbers in every usable row; where a whole block is so, they are parsed as such, which takes half the time.
    """

    columns: tuple[str, ...]
    separator: bytes
    quoted: bool
    header: bool
    types: Mapping[str, type[pl.DataType]] = field(default_factory=dict)


def parse(block: Block, layout: Layout, bad: BadRows) -> Iterator[pl.DataFrame]:
    """`LINE` and the columns of the layout, as text (null where nothing stands) or of their type; a row a usable line.

    Lines with too many or too few fields, without UTF-8, with an open quote, or with the header again go to `bad`.
    """
    frame = None if block.unclosed else _at_once(block, layout)
    if frame is not None:
        yield _without_headers(frame, block, layout, bad) if layout.header else frame
        return
    parts = [block] if len(block.text) <= SMALL or block.unclosed else split_block(block, quoted=layout.quoted)
    if len(parts) == 1:
        yield _one_by_one(block, layout, bad)
        return
    for part in parts:
        yield from parse(part, layout, bad)


def _at_once(block: Block, layout: Layout) -> pl.DataFrame | None:
    """The rows as Polars reads them; None where they are not one for each line, with all fields."""
    text, separator = block.text, layout.separator
    if len(separator) > 1:
        if UNIT_SEPARATOR in text:
            return None
        text, separator = text.replace(separator, UNIT_SEPARATOR), UNIT_SEPARATOR
    try:
        frame = _read(text, separator, layout)
    except pl.exceptions.PolarsError:
        return None
    is_quoted = layout.quoted and QUOTE in text
    inside = inside_quotes(text) if is_quoted else None
    starts = _line_starts(text, inside)
    is_whole = len(frame) == len(starts)
    if not is_whole or (frame[layout.columns[-1]].null_count() and _is_short(text, separator, inside, frame)):
        return None
    return frame.insert_column(0, pl.Series(LINE, block.first_line + starts, dtype=pl.Int64))


def _read(text: bytes, separator: bytes, layout: Layout) -> pl.DataFrame:
    """The columns with their types, or all as text where some value is not of its type."""
    as_text: dict[str, type[pl.DataType]] = dict.fromkeys(layout.columns, pl.String)
    for schema in [{**as_text, **layout.types}, as_text] if layout.types else [as_text]:
        frame = pl.read_csv(
            text,
            has_header=False,
            separator=separator.decode(),
            quote_char='"' if layout.quoted else None,
            schema=schema,
            ignore_errors=True,  # null where a number is none
        )
        if not any(frame[name].null_count() for name in layout.types):
            break
    return frame


def _line_starts(text: bytes, inside: NDArray[np.uint8] | None) -> NDArray[np.int64]:
    """The index of the line on which each row starts: a quoted field may go over several."""
    n_lines = text.count(NEWLINE) + (not text.endswith(NEWLINE))
    if inside is None:
        return np.arange(n_lines)
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE[0])
    starts = np.concatenate([[0], 1 + np.flatnonzero(inside[ends] == 0)])
    return starts[starts < n_lines]


def _is_short(text: bytes, separator: bytes, inside: NDArray[np.uint8] | None, frame: pl.DataFrame) -> bool:
    """Whether some row has fewer fields than columns, which Polars fills up in silence (it refuses longer ones)."""
    found = np.frombuffer(text, np.uint8) == separator[0]
    n_separators = found.sum() if inside is None else (found & (inside == 0)).sum()
    return bool(n_separators != len(frame) * (frame.width - 1))


def _without_headers(frame: pl.DataFrame, block: Block, layout: Layout, bad: BadRows) -> pl.DataFrame:
    first = layout.columns[0]
    if frame[first].dtype != pl.String or not (frame[first] == first).any():
        return frame
    again = pl.all_horizontal(pl.col(name) == name for name in layout.columns)
    for line in frame.filter(again)[LINE]:
        bad.add("header line again")
        bad.show(block.path, "line", line, "is the header line again")
    return frame.filter(~again.fill_null(False))


def _one_by_one(block: Block, layout: Layout, bad: BadRows) -> pl.DataFrame:
    rows: list[tuple[int, *tuple[str | None, ...]]] = []
    for line, fields, problem in _fields(block, layout):
        if not problem:
            rows.append((line, *(field or None for field in fields)))
            continue
        kind, text = problem
        bad.add(kind)
        bad.show(block.path, "line", line, text)
    return pl.DataFrame(rows, {LINE: pl.Int64, **dict.fromkeys(layout.columns, pl.String)}, orient="row")


def _fields(block: Block, layout: Layout) -> Iterator[tuple[int, list[str], Problem | None]]:
    """Of each row the line on which it starts, its fields, and what is wrong with it: kind and text."""
    text = block.text.decode("utf-8", "replace" if block.unclosed else "surrogateescape")
    separator, lines = layout.separator.decode(), text.removesuffix("\n").split("\n")
    if block.unclosed:
        yield block.first_line, [], UNCLOSED
        return
    if layout.quoted:
        yield from _quoted_fields(lines, block.first_line, layout)
        return
    for number, content in enumerate(lines, block.first_line):
        fields = content.removesuffix("\r").split(separator)
        yield number, fields, _problem(fields, layout)


def _quoted_fields(lines: list[str], first: int, layout: Layout) -> Iterator[tuple[int, list[str], Problem | None]]:
    """As `_fields`. A row over several lines that is none costs its first line only: a stray quote opens there."""
    at = 0
    while at < len(lines):
        reader = csv.reader((line + "\n" for line in lines[at:]), delimiter=layout.separator.decode())
        begin = at
        for fields in reader:
            problem = _problem(fields or [""], layout)
            next_line = begin + reader.line_num
            if problem and next_line > at + 1:
                yield first + at, fields, UNCLOSED
                at += 1
                break
            yield first + at, fields or [""], problem
            at = next_line


def _problem(fields: list[str], layout: Layout) -> Problem | None:
    if any("\udc80" <= letter <= "\udcff" for field in fields for letter in field):
        return "not UTF-8", NOT_UTF_8
    if layout.header and fields == list(layout.columns):
        return "header line again", "is the header line again"
    if len(fields) != len(layout.columns):
        wish = f"{len(layout.columns)} {'as the header has' if layout.header else 'expected'}"
        if fields == [""]:
            return "empty line", f"is empty; {wish.replace(' ', ' fields ', 1)}"
        n = f"{len(fields)} field" + "s" * (len(fields) != 1)
        return "wrong number of fields", f"has {n}; {wish}"
    return None
