"""The rows of a table in any format as they stand in its file, part by part, or the first of them alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import polars as pl

from bert4rec.config.recognition import Format
from bert4rec.prepare.files import text_blocks
from bert4rec.prepare.files.arrow_files import ROWS_PER_FRAME, typed_columns, typed_rows
from bert4rec.prepare.files.bad_rows import LINE, BadRows
from bert4rec.prepare.files.csv_rows import Layout, parse
from bert4rec.prepare.files.json_lines import json_columns, json_rows
from bert4rec.prepare.files.layout import read_layout

FIRST_ROWS = 1000  # that are looked at before all are read

Part: TypeAlias = tuple[pl.DataFrame, int]  # rows, and how many bytes of the file have been read with them


@dataclass(frozen=True)
class Table:
    """A table in the file at `path`.

    Of a file of text: its `separator`, `names` of its columns where no header gives them, and `types` (see `Layout`).
    """

    path: Path
    format: Format
    separator: str = "auto"
    has_header: bool = True
    names: tuple[str, ...] = ()
    types: Mapping[str, type[pl.DataType]] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """Return what messages count: lines of text, or rows."""
        return "line" if self.format in ("text", "json lines") else "row"

    @cached_property
    def columns(self) -> Mapping[str, bool]:
        """Return the columns of the file, and of each whether it can be a field."""
        if self.format == "text":
            return dict.fromkeys(self._layout.columns, True)
        return json_columns(self.path) if self.format == "json lines" else typed_columns(self.path, self.format)

    def rows(self, columns: Mapping[str, str], bad: BadRows, *, block_bytes: int, only_first: bool) -> Iterator[Part]:
        """Return `LINE` and the `columns` (new name → name in the file) of the usable rows; text: `block_bytes` at
        once.

        `only_first`: about the first `FIRST_ROWS` alone. Raises `DataError` for a damaged file.
        """
        if self.unit == "row":
            size = FIRST_ROWS if only_first else ROWS_PER_FRAME
            yield from islice(typed_rows(self.path, self.format, columns, size), 1 if only_first else None)
            return
        quoted = self.format == "text" and self._layout.quoted
        blocks = text_blocks.blocks(self.path, size=block_bytes, quoted=quoted, only_first=only_first)
        if self.format == "json lines":
            yield from json_rows(columns, bad, blocks)
            return
        for block in blocks:
            if self._layout.header and block.first_line == 1:
                end = block.text.find(b"\n") + 1 or len(block.text)
                block = replace(block, text=block.text[end:], first_line=2)
            for rows in parse(block, self._layout, bad) if block.text else ():
                yield rows.select(LINE, **{field: pl.col(name) for field, name in columns.items()}), block.done

    @cached_property
    def _layout(self) -> Layout:
        if self.names and not self.has_header:
            return Layout(self.names, self.separator.encode(), quoted=False, header=(), types=self.types)
        return read_layout(self.path, separator=self.separator, has_header=self.has_header, types=self.types)
