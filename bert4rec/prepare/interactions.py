"""Interactions and titles of items, read from a source."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl

from bert4rec.config.recognition import format_of
from bert4rec.prepare.column_inference import column_advice
from bert4rec.prepare.fields import Fields, all_decimal
from bert4rec.prepare.ordering import Distinct
from bert4rec.prepare.progress import LINE, BadRows
from bert4rec.prepare.tables import FIRST_ROWS, Part, SequenceFile, Table, Words
from bert4rec.prepare.times import Times
from bert4rec.runtime.errors import DataError

MOVIELENS_FILES = ("movies.csv", "movies.dat", "u.item")
SEPARATORS = {".dat": "::", ".item": "|"}


def read_titles(path: str, *, beside: Path | None, dtype: pl.DataType) -> pl.DataFrame | None:
    """Return `item` (of type `dtype`), `title` from the file at `path`, else from a MovieLens file in the folder
    `beside`.

    `.dat` and `.item` files are MovieLens' own formats; every other file is a CSV with the columns `item` (or
    `movieId`) and `title`. None where there is no file. Raises `DataError` for a file that cannot be used.
    """
    found = Path(path) if path else _movielens_file(beside)
    if found is None:
        return None
    if not found.is_file():
        raise DataError(f"{found}: no such file; correct data.titles_path")
    try:
        text = _decoded(found.read_bytes())
    except OSError as error:
        raise DataError(f"{found}: cannot be read: {error.strerror}") from None
    separator = SEPARATORS.get(found.suffix.lower())
    titles = _from_csv(found, text) if separator is None else _from_lines(text, separator)
    return _checked(found, titles, dtype)


def _movielens_file(folder: Path | None) -> Path | None:
    files = [folder / name for name in MOVIELENS_FILES] if folder else []
    return next((file for file in files if file.is_file()), None)


def _decoded(content: bytes) -> str:
    """Return the text as UTF-8, else as ISO-8859-1, the encoding of the older MovieLens files."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _from_lines(text: str, separator: str) -> pl.DataFrame:
    lines = pl.DataFrame({"line": text.split("\n")}).select(pl.col("line").str.strip_chars_end("\r"))
    parts = pl.col("line").str.splitn(separator, 3).struct
    return lines.filter(pl.col("line") != "").select(item=parts[0], title=parts[1])


def _from_csv(path: Path, text: str) -> pl.DataFrame:
    try:
        table = pl.read_csv(text.encode(), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: not a CSV file: {str(error).splitlines()[0]}") from None
    item = "item" if "item" in table.columns else "movieId"
    if item not in table.columns or "title" not in table.columns:
        raise DataError(f'{path}: columns {table.columns}: titles need the columns "item" and "title"')
    return table.select(item=item, title="title")


def _checked(path: Path, titles: pl.DataFrame, dtype: pl.DataType) -> pl.DataFrame:
    """Return the titles with ids of the interactions' type; refuses what would be lost in silence."""
    titles = titles.with_columns(key=pl.col("item").cast(dtype, strict=False))
    bad = titles.filter(pl.any_horizontal(pl.col("key", "title").is_null()))
    if len(bad):
        item, title, _ = bad.row(0)
        raise DataError(f'{path}: item "{item}", title "{title}": every title needs an item id like those of the data')
    twice = titles.filter(pl.col("key").is_duplicated())
    if len(twice):
        raise DataError(f'{path}: item "{twice["item"][0]}" has two titles; leave one title for each item')
    return titles.select(item="key", title="title")


NUMBERS = {"user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32, "is_read": pl.Int64}


@dataclass(frozen=True)
class FileSource:
    """Hold what is known of a source of files.

    `names`: what a file of it may be called in its folder. `form`: lines of text with known `columns` (field → name in
    the file), sequences, or a table in any format whose columns the settings name. `separator`, `has_header`: how lines
    are cut. `newest_first`: the order of rows without times. `is_movielens`: whether files of titles stand beside it.
    """

    names: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    form: Literal["text", "sequences", "table"] = "text"
    separator: str = ","
    has_header: bool = True
    newest_first: bool = False
    is_movielens: bool = False


@dataclass(frozen=True)
class Interactions:
    """Hold the interactions in `files` of the `source`; `columns`: what they call each field; text: `block_bytes` at a
    time.

    Iterating yields a frame of usable rows (`user`, `item`: Int64 or String; `time`: Int64 seconds; `rating`: Float32;
    `is_read`: Boolean), and how many of the `n_bytes` have been read with it. What was met on the way stands in `bad`
    (the other rows), `words` (of sequences) and `titles`. `newest_first`: the order of rows without times.
    `decimal_ids`: fields whose ids are whole numbers written as "7.0"; `only_first`: the first rows alone.
    """

    source: FileSource
    files: tuple[Path, ...]
    columns: Mapping[str, str]
    times: Times
    block_bytes: int
    newest_first: bool = False
    decimal_ids: Collection[str] = ()
    only_first: bool = False
    bad: BadRows = field(default_factory=BadRows)
    words: Words = field(default_factory=Words)
    titles: Distinct = field(default_factory=lambda: Distinct(title=pl.String))

    def __iter__(self) -> Iterator[Part]:
        for rows, done in self.usable():
            if "title" in self.columns:
                self.titles.add(rows.select("item", "title").drop_nulls("title"))
            yield rows.drop("title", strict=False), done

    @cached_property
    def n_bytes(self) -> int:
        """Return the bytes of all files on the disk."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def order(self) -> dict[str, Any]:
        """Return what gives the order of a user's items, as `metadata.json` has it: the `column` of the times, or the
        file.
        """
        if "time" not in self.columns:
            return {"by": "file", "column": None, "newest_first": self.newest_first}
        column = self.columns["time"] if self.source.form == "table" or self.source.has_header else None
        return {"by": "time", "column": column, "newest_first": False}

    def usable(self) -> Iterator[Part]:
        """Yield the usable rows with the `title`, if a column holds it, and the bytes read with them."""
        fields = Fields(
            self.columns,
            whole_number_ids=self.source.form == "text",
            times=replace(self.times),
            decimal_ids=self.decimal_ids,
        )
        before = 0
        for path in self.files:
            unit = self.open(path).unit
            for raw, done in self.raw(path, self.columns):
                yield fields.cast(raw, path, self.bad, unit=unit), before + done
            before += path.stat().st_size

    def raw(self, path: Path, columns: Mapping[str, str]) -> Iterator[Part]:
        """Yield `LINE` and the `columns` (field → name in the file) as they stand, part by part."""
        file = self.open(path)
        for name, column in columns.items():
            if column not in file.columns:
                advice = column_advice(self.columns, [*file.columns]) if self.source.form == "table" else ""
                raise DataError(f'{path}: no column "{column}" ({name}); it has: {", ".join(file.columns)}{advice}')
        yield from file.rows(columns, self.bad, block_bytes=self.block_bytes, only_first=self.only_first)

    def open(self, path: Path) -> Table | SequenceFile:
        """Return the file at `path`, whose rows can be read."""
        if self.source.form == "sequences":
            return SequenceFile(path, self.words)
        if self.source.form == "table":
            return Table(path, format_of(path), self.source.separator, self.source.has_header)
        types = {name: NUMBERS[field] for field, name in self.columns.items()}
        return Table(path, "text", self.source.separator, self.source.has_header, tuple(self.columns.values()), types)

    def again(self, **changes: Any) -> "Interactions":
        """Return the same to be read apart: what is met then is not met here."""
        return replace(self, bad=BadRows(), words=Words(), titles=Distinct(title=pl.String), **changes)

    def check(self, n_users: int) -> None:
        """Raise `DataError` for a problem that only all rows together show; `n_users`: how many users they have."""
        self.words.check(n_users)

    def item_titles(self, path: str, dtype: pl.DataType) -> pl.DataFrame | None:
        """Return titles (`item` of type `dtype`, `title`); None if unknown.

        They come from the column of the rows read so far, from `path`, or from beside MovieLens data.
        """
        if "title" in self.columns:
            return self.titles.rows().cast({"item": dtype})
        return read_titles(path, beside=self.files[0].parent if self.source.is_movielens else None, dtype=dtype)

    def first_of(self, columns: Mapping[str, str]) -> pl.DataFrame:
        """Return the `columns` (new name → name in the file) of the first rows of the first file, as they stand."""
        parts = [raw.drop(LINE) for raw, _ in self.again(only_first=True).raw(self.files[0], columns)]
        return pl.concat(parts).head(FIRST_ROWS) if parts else pl.DataFrame(schema=[*columns])


def decimal_id_fields(interactions: Interactions, names: Collection[str]) -> list[str]:
    """Return which of the fields `names` have ids that are all whole numbers written as "7.0".

    Seldom are the first ones so; only then are those of all files looked at, before anything is made of them.
    """
    columns = {name: interactions.columns[name] for name in names}
    first = interactions.first_of(columns) if columns else pl.DataFrame()
    found = [ids.name for ids in first if ids.dtype == pl.String and ids.count() and all_decimal(ids)]
    whole = interactions.again()
    for raw in (raw for path in whole.files if found for raw, _ in whole.raw(path, columns)):
        found = [name for name in found if all_decimal(raw[name])]
        if not found:
            break
    return found
