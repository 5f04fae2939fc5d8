"""Every format of raw interactions as frames in file order: `user`, `item`, where known `time`, `rating`, `is_read`."""

import glob
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import polars as pl

from bert4rec.config.source_of_path import PACKED
from bert4rec.prepare.files import text_blocks
from bert4rec.prepare.files.arrow_files import ROWS_PER_FRAME, typed_columns, typed_rows
from bert4rec.prepare.files.bad_rows import BadRows
from bert4rec.prepare.files.csv_rows import LINE, Layout, parse
from bert4rec.prepare.files.json_lines import json_columns, json_rows
from bert4rec.prepare.files.kinds import Format, format_of
from bert4rec.prepare.files.layout import read_layout
from bert4rec.prepare.files.sequence_files import Words
from bert4rec.prepare.read.column_advice import column_advice
from bert4rec.prepare.read.fields import IDS, Fields, all_decimal
from bert4rec.prepare.read.times import Times, TimeUnit
from bert4rec.prepare.read.titles import FirstTitles, read_titles
from bert4rec.runtime.errors import DataError

MOVIELENS_CSV = {"user": "userId", "item": "movieId", "rating": "rating", "time": "timestamp"}
GOODREADS = {"user": "user_id", "item": "book_id", "rating": "rating"}
SEPARATED = ("user", "item", "rating", "time")
MOVIELENS_LINES = dict(zip(SEPARATED, SEPARATED, strict=True))
COLUMNS: dict[str, Mapping[str, str]] = {
    **dict.fromkeys(("ml-100k", "ml-1m"), MOVIELENS_LINES),
    **dict.fromkeys(("ml-20m", "ml-25m", "ml-32m", "ml-latest-small"), MOVIELENS_CSV),
    "goodreads": GOODREADS,
    "sequences": {"user": "user", "item": "item"},
}
FILES = {
    "ml-100k": ("u.data",),
    "ml-1m": ("ratings.dat",),
    **dict.fromkeys(("ml-20m", "ml-25m", "ml-32m", "ml-latest-small"), ("ratings.csv",)),
    "goodreads": ("goodreads_interactions.csv",),
    "sequences": ("*.txt",),
    "table": ("*.csv", "*.tsv", "*.parquet", "*.pq", "*.jsonl", "*.ndjson", "*.feather", "*.arrow", "*.ipc"),
}
NUMBERS = {"user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32, "is_read": pl.Int64}
TYPED = ("parquet", "arrow file", "arrow stream")
FIRST_ROWS = 1000  # that are looked at before all are read
FIRST_BYTES = 1 << 20  # of text, in which they stand

Part: TypeAlias = tuple[pl.DataFrame, int]


@dataclass
class Interactions:
    """The interactions in `files`, part by part; `columns`: what they call each field.

    Iterating yields a frame of usable rows (`user`, `item`: Int64 or String; `time`: Int64 seconds; `rating`: Float32;
    `is_read`: Boolean), and how many of the `n_bytes` have been read with it. The others are in `bad`. `text_ids`:
    fields whose ids "7.0" are not 7; `only_head`: the first rows alone.
    """

    source: str
    files: tuple[Path, ...]
    columns: Mapping[str, str]
    block_bytes: int
    separator: str = "auto"
    has_header: bool = True
    time_unit: TimeUnit = "auto"
    time_format: str = ""
    text_ids: Collection[str] = ()
    only_head: bool = False
    bad: BadRows = field(default_factory=BadRows)
    decimal_ids: Collection[str] | None = None

    def __post_init__(self) -> None:
        self.n_bytes = sum(file.stat().st_size for file in self.files)
        self._words, self._titles = Words(), FirstTitles()
        self._times = Times(self.time_unit, self.time_format)

    def __iter__(self) -> Iterator[Part]:
        self._titles = FirstTitles()
        for rows, done in self._usable():
            if "title" in self.columns:
                self._titles.add(rows.select("item", "title"))
            yield rows.drop("title", strict=False), done

    def first(self) -> pl.DataFrame:
        """The first usable rows, with their `title` where a column holds it."""
        self._find_decimal_ids()
        parts = [rows for rows, _ in self._head()._usable()]
        return pl.concat(parts, how="vertical_relaxed").head(FIRST_ROWS) if parts else pl.DataFrame()

    def first_of_other_columns(self) -> pl.DataFrame:
        """The first values of the columns of a table that no setting names, as they stand in the file."""
        path = self.files[0]
        present = self._present(path, format_of(path)) if self.source == "table" else {}
        others = [name for name, is_field in present.items() if is_field and name not in self.columns.values()]
        return self._first_raw({name: name for name in others}) if others else pl.DataFrame()

    def titles(self, path: str, dtype: pl.DataType) -> pl.DataFrame | None:
        """Titles (`item` of type `dtype`, `title`); None if unknown.

        They come from the column of the rows read so far, from `path`, or from beside MovieLens data.
        """
        if "title" in self.columns:
            return self._titles.all(dtype)
        beside = self.files[0].parent if self.source.startswith("ml-") else None
        return read_titles(path, beside=beside, dtype=dtype)

    def check(self, n_users: int) -> None:
        """What only all rows together tell; `n_users` is how many users they have. Raises `DataError`."""
        self._words.check(n_users)

    def _usable(self) -> Iterator[Part]:
        """As iterating, with the `title`."""
        is_table = self.source == "table"
        fields = Fields(
            self.columns,
            whole_number_ids=not is_table and self.source != "sequences",
            times=replace(self._times),
            decimal_ids=self._find_decimal_ids(),
        )
        before = 0
        for path in self.files:
            unit = "row" if is_table and format_of(path) in TYPED else "line"
            for raw, done in self._raw(path, self.columns):
                yield fields.cast(raw, path, self.bad, unit=unit), before + done
            before += path.stat().st_size

    def _head(self) -> "Interactions":
        """The same of the first rows of the first file alone; its bad rows are its own."""
        return replace(self, files=self.files[:1], only_head=True, bad=BadRows())

    def _first_raw(self, columns: Mapping[str, str]) -> pl.DataFrame:
        """The `columns` (new name → name in the file) of the first rows as they stand."""
        parts = [raw.drop(LINE) for raw, _ in self._head()._raw(self.files[0], columns)]
        return pl.concat(parts).head(FIRST_ROWS) if parts else pl.DataFrame(schema=[*columns])

    def _find_decimal_ids(self) -> Collection[str]:
        """The fields of a table whose ids are all whole numbers that are written as 7.0; found out once.

        Seldom are the first ones so; only then are those of all files looked at, before anything is made of them.
        """
        if self.decimal_ids is not None:
            return self.decimal_ids
        columns = {name: self.columns[name] for name in IDS if self.source == "table" and name not in self.text_ids}
        first = self._first_raw(columns) if columns else pl.DataFrame()
        found = [ids.name for ids in first if ids.dtype == pl.String and ids.count() and all_decimal(ids)]
        whole = replace(self, bad=BadRows())
        for raw in (raw for path in self.files if found for raw, _ in whole._raw(path, columns)):
            found = [name for name in found if all_decimal(raw[name])]
            if not found:
                break
        self.decimal_ids = found
        return found

    def _raw(self, path: Path, columns: Mapping[str, str]) -> Iterator[Part]:
        """`LINE` and the `columns` (field → name in the file) as they stand, part by part."""
        if self.source == "sequences":
            for block in self._blocks(path, quoted=False):
                yield self._words.parse(block, self.bad), block.done
            return
        kind = format_of(path) if self.source == "table" else "text"
        self._check_columns(path, columns, self._present(path, kind))
        if kind == "text":
            yield from self._text(path, columns)
        elif kind == "json lines":
            yield from json_rows(columns, self.bad, self._blocks(path, quoted=False))
        else:
            size = FIRST_ROWS if self.only_head else ROWS_PER_FRAME
            yield from islice(typed_rows(path, kind, columns, size), 1 if self.only_head else None)

    def _present(self, path: Path, kind: Format) -> Mapping[str, bool]:
        """The columns of the file, and of each whether it can be a field."""
        if kind == "text":
            return dict.fromkeys(self._layout(path).columns, True)
        return json_columns(path) if kind == "json lines" else typed_columns(path, kind)

    def _blocks(self, path: Path, *, quoted: bool) -> Iterable[text_blocks.Block]:
        if self.only_head:
            return [text_blocks.first_block(path, size=FIRST_BYTES, quoted=quoted)]
        return text_blocks.blocks(path, size=self.block_bytes, quoted=quoted)

    def _text(self, path: Path, columns: Mapping[str, str]) -> Iterator[Part]:
        layout = self._layout(path)
        for block in self._blocks(path, quoted=layout.quoted):
            block = text_blocks.without_first_line(block) if layout.header and block.first_line == 1 else block
            if block.text:
                for rows in parse(block, layout, self.bad):
                    yield rows.select(LINE, **{field: pl.col(name) for field, name in columns.items()}), block.done

    def _layout(self, path: Path) -> Layout:
        if self.source in ("ml-100k", "ml-1m"):
            bar = b"\t" if self.source == "ml-100k" else b"::"
            return Layout(SEPARATED, bar, quoted=False, header=(), types=self._types)
        if self.source == "table":
            return read_layout(path, separator=self.separator, has_header=self.has_header)
        return read_layout(path, separator=",", has_header=True, types=self._types)

    @property
    def _types(self) -> dict[str, type[pl.DataType]]:
        """Of the columns of known data, by their names in the file."""
        return {name: NUMBERS[field] for field, name in self.columns.items()}

    def _check_columns(self, path: Path, columns: Mapping[str, str], present: Collection[str]) -> None:
        for name, column in columns.items():
            if column not in present:
                advice = column_advice(self.columns, [*present]) if self.source == "table" else ""
                raise DataError(f'{path}: no column "{column}" ({name}); it has: {", ".join(present)}{advice}')


def open_interactions(
    source: str, *, path: str, user_column: str = "user", item_column: str = "item", time_column: str = "",
    rating_column: str = "", title_column: str = "", separator: str = "auto", has_header: bool = True,
    time_unit: TimeUnit = "auto", time_format: str = "", only_read: bool = False, text_ids: Collection[str] = (),
    block_bytes: int = 1 << 25,
) -> Interactions:  # fmt: skip
    """The interactions of `source` at `path`: a file, the folder that holds it, or a pattern such as `logs/*.csv.gz`.

    The column names, `separator`, `has_header`, `time_format` and `text_ids` matter for "table" only. Text is read
    `block_bytes` at a time. Raises `DataError` for what is not there.
    """
    columns = COLUMNS.get(source)
    if columns is None:
        named = {"user": user_column, "item": item_column, "time": time_column, "rating": rating_column}
        columns = {field: name for field, name in named.items() if name}
        if title_column in columns.values():
            raise DataError(f'data.title_column = "{title_column}": this column is another field already; name another')
        if title_column:
            columns["title"] = title_column
        if len({*columns.values()}) < len(columns):
            raise DataError(f"data.user_column, item_column, …: one column is named twice: {columns}; name each once")
    if only_read:
        if source != "goodreads":
            raise DataError("preprocessing.only_read = true: only the source goodreads has is_read; set it to false")
        columns = {**columns, "is_read": "is_read"}
    files = _files(path, *FILES[source])
    form = time_format if source == "table" else ""
    return Interactions(source, files, columns, block_bytes, separator, has_header, time_unit, form, text_ids)


def _files(path: str, *names: str) -> tuple[Path, ...]:
    """The file at `path`, the only one in the folder `path` that has one of the names, or all that fit a pattern."""
    if not path:
        raise DataError("data.path is empty: name the file with the interactions, or the folder that holds it")
    place = Path(path)
    if glob.has_magic(path) and not place.exists():
        found = sorted(Path(name) for name in glob.glob(path, recursive=True))
        if files := tuple(file for file in found if file.is_file()):
            return files
        raise DataError(f"{path}: no file fits this pattern; correct data.path")
    try:
        place.stat()
    except OSError as error:
        raise DataError(f"{place}: {error.strerror}; correct data.path") from None
    if place.is_file():
        return (place,)
    patterns = [name + packed for name in names for packed in ("", *PACKED)]
    found = sorted({file for pattern in patterns for file in place.glob(pattern) if file.is_file()})
    if len(found) != 1:
        wanted, have = " or ".join(names), ", ".join(file.name for file in found) or "none"
        raise DataError(f"{place}: one file {wanted} expected here, found: {have}; name it in data.path")
    return (found[0],)
