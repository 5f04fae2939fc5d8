"""Lines of text → rows of text fields; lines that do not have the fields of the others are bad rows.

A block is parsed by Polars at once. Only where that fails, or does not give one row for each line, the block is halved
again and again, until the few lines in question are looked at one by one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bert4rec.config.recognition import infer_separator
from bert4rec.prepare.progress import LINE, BadRows
from bert4rec.prepare.text import text_blocks
from bert4rec.prepare.text.text_blocks import NEWLINE, QUOTE, Block, inside_quotes, parsed
from bert4rec.runtime.errors import DataError

UNIT_SEPARATOR = b"\x1f"  # stands in for a separator of several characters, which Polars does not know
NOT_UTF_8 = "is not UTF-8 text; convert the file, for instance with iconv -f ISO-8859-1 -t UTF-8"
HEADER_AGAIN = ("header line again", "is the header line again")
UNCLOSED = ("unclosed quote", 'has a quote (") that nothing closes')

Problem: TypeAlias = tuple[str, str]  # what kind, and what to say of the line


@dataclass(frozen=True)
class Layout:
    """Hold how the lines of a text file are cut: `columns` in order, `separator`, whether fields may be in quotes.

    `header`: the fields of the first line, so that the same line further down is no row; () = it has none. `types`:
    columns that are numbers in every usable row; where a whole block is so, they are parsed as such, which takes half
    the time.
    """

    columns: tuple[str, ...]
    separator: bytes
    quoted: bool
    header: tuple[str, ...]
    types: Mapping[str, type[pl.DataType]] = field(default_factory=dict)


def parse(block: Block, layout: Layout, bad: BadRows) -> Iterator[pl.DataFrame]:
    """Yield `LINE` and the columns of the layout, as text (null for an empty field) or of their type; a row per usable
    line.

    Lines with too many or too few fields, without UTF-8, with an open quote, or with the header again go to `bad`.
    """
    return parsed(
        block,
        lambda part: _at_once(part, layout, bad),
        lambda part: _one_by_one(part, layout, bad),
        quoted=layout.quoted,
    )


def _at_once(block: Block, layout: Layout, bad: BadRows) -> pl.DataFrame | None:
    """Return the rows as Polars reads them; None where they are not one for each line, with all fields."""
    text, separator = block.text, layout.separator
    if not text.endswith(NEWLINE):
        text += NEWLINE  # without it, Polars takes no notice of a separator at the end
    if len(separator) > 1:
        if UNIT_SEPARATOR in text:
            return None
        text, separator = text.replace(separator, UNIT_SEPARATOR), UNIT_SEPARATOR
    inside = inside_quotes(text) if layout.quoted and QUOTE in text else None
    if b"\r" + separator in text or (inside is not None and not _quotes_whole_fields(text, separator)):
        return None  # Polars may read them otherwise than a line alone says
    try:
        frame = _read(text, separator, layout)
    except pl.exceptions.PolarsError:
        return None
    starts = _line_starts(text, inside)
    is_whole = len(frame) == len(starts)
    if not is_whole or (frame[layout.columns[-1]].null_count() and _is_short(text, separator, inside, frame)):
        return None
    frame.insert_column(0, pl.Series(LINE, block.first_line + starts, dtype=pl.Int64))
    return _without_headers(frame, block, layout, bad) if layout.header else frame


def _read(text: bytes, separator: bytes, layout: Layout) -> pl.DataFrame:
    """Return the columns with their types, or all as text where some value is not of its type."""
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


def _quotes_whole_fields(text: bytes, separator: bytes) -> bool:
    """Return whether every quote opens a field, closes one, or is one of two within."""
    letters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(letters == QUOTE[0])

    def beside(places: NDArray[np.int64], *letters_beside: bytes) -> NDArray[np.bool_]:
        is_text = (places >= 0) & (places < len(text))
        found = np.where(is_text, letters[np.clip(places, 0, len(text) - 1)], NEWLINE[0])
        return np.isin(found, [letter[0] for letter in letters_beside])

    ends = (separator, NEWLINE, QUOTE)
    opening, closing = quotes[::2], quotes[1::2]
    is_last = beside(closing + 1, b"\r") & beside(closing + 2, NEWLINE)
    return len(quotes) % 2 == 0 and bool(
        beside(opening - 1, *ends).all() and (beside(closing + 1, *ends) | is_last).all()
    )


def _line_starts(text: bytes, inside: NDArray[np.uint8] | None) -> NDArray[np.int64]:
    """Return the index of the line on which each row starts: a quoted field may go over several."""
    n_lines = text.count(NEWLINE) + (not text.endswith(NEWLINE))
    if inside is None:
        return np.arange(n_lines)
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE[0])
    starts = np.concatenate([[0], 1 + np.flatnonzero(inside[ends] == 0)])
    return starts[starts < n_lines]


def _is_short(text: bytes, separator: bytes, inside: NDArray[np.uint8] | None, frame: pl.DataFrame) -> bool:
    """Return whether some row has fewer fields than columns, which Polars fills up in silence (it refuses longer
    ones).
    """
    found = np.frombuffer(text, np.uint8) == separator[0]
    n_separators = found.sum() if inside is None else (found & (inside == 0)).sum()
    return bool(n_separators != len(frame) * (frame.width - 1))


def _without_headers(frame: pl.DataFrame, block: Block, layout: Layout, bad: BadRows) -> pl.DataFrame:
    names, first = dict(zip(layout.columns, layout.header, strict=True)), layout.header[0]
    if any(frame[name].dtype != pl.String for name in names) or (
        first and not (frame[layout.columns[0]] == first).any()
    ):
        return frame
    is_again = pl.all_horizontal(pl.col(name).fill_null("") == text for name, text in names.items())
    for line in frame.filter(is_again)[LINE]:
        bad.add_line(block.path, line, *HEADER_AGAIN)
    return frame.filter(~is_again)


def _one_by_one(block: Block, layout: Layout, bad: BadRows) -> pl.DataFrame:
    rows: list[tuple[int, *tuple[str | None, ...]]] = []
    for line, fields, problem in _fields(block, layout):
        if problem:
            bad.add_line(block.path, line, *problem)
        else:
            rows.append((line, *(field or None for field in fields)))
    return pl.DataFrame(rows, {LINE: pl.Int64, **dict.fromkeys(layout.columns, pl.String)}, orient="row")


def _fields(block: Block, layout: Layout) -> Iterator[tuple[int, list[str], Problem | None]]:
    """Yield for each row its first line, its fields and its problem (kind and text)."""
    lines = block.text.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    separator, line = layout.separator.decode(), block.first_line
    for unit in _units(lines) if layout.quoted else ([line] for line in lines):
        at = 0
        while at < len(unit):
            fields, n_lines = split_fields(unit[at:], separator, quoted=layout.quoted)
            problem = _problem(fields, layout) if fields else UNCLOSED
            if n_lines > 1 and len(fields) != len(layout.columns):
                problem, n_lines = UNCLOSED, 1  # a stray quote: it costs its line only
            yield line + at, fields, problem
            at += n_lines
        line += len(unit)


def _units(lines: list[str]) -> Iterator[list[str]]:
    """Yield the lines in groups with an even number of quotes each: no block of text ends within a group."""
    first, is_inside = 0, False
    for number, line in enumerate(lines, 1):
        is_inside ^= line.count('"') % 2 == 1
        if not is_inside:
            yield lines[first:number]
            first = number
    if is_inside:
        yield lines[first:]


def split_fields(lines: list[str], separator: str, *, quoted: bool) -> tuple[list[str], int]:
    """Return the fields of the row that begins the `lines`, and on how many of them it stands.

    No field: a quote stays open, or is closed on a later line amid other text.

    >>> split_fields(['1,"a', 'b ""c"" ",5"', "2,d,6"], ",", quoted=True)
    (['1', 'a\\nb "c" ', '5"'], 2)
    """
    if not quoted:
        return lines[0].removesuffix("\r").split(separator), 1
    text, bar = "\n".join(lines), re.escape(separator)
    fields: list[str] = []
    # No possessive quantifier: around groups they are wrong before Python 3.11.5.
    for match in re.finditer(rf'(?:"([^"]*(?:""[^"]*)*)"(?!"))?([^{bar}\n]*)({bar}|\n|\Z)', text):
        within, behind, end = match.groups()
        behind = behind if end == separator else behind.removesuffix("\r")
        if (within is None and behind.startswith('"')) or (behind and "\n" in (within or "")):
            return [], 1
        fields.append((within or "").replace('""', '"') + behind)
        if end != separator:
            break
    return fields, 1 + text.count("\n", 0, match.end() - len(end))


def _problem(fields: list[str], layout: Layout) -> Problem | None:
    if any("\udc80" <= letter <= "\udcff" for field in fields for letter in field):
        return "not UTF-8", NOT_UTF_8
    if layout.header and fields == list(layout.header):
        return HEADER_AGAIN
    if len(fields) != len(layout.columns):
        wish = f"{len(layout.columns)} {'as the header has' if layout.header else 'expected'}"
        if fields == [""]:
            return "empty line", f"is empty; {wish.replace(' ', ' fields ', 1)}"
        n = f"{len(fields)} field" + "s" * (len(fields) != 1)
        return "wrong number of fields", f"has {n}; {wish}"
    return None


LINE_LIMIT = 1 << 20  # bytes of a header


def read_layout(
    path: Path, *, separator: str, has_header: bool, types: Mapping[str, type[pl.DataType]] | None = None
) -> Layout:
    """Return the layout of the file at `path`; "auto": the separator of which the first line has most.

    Raises `DataError` for an empty file, or a header with an open quote.
    """
    start = text_blocks.head(path, size=LINE_LIMIT)
    if not start.strip():
        raise DataError(f"{path}: is empty; name another file in data.path")
    lines = start.decode("utf-8", "replace").split("\n")
    bar = infer_separator(lines[0]) if separator == "auto" else separator.replace("\\t", "\t")
    quoted = len(bar) == 1
    cells, n_lines = split_fields(lines, bar, quoted=quoted)
    header = tuple(cells) if has_header else ()
    if not cells or (header and n_lines > 1):
        raise DataError(f'{path}, line 1: has a quote (") that is not closed on it; correct the line')
    columns = _distinct(header) or tuple(str(number) for number in range(1, len(cells) + 1))
    return Layout(columns, bar.encode(), quoted, header, types or {})


def _distinct(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, a later one of the same as nothing that a setting could name."""
    return tuple(name if columns.index(name) == i else f"{name} {i + 1}" for i, name in enumerate(columns))
