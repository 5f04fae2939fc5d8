"""Sequence files, as the field shares them: `user item` on each line, or a user and all its items on each line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import polars as pl

from bert4rec.prepare.files.bad_rows import LINE, BadRows, line_numbers
from bert4rec.prepare.files.csv_rows import NOT_UTF_8
from bert4rec.prepare.files.tables import Part
from bert4rec.prepare.files.text_blocks import Block, blocks
from bert4rec.runtime.errors import DataError


class Words:
    """A splitter of lines into words that remembers which of the two forms they have: a file must not have both."""

    def __init__(self) -> None:
        self._n_lines = 0
        self._first_long = ""  # place of the first line with more than two words

    def parse(self, block: Block, bad: BadRows) -> pl.DataFrame:
        """Return `LINE`, `user`, `item`, a row an interaction; lines without an item, or without UTF-8, go to `bad`."""
        lines = _lines(block, bad)
        words = lines.select(LINE, words=pl.col("text").str.extract_all(r"[^ \t\r]+"))
        count = pl.col("words").list.len()
        for line, n in words.filter(count < 2).select(LINE, count).iter_rows():
            bad.add_line(
                block.path, line, *(("item is missing", "item is missing") if n else ("empty line", "is empty"))
            )
        words = words.filter(count >= 2)
        self._n_lines += len(words)
        long = words.filter(count > 2).head(1)
        if len(long) and not self._first_long:
            self._first_long = f"{block.path}, line {long[LINE][0]}: {len(long['words'][0])} fields"
        user, items = pl.col("words").list.first(), pl.col("words").list.slice(1)
        return words.select(LINE, user=user, item=items).explode("item")

    def check(self, n_users: int) -> None:
        """Raise `DataError` where some lines are long, and users stand on several lines all the same."""
        if self._first_long and n_users < self._n_lines:
            raise DataError(
                f"{self._first_long}, and some users stand on several lines: write either one `user item` pair on "
                "each line, or each user once with all its items"
            )


@dataclass(frozen=True)
class SequenceFile:
    """A sequence file at `path`, whose lines `words` splits."""

    path: Path
    words: Words
    unit: ClassVar[str] = "line"  # what messages count
    columns: ClassVar[Mapping[str, bool]] = {"user": True, "item": True}

    def rows(self, columns: Mapping[str, str], bad: BadRows, *, block_bytes: int, only_first: bool) -> Iterator[Part]:
        """Yield the rows as `Table.rows` does; the `columns` are always its two."""
        for block in blocks(self.path, size=block_bytes, quoted=False, only_first=only_first):
            yield self.words.parse(block, bad), block.done


def _lines(block: Block, bad: BadRows) -> pl.DataFrame:
    """Return `LINE` and the `text` of every line that is UTF-8."""
    whole = block.text.removesuffix(b"\n")
    try:
        texts: list[str | None] = [*whole.decode().split("\n")]
    except UnicodeDecodeError:
        texts = [_decoded(line) for line in whole.split(b"\n")]
    lines = pl.DataFrame([pl.Series("text", texts, dtype=pl.String)]).select(line_numbers(block.first_line), "text")
    for number in lines.filter(pl.col("text").is_null())[LINE]:
        bad.add_line(block.path, number, "not UTF-8", NOT_UTF_8)
    return lines.drop_nulls("text")


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None
