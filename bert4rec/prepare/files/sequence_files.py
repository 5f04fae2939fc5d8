"""Sequence files, as the field shares them: `user item` on each line, or a user and all its items on each line."""

import polars as pl

from bert4rec.prepare.files.bad_rows import BadRows
from bert4rec.prepare.files.csv_rows import LINE, NOT_UTF_8
from bert4rec.prepare.files.text_blocks import Block
from bert4rec.runtime.errors import DataError

LINES = {LINE: pl.Int64, "text": pl.String}


class Words:
    """Splits lines into words, and remembers which of the two forms they have: one file must not have both."""

    def __init__(self) -> None:
        self._n_lines = 0
        self._first_long = ""  # place of the first line with more than two words

    def parse(self, block: Block, bad: BadRows) -> pl.DataFrame:
        """`LINE`, `user`, `item`, a row an interaction; lines without an item, or without UTF-8, go to `bad`."""
        lines = _lines(block, bad)
        words = lines.select(LINE, words=pl.col("text").str.extract_all(r"[^ \t\r]+"))
        count = pl.col("words").list.len()
        for line, n in words.filter(count < 2).select(LINE, count).iter_rows():
            bad.add("item is missing" if n else "empty line")
            bad.show(block.path, "line", line, "item is missing" if n else "is empty")
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


def _lines(block: Block, bad: BadRows) -> pl.DataFrame:
    """`LINE` and the `text` of every line that is UTF-8."""
    raw = block.text.removesuffix(b"\n").split(b"\n")
    numbers = range(block.first_line, block.first_line + len(raw))
    try:
        return pl.DataFrame({LINE: numbers, "text": [line.decode() for line in raw]}, LINES)
    except UnicodeDecodeError:
        pass
    rows: list[tuple[int, str]] = []
    for number, line in zip(numbers, raw, strict=True):
        try:
            rows.append((number, line.decode()))
        except UnicodeDecodeError:
            bad.add("not UTF-8")
            bad.show(block.path, "line", number, NOT_UTF_8)
    return pl.DataFrame(rows, LINES, orient="row")
