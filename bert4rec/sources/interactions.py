"""Read interactions: open the files of a source, find the columns, and yield usable rows."""

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from bert4rec.config.recognition import (
    PACKED,
    SUFFIXES,
    format_of,
    has_rows,
    has_sequences,
    matching_files,
    problem_of_path,
    recognize,
)
from bert4rec.config.sources import SOURCES, FileSource
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.dataset.format import NO_EVENT
from bert4rec.runtime.errors import ColumnUnknownError, DataError
from bert4rec.sources.attributes import FirstItemRows, ItemValues
from bert4rec.sources.column_inference import columns_by_position, infer_columns, other_times
from bert4rec.sources.columns import ID_FIELDS, Fields, are_values, column_advice, is_row
from bert4rec.sources.headers import columns_in, matched, unread_columns
from bert4rec.sources.order_values import descends, order_kind
from bert4rec.sources.progress import LINE, BadRows
from bert4rec.sources.synthetic import GENERATORS, GeneratedSource
from bert4rec.sources.tables import FIRST_ROWS, Part, SequenceFile, SequenceLines, TableFile
from bert4rec.sources.text_rows import OTHER
from bert4rec.sources.time_choice import choose_times
from bert4rec.sources.times import Times, unit_of_numbers
from bert4rec.sources.user_tables import read_titles

logger = logging.getLogger(__name__)

NUMBERS = {"user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32, "is_read": pl.Int64}
HISTORY_BYTES = 1 << 24  # block size for reading a text file of histories
USUAL_COLUMNS = {"user": "user", "item": "item", "time": "time"}
USUAL_HISTORY_FILE = (USUAL_COLUMNS, "auto", True, False)  # of histories: columns, separator, has_header, newest_first
BLOCK_BYTES = 1 << 25  # of text; parsed, a block takes about ten times its size


class Piece(NamedTuple):
    """A part of a file that can be read alone (see `TableFile.pieces`)."""

    path: Path
    part: slice = slice(0, None)
    n_bytes: int = 0


@dataclass(frozen=True)
class Interactions:
    """Read the interactions in `files` of the `source`, whose `columns` are field → name in the file.

    Iterating yields a frame of usable rows (`user`, `item`: Int64 or String; `time`: Int64 seconds, and `fraction`:
    Int32 nanoseconds if any of them has one; `order`: sortable by `order_kind`; `rating`: Float32; `is_read`: Boolean;
    `event`: Int16), and how many of the `n_bytes` have been read so far. Reading fills `bad` (the unusable rows),
    `words` (of sequences), `titles`, `others` (the values of items in columns that no field has), `kinds` (of events,
    by number) and `n_unordered` (rows without a value in the order column, by its name). Text is read `block_bytes` at
    a time. `newest_first`: the order of rows without times, or of one time. `other_times`: columns that may have the
    times instead, if none was named. `only_first`: read only the first rows. `skipped`: files without rows. `pieces`:
    what is read, by default all files.
    """

    source: FileSource
    files: tuple[Path, ...]
    columns: Mapping[str, str]
    times: Times
    block_bytes: int
    newest_first: bool = False
    other_times: Collection[str] = ()
    only_first: bool = False
    skipped: tuple[Path, ...] = ()
    pieces: tuple[Piece, ...] = ()
    others: ItemValues = field(default_factory=ItemValues)
    kinds: list[str] = field(default_factory=lambda: [NO_EVENT])
    order_kind: str = "number"
    bad: BadRows = field(default_factory=BadRows, init=False)  # init=False: a copy by `replace` has its own
    words: SequenceLines = field(default_factory=SequenceLines, init=False)
    titles: FirstItemRows = field(default_factory=lambda: FirstItemRows(title=pl.String), init=False)
    n_unordered: Counter[str] = field(default_factory=Counter, init=False)

    def __iter__(self) -> Iterator[Part]:
        for rows, done in self.usable():
            if "title" in self.columns:
                self.titles.add(rows.select("item", "title").drop_nulls("title"))
            self.others.add(rows)
            yield rows.drop("title", *self.others.columns, strict=False), done

    @cached_property
    def n_bytes(self) -> int:
        """Return the size of all files in bytes."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def order(self) -> dict[str, Any]:
        """Return the order of a user's items for `metadata.json`: by the `column` of the times, or as in the file.

        `then`: the column that orders rows with equal times; without times it is the `column` itself.
        """
        then = self.columns.get("order")
        if then and "time" not in self.columns:
            return {"by": "column", "column": then, "newest_first": False}
        if "time" not in self.columns:
            return {"by": "file", "column": None, "newest_first": self.newest_first}
        column = self.columns["time"] if self.source.form == "table" or self.source.has_header else None
        then_by = {"then": then} if then else {}
        return {"by": "time", "column": column, "newest_first": self.newest_first, **then_by}

    def usable(self) -> Iterator[Part]:
        """Yield the usable rows, with `title` and the columns of `others` if the file has them, and the bytes read."""
        fields = Fields(
            self.columns,
            whole_number_ids=self.source.form == "text",
            times=copy(self.times),
            kinds=self.kinds,
            order_kind=self.order_kind,
            n_unordered=self.n_unordered,
        )
        before = 0
        for path, part, _ in self.pieces or map(Piece, self.files):
            file = self.open(path)
            file_columns = {key: matched(column, file.columns) or "" for key, column in self.others.columns.items()}
            others = {key: self.others.columns[key] for key, name in file_columns.items() if file.columns.get(name)}
            for raw, done in self.raw(path, {**self.columns, **others}, part):
                yield fields.cast(raw, path, self.bad, unit=file.unit), before + done
            before += path.stat().st_size

    def cut(self) -> list[tuple[Piece, ...]]:
        """Return the pieces of the files that can be read alone; () for all if their lines belong together."""
        if self.source.form in ("sequences", "baskets"):
            return [()]
        cut: list[tuple[Piece, ...]] = []
        for path in self.files:
            file = self.open(path)
            parts = file.pieces() if isinstance(file, TableFile) else [slice(0, None)]
            cut += [(Piece(path, part, path.stat().st_size // len(parts)),) for part in parts]
        return cut

    def settled(self) -> "Interactions":
        """Return a copy that understands the times of every piece as those of the first part."""
        times = copy(self.times)
        if column := self.columns.get("time"):
            for raw, _ in islice(self.again().raw(self.files[0], {"time": column}), 1):
                times.seconds(raw["time"])
        return self.again(times=times, others=self.others)

    def raw(self, path: Path, columns: Mapping[str, str], part: slice = slice(0, None)) -> Iterator[Part]:
        """Yield `LINE` and the `columns` (field → name in the first file) without casts, part by part.

        `part` of the file is read. A title that only the first file has is null.
        """
        file = self.open(path)
        found = columns_in(path, file.columns, columns, self.files[0], is_table=self.source.form == "table")
        lacking = [pl.lit(None, pl.String).alias(field) for field in columns if field not in found]
        options: dict[str, Any] = {"block_bytes": self.block_bytes, "only_first": self.only_first}
        if isinstance(file, TableFile):
            options["piece"] = part
        for rows, done in file.rows(found, self.bad, **options):
            yield rows.with_columns(lacking), done

    def header_warnings(self) -> list[str]:
        """Return warnings of columns that only later files of a table have.

        Raises `DataError` if a later file lacks a column.
        """
        first, *later = self.files
        if self.source.form != "table" or not later:
            return []
        others = [(path, self.open(path).columns) for path in later]
        for path, present in others:
            columns_in(path, present, self.columns, first, is_table=True)
        return [*unread_columns(first, self.open(first).columns, others)]

    def open(self, path: Path) -> TableFile | SequenceFile:
        """Return a reader for the file at `path`."""
        if self.source.form in ("sequences", "baskets"):
            is_basket = self.source.form == "baskets"
            return SequenceFile(path, self.words, is_basket=is_basket, separator=self.source.separator)
        if self.source.form == "table":
            return TableFile(path, format_of(path), self.source.separator, self.source.has_header)
        types = {name: NUMBERS[field] for field, name in self.columns.items()}
        return TableFile(
            path, "text", self.source.separator, self.source.has_header, tuple(self.columns.values()), types
        )

    def again(self, **changes: Any) -> "Interactions":
        """Return a copy with `changes`, to be read separately: what reading fills is its own."""
        return replace(self, **{"others": ItemValues(), "kinds": [*self.kinds], **changes})

    def check(self, n_users: int) -> None:
        """Raise `DataError` for a problem that only all rows together show; `n_users` is their number of users."""
        self.words.check(n_users)

    def item_titles(self, path: str, dtype: pl.DataType) -> pl.DataFrame | None:
        """Return titles (`item` of type `dtype`, `title`); None if unknown.

        They come from the column of titles, as far as rows have been read, from `path`, or from a MovieLens folder.
        """
        if "title" in self.columns:
            return self.titles.rows().cast({"item": dtype})
        beside = self.files[0].parent if self.source.is_movielens else None
        return read_titles(path, beside=beside, dtype=dtype, item_column=self.columns["item"])

    def first_of(self, columns: Mapping[str, str]) -> pl.DataFrame:
        """Return the `columns` (new name → name in the file) of the first rows of the first file, without casts.

        The same columns are read once.
        """
        if (key := tuple(columns.items())) not in self._first:
            others = {OTHER + name: column for name, column in columns.items()}
            parts = [raw.drop(LINE) for raw, _ in self.again(only_first=True).raw(self.files[0], others)]
            first = pl.concat(parts).head(FIRST_ROWS) if parts else pl.DataFrame(schema=[*others])
            self._first[key] = first.rename(lambda name: name.removeprefix(OTHER))
        return self._first[key]

    @cached_property
    def _first(self) -> dict[tuple[tuple[str, str], ...], pl.DataFrame]:
        return {}


def open_source(data: Data, preprocessing: Preprocessing, *, usual_times: str = "") -> Interactions | GeneratedSource:
    """Return the interactions that `data` describes, in files or generated; `usual_times` as in `open_interactions`."""
    if data.source in GENERATORS:
        return GeneratedSource(
            data.source, n_users=data.n_users, n_items=data.n_items, n_rows=data.n_rows, seed=preprocessing.seed
        )
    return open_interactions(data, preprocessing, usual_times=usual_times)


def open_interactions(data: Data, preprocessing: Preprocessing, *, usual_times: str = "") -> Interactions:
    """Return the interactions of `data.path`: a file, a folder with it, or a pattern such as `logs/*.csv.gz`.

    `usual_times`: a format for times that fit it.
    Raises `DataError` for a missing file or column.
    """
    source, is_table = SOURCES[data.source], data.source == "table"
    columns = {} if is_table else dict(source.columns)
    if preprocessing.only_read:
        if data.source != "goodreads":
            raise DataError("preprocessing.only_read = true: only the source goodreads has is_read; set it to false")
        columns["is_read"] = "is_read"
    if not data.path:
        download = f"download it with `bert4rec prepare {data.source}`, or " if source.is_movielens else ""
        raise DataError(
            f"data.path is empty: {download}name the file with the interactions, or the folder that holds it"
        )
    present = _files(data.path, *(source.names or (f"*{suffix}" for suffix in SUFFIXES)))
    has_header = data.has_header if is_table else source.has_header
    files = tuple(file for file in present if has_rows(file, has_header=has_header))
    if not files and format_of(present[0]) == "text":
        place = present[0] if len(present) == 1 else data.path
        raise DataError(f"{place}: is empty, or has a header without rows; name another file")
    files = files or present[:1]
    if source.is_movielens and has_sequences(files[0]):
        raise DataError(
            f"{files[0]}: has lines of a user and items, not the ratings of {data.source}; read them with "
            "--data.source=sequences"
        )
    backwards = preprocessing.reverse_file_order
    newest_first = source.newest_first if backwards == "auto" else backwards
    times = Times(data.time_format if is_table else unit_of_numbers(data.time_format))
    if is_table or source.form == "baskets":
        source = replace(source, separator=data.separator, has_header=has_header)
    skipped = tuple(sorted({*present}.difference(files)))
    interactions = Interactions(source, files, columns, times, BLOCK_BYTES, newest_first, skipped=skipped)
    if is_table:
        columns, others = _columns_of_table(interactions, data)
        return _with_first_rows(replace(interactions, columns=columns, other_times=others), usual_times, backwards)
    if data.order_column:
        raise DataError(
            f"data.order_column = {data.order_column}: only tables have such a column, not {data.source}; remove it"
        )
    return interactions


def open_histories(path: str, data: Data, preprocessing: Preprocessing, *, is_named: bool) -> Interactions:
    """Return the rows of the file at `path` with histories to recommend for: `user`, `item`, if known `time`, `event`.

    The file has the columns of `data`, or the columns user, item and optionally time, or it is one that a preparation
    recognizes. With `is_named`, only the columns of `data` are accepted. Raises `DataError`.
    """
    file, own = Path(path), SOURCES.get(data.source, SOURCES["table"])
    named = {name: column for name, column in named_columns(data).items() if name in USUAL_COLUMNS}
    if not is_named and own.form != "table":
        named = {"time": "", **own.columns} if own.has_header else USUAL_COLUMNS
    unnamed = {field for field, column in named.items() if column == "auto"}
    named = {field: USUAL_COLUMNS[field] if field in unnamed else column for field, column in named.items()}
    backwards = preprocessing.reverse_file_order
    data_form = (named, data.separator, data.has_header, own.newest_first if backwards == "auto" else backwards)
    for columns, *form in (data_form, *(() if is_named else (USUAL_HISTORY_FILE,))):
        rows = _history_rows(file, *form)
        present = rows.open(file).columns
        needs_time = is_named and "time" not in unnamed and columns["time"]
        if all(columns[name] in present for name in ("user", "item", *(["time"] if needs_time else []))):
            time = next((name for name in (columns["time"], "time") if name in present), "")
            found = {"user": columns["user"], "item": columns["item"]} | ({"time": time} if time else {})
            found |= {"order": data.order_column} if data.order_column in present else {}
            break
    else:
        if not is_named and (recognized := _recognized(path)) not in ("", "table"):
            return open_interactions(data.model_copy(update={"source": recognized, "path": path}), Preprocessing())
        rows = _history_rows(file, *data_form[1:])
        found = _inferred_columns(rows, data, named, unnamed, present)
    event = next((name for name in (data.event_column, "event") if name and name in present), "")
    found |= {"event": event} if event else {}
    rows = _with_first_rows(replace(rows, columns=found), data.time_format, backwards)
    if rows.times.note:
        logger.info(f"times: {rows.times.note}")
    return rows


def _history_rows(file: Path, separator: str, has_header: bool, newest_first: bool) -> Interactions:
    source = replace(SOURCES["table"], separator=separator, has_header=has_header)
    return Interactions(source, (file,), {}, Times(), HISTORY_BYTES, newest_first)


def _inferred_columns(
    rows: Interactions, data: Data, named: Mapping[str, str], unnamed: set[str], present: Collection[str]
) -> dict[str, str]:
    """Return field → column of histories in which not all `named` columns are `present`. Raises `DataError`."""
    lacking = {name: column for name, column in named.items() if column and column not in present}
    if not unnamed or not lacking.keys() <= unnamed:
        missing = ", ".join(f"{column} ({name})" for name, column in lacking.items())
        advice = re.sub(r"--(\w+)=", r"--data.\1_column=", column_advice(named, [*present]))
        raise DataError(f"{rows.files[0]}: no column {missing}; it has: {', '.join(present)}{advice}")
    unused = dict.fromkeys(("rating_column", "title_column", "event_column"), "")
    try:
        return _columns_of_table(rows, data.model_copy(update=unused))[0]
    except ColumnUnknownError as error:
        options = [re.sub(r"^--(\w+)=", r"--data.\1_column=", option) for option in error.options]
        raise DataError(error.with_command(options, "add")) from None


def _with_first_rows(rows: Interactions, usual: str, backwards: bool | str) -> Interactions:
    """Return `rows` of a table with what its first rows tell: the form of the times, the kind of order, the direction.

    The times are read as the settings say, or as `choose_times` recognizes them. With `backwards` "auto", the rows are
    newest first if their times descend.
    """
    if column := rows.columns.get("order"):
        rows = replace(rows, order_kind=order_kind(rows.first_of({"order": column})["order"]))
    if not (column := rows.columns.get("time")):
        return rows
    if not rows.times.time_format:
        first, whole = rows.first_of({"time": column})["time"].alias(column), rows.again()
        values = (raw["time"] for path in whole.files for raw, _ in whole.raw(path, {"time": column}))
        rows = replace(rows, times=choose_times(first, values, path=rows.files[0], usual=usual))
    if backwards == "auto":
        parts = [part.select("user", "time") for part, _ in rows.again(files=rows.files[:1], only_first=True).usable()]
        rows = replace(rows, newest_first=bool(parts) and descends(pl.concat(parts, how="vertical_relaxed")))
    return rows


def _recognized(path: str) -> str:
    """Return the source that reads the file at `path`; "" if it is not recognized."""
    try:
        return recognize(path).source
    except DataError:
        return ""


def _columns_of_table(interactions: Interactions, data: Data) -> tuple[dict[str, str], list[str]]:
    """Return field → column, as the settings name it or as it is recognized in the first file, and `other_times`."""
    first, file = pl.DataFrame(), interactions.files[0]
    named = named_columns(data)
    if "auto" in named.values():
        present = interactions.open(file).columns
        is_named = {field: column for field, column in named.items() if column not in ("", "auto")}
        if data.has_header and not is_row([*present]):
            columns_in(file, present, is_named, file, is_table=True)
        first = interactions.first_of({name: name for name, is_field in present.items() if is_field})
    columns = choose_columns(data, first, str(file))
    is_open = data.time_column == "auto" and data.has_header
    return columns, other_times(first, columns) if is_open else []


def choose_columns(data: Data, first: pl.DataFrame, path: str) -> dict[str, str]:
    """Return field → column of a table that begins with the rows `first`.

    Raises `DataError` if a column has two fields, or if the users or items are not recognized.
    """
    named = named_columns(data)
    if "auto" not in named.values():
        return {field: column for field, column in named.items() if column}
    if not data.has_header:
        return columns_by_position(first, named, path)
    if is_row(first.columns) or are_values(first):
        raise DataError(f"{path}: its first line is a row and not a header; add --data.has_header=false")
    return infer_columns(first, named, path)


def named_columns(data: Data) -> dict[str, str]:
    """Return field → column of the settings: "auto" to recognize it, "" for none.

    Raises `DataError` if a column has two fields, or if there are no users or items.
    """
    named = {
        "user": data.user_column, "item": data.item_column, "time": data.time_column, "rating": data.rating_column,
        "event": data.event_column, "order": data.order_column,
        "title": "" if data.titles_path and data.title_column == "auto" else data.title_column,
    }  # fmt: skip
    if data.order_column == "auto":
        raise DataError("data.order_column = auto: it is not recognized; name the column, or remove the setting")
    if missing := next((field for field in ID_FIELDS if not named[field]), ""):
        raise DataError(f"--{missing}=: a table must have {missing}s; name their column, or remove the option")
    columns = [name for name in named.values() if name not in ("", "auto")]
    if len({*columns}) < len(columns):
        shown = ", ".join(f"{field} = {column}" for field, column in named.items() if column not in ("", "auto"))
        raise DataError(f"--user, --item, …: one column is named twice: {shown}; name each once")
    return named


def _files(path: str, *names: str) -> tuple[Path, ...]:
    """Return the file at `path`, the only file with one of the `names` in that folder, or all that fit a pattern."""
    if files := matching_files(path):
        return files
    place = Path(path)
    try:
        place.stat()
    except OSError as error:
        raise DataError(problem_of_path(place, error)) from None
    if place.is_file():
        return (place,)
    patterns = [name + packed for name in names for packed in ("", *PACKED)]
    found = sorted({file for pattern in patterns for file in place.glob(pattern) if file.is_file()})
    if len(found) != 1:
        expected, present = " or ".join(names), ", ".join(file.name for file in found) or "none"
        raise DataError(f"{place}: one file {expected} expected here, found: {present}; name it in data.path")
    return (found[0],)
