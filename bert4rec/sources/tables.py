"""Read tables (text, JSON lines, Parquet, Arrow) and sequence files as frames."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.config.first_lines import basket_separator
from bert4rec.config.recognition import TYPED_NAMES, Format
from bert4rec.runtime.console import visible
from bert4rec.runtime.errors import DataError
from bert4rec.sources.progress import LINE, BadRows, line_numbers
from bert4rec.sources.text_blocks import Block, blocks, count_lines, cut_places, head
from bert4rec.sources.text_rows import NOT_UTF_8, Layout, json_columns, parse, parse_json, read_layout

ROWS_PER_FRAME = 1 << 20
ROWS_PER_PIECE = 1 << 21  # of Parquet that can be read alone
FIRST_ROWS = 1000  # rows for a first look at a file
Part: TypeAlias = tuple[pl.DataFrame, int]  # rows, and how many bytes of the file have been read so far


def typed_columns(path: Path, kind: Format) -> dict[str, bool]:
    """Return the columns of the file at `path`, and whether each can be a field (has neither lists nor bytes).

    Raises `DataError` for a damaged file.
    """
    with _readable(path, kind):
        schema = pq.read_schema(path) if kind == "parquet" else _open(path, kind, None)[1].schema
        return {field.name: not (pa.types.is_nested(field.type) or _is_binary(field.type)) for field in schema}


def _is_binary(dtype: pa.DataType) -> bool:
    return pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_fixed_size_binary(dtype)


def typed_rows(
    path: Path, kind: Format, columns: Mapping[str, str], size: int = ROWS_PER_FRAME, groups: slice = slice(None)
) -> Iterator[tuple[pl.DataFrame, int]]:
    """Yield frames of at most `size` rows, and about how many bytes of the file have been read so far.

    They have `LINE`, the number of the row from 1, and the values of `columns` (new name → name in the file), with
    categories as text. `groups` are the row groups of Parquet to read. Raises `DataError` for a damaged file.
    """
    seen, n_bytes = 0, path.stat().st_size
    with _readable(path, kind):
        if kind == "parquet" and groups.start:
            seen = sum(_group_rows(path)[: groups.start])
        for batch, share in _batches(path, kind, [*{*columns.values()}], size, groups):
            batch.validate(full=True)  # these formats have no checksums, and Polars does not validate
            places = [batch.schema.names.index(name) for name in columns.values()]  # the first of columns of one name
            renamed = pa.RecordBatch.from_arrays([batch.column(place) for place in places], [*columns])
            for first in range(0, len(renamed), size):
                frame = pl.DataFrame(pl.from_arrow(renamed.slice(first, size)))
                frame = frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
                yield frame.select(line_numbers(seen + 1), pl.all()), int(n_bytes * share)
                seen += len(frame)


def _batches(path: Path, kind: Format, names: Sequence[str], size: int, groups: slice) -> Iterator[tuple[Any, float]]:
    """Yield record batches, and the share of the file, or of the `groups`, that has been read so far."""
    if kind == "parquet":
        rows, seen = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20), 0
        chosen = [*range(rows.num_row_groups)][groups]
        n_rows = sum(_group_rows(path)[groups])
        for batch in rows.iter_batches(batch_size=size, columns=names, row_groups=chosen):
            seen += batch.num_rows
            yield batch, seen / n_rows
        return
    file, reader = _open(path, kind, names)
    if kind == "arrow stream":
        for batch in reader:
            yield batch, file.tell() / file.size()
        return
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index), (index + 1) / reader.num_record_batches


def _group_rows(path: Path) -> list[int]:
    """Return the number of rows of each row group of a Parquet file."""
    metadata = pq.read_metadata(path)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _open(path: Path, kind: Format, names: Sequence[str] | None) -> tuple[Any, Any]:
    """Return the memory-mapped file and a reader of the columns `names`; None = all."""
    file = pa.memory_map(str(path))
    reader = pa.ipc.open_stream if kind == "arrow stream" else pa.ipc.open_file
    if names is None:
        return file, reader(file)
    present = reader(file).schema.names
    file.seek(0)
    return file, reader(file, options=pa.ipc.IpcReadOptions(included_fields=[present.index(name) for name in names]))


@contextmanager
def _readable(path: Path, kind: Format) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = visible(str(error).splitlines()[0])
        raise DataError(f"{path}: not {TYPED_NAMES[kind]}, or damaged: {reason}") from None


@dataclass(frozen=True)
class TableFile:
    """A table in the file at `path`.

    A text file has a `separator`, `names` of its columns if it has no header, and `types` (see `Layout`). Text that is
    not UTF-8 `may_be_latin`.
    """

    path: Path
    format: Format
    separator: str = "auto"
    has_header: bool = True
    names: tuple[str, ...] = ()
    types: Mapping[str, type[pl.DataType]] = field(default_factory=dict)
    may_be_latin: bool = False

    @property
    def unit(self) -> str:
        """Return what messages count: "line" for text, else "row"."""
        return "line" if self.format in ("text", "json lines") else "row"

    @cached_property
    def columns(self) -> Mapping[str, bool]:
        """Return the columns of the file, and whether each can be a field."""
        if self.format == "text":
            return dict.fromkeys(self.layout.columns, True)
        return json_columns(self.path) if self.format == "json lines" else typed_columns(self.path, self.format)

    def pieces(self) -> list[slice]:
        """Return ranges of the file that can be read alone: of bytes of plain text, of row groups of Parquet."""
        if self.unit == "line":
            places = cut_places(self.path, quoted=self.format == "text" and self.layout.quoted)
        elif self.format == "parquet":
            with _readable(self.path, self.format):
                ends = np.cumsum(_group_rows(self.path)) // ROWS_PER_PIECE
            places = [place for place in range(1, len(ends)) if ends[place - 1] > (ends[place - 2] if place > 1 else 0)]
        else:
            places = []
        return [slice(*bounds) for bounds in pairwise([0, *places, None])]

    def rows(
        self, columns: Mapping[str, str], bad: BadRows, *, block_bytes: int, only_first: bool,
        piece: slice = slice(0, None),
    ) -> Iterator[Part]:  # fmt: skip
        """Yield `LINE` and the `columns` (new name → name in the file) of the usable rows of a `piece`, default all.

        Text is read in blocks of `block_bytes`. With `only_first`, yields only about the first `FIRST_ROWS`. Raises
        `DataError` for a damaged file.
        """
        bad.n_before = int
        if self.unit == "row":
            size = FIRST_ROWS if only_first else ROWS_PER_FRAME
            frames = typed_rows(self.path, self.format, columns, size, piece)
            yield from islice(frames, 1 if only_first else None)
            return
        if piece.start:
            bad.n_before = cache(partial(count_lines, self.path, piece.start))
        quoted = self.format == "text" and self.layout.quoted
        fields = {field: pl.col(name) for field, name in columns.items()}
        for block in blocks(
            self.path, size=block_bytes, quoted=quoted, only_first=only_first, start=piece.start, stop=piece.stop
        ):
            if self.format == "json lines":
                yield from ((rows, block.done) for rows in parse_json(block, columns, bad))
                continue
            if self.may_be_latin and _decoded(block.text) is None:
                block = replace(block, text=block.text.decode("latin-1").encode())
            if block.first_line == 1 and not piece.start:
                for _ in range(self.layout.n_above + bool(self.layout.header)):
                    end = block.text.find(b"\n") + 1 or len(block.text)
                    block = replace(block, text=block.text[end:], first_line=block.first_line + 1)
            for rows in parse(block, self.layout, bad) if block.text else ():
                yield rows.select(LINE, **fields), block.done

    @cached_property
    def layout(self) -> Layout:
        """Return the layout of a text file. Raises `DataError` for an empty one."""
        if self.names and not self.has_header:
            return Layout(self.names, self.separator.encode(), quoted=False, header=(), types=self.types)
        return read_layout(self.path, separator=self.separator, has_header=self.has_header, types=self.types)


class SequenceLines:
    """Split lines into words, and check that a file has only one of the two forms of lines."""

    def __init__(self) -> None:
        self.n_lines = self._n_baskets = 0
        self.first_long = ""  # file and number of the first line with more than two words

    def parse(self, block: Block, bad: BadRows, *, is_basket: bool = False, separator: str = " ") -> pl.DataFrame:
        """Return `LINE`, `user`, `item`, a row per interaction; lines without an item, or not UTF-8, go to `bad`.

        The first word is the user; with `is_basket`, each line has a user of its own, who is numbered from 1. Blanks,
        or the `separator` if it is another one, are between the words.
        """
        if separator == " ":
            split = pl.col("text").str.extract_all(r"[^ \t\r]+")
        else:
            parts = pl.col("text").str.split(separator).list.eval(pl.element().str.strip_chars())
            split = parts.list.eval(pl.element().filter(pl.element() != ""))
        words = _lines(block, bad).select(LINE, words=split)
        if is_basket:
            self._n_baskets += len(words)
            numbers = pl.int_range(self._n_baskets - len(words) + 1, self._n_baskets + 1).cast(pl.String)
            is_empty = pl.col("words").list.len() == 0
            user_words = pl.when(is_empty).then("words").otherwise(pl.concat_list(numbers, "words"))
            words = words.with_columns(words=user_words)
        count = pl.col("words").list.len()
        for line, n in words.filter(count < 2).select(LINE, count).iter_rows():
            problem = ("item is missing", "item is missing") if n else ("empty line", "is empty")
            bad.add_line(block.path, line, *problem)
        words = words.filter(count >= 2)
        self.n_lines += len(words)
        long = words.filter(count > 2).head(1)
        if len(long) and not self.first_long:
            self.first_long = f"{block.path}, line {long[LINE][0]}: {len(long['words'][0])} fields"
        user, items = pl.col("words").list.first(), pl.col("words").list.slice(1)
        return words.select(LINE, user=user, item=items).explode("item")

    def check(self, n_users: int) -> None:
        """Raise `DataError` if a line has several items, and yet a user is on several lines."""
        if self.first_long and n_users < self.n_lines:
            raise DataError(
                f"{self.first_long}, and some users are on several lines: write either one `user item` pair on "
                "each line, or each user once with all its items; lines of items alone: --data.source=baskets"
            )


@dataclass(frozen=True)
class SequenceFile:
    """A sequence file at `path`, or one of baskets with a `separator` of items; `words` splits its lines."""

    path: Path
    words: SequenceLines
    is_basket: bool = False
    separator: str = "auto"
    unit: ClassVar[str] = "line"  # what messages count
    columns: ClassVar[Mapping[str, bool]] = {"user": True, "item": True}

    def rows(self, columns: Mapping[str, str], bad: BadRows, *, block_bytes: int, only_first: bool) -> Iterator[Part]:
        """Yield the rows as `TableFile.rows` does; the `columns` are always user and item."""
        bar = self.separator.replace("\\t", "\t") if self.is_basket else " "
        if bar == "auto":
            bar = basket_separator(head(self.path).decode("utf-8", "replace"))
        for block in blocks(self.path, size=block_bytes, quoted=False, only_first=only_first):
            yield self.words.parse(block, bad, is_basket=self.is_basket, separator=bar), block.done


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
