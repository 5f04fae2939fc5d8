"""How the lines of a CSV file, or of one with another separator, are cut: told from its first line."""

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from bert4rec.config.recognition import likely_separator
from bert4rec.prepare.files import text_blocks
from bert4rec.prepare.files.csv_rows import Layout, split_fields
from bert4rec.runtime.errors import DataError

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
    bar = likely_separator(lines[0]) if separator == "auto" else separator.replace("\\t", "\t")
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
