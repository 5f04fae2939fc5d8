"""Every format of raw interactions as frames in file order: `user`, `item`, where known `time`, `rating`, `is_read`."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.errors import DataError
from bert4rec.prepare import text
from bert4rec.prepare.bad_rows import BadRows
from bert4rec.prepare.column_advice import column_advice
from bert4rec.prepare.fields import Fields, TimeUnit
from bert4rec.prepare.rows import LINE, Layout, parse, split_fields
from bert4rec.prepare.titles import read_titles
from bert4rec.prepare.words import Words

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
    "table": ("*.csv", "*.tsv", "*.parquet", "*.pq"),
}
NUMBERS = {"user": pl.Int64, "item": pl.Int64, "time": pl.Int64, "rating": pl.Float32, "is_read": pl.Int64}
PACKED = ("", ".gz", ".zst")  # what may follow the name of a text file
SEPARATORS = ("\t", "::", ";", ",")
PARQUET_MAGIC = b"PAR1"
ROWS_PER_BATCH = 1 << 20  # of Parquet files
LINE_LIMIT = 1 << 20  # bytes of a header

Part: TypeAlias = tuple[pl.DataFrame, int]


@dataclass
class Interactions:
    """The interactions in `files`, part by part; `columns`: what they call each field.

    Iterating yields a frame of usable rows (`user`, `item`: Int64 or String; `time`: Int64 seconds; `rating`: Float32;
    `is_read`: Boolean), and how many of the `n_bytes` have been read with it. The others are in `bad`.
    """

    source: str
    files: tuple[Path, ...]
    columns: Mapping[str, str]
    block_bytes: int
    separator: str = "auto"
    has_header: bool = True
    time_unit: TimeUnit = "auto"
    bad: BadRows = field(default_factory=BadRows)

    def __post_init__(self) -> None:
        self.n_bytes = sum(file.stat().st_size for file in self.files)
        self._words = Words()

    def __iter__(self) -> Iterator[Part]:
        before = 0
        fields: dict[str, Fields] = {}
        for path in self.files:
            is_parquet = self.source == "table" and _starts_as_parquet(path)
            unit = "row" if is_parquet else "line"
            if unit not in fields:
                whole = self.source not in ("table", "sequences")
                fields[unit] = Fields(self.columns, whole_number_ids=whole, unit=unit, time_unit=self.time_unit)
            for raw, done in self._parquet(path) if is_parquet else self._text(path):
                yield fields[unit].cast(raw, path, self.bad), before + done
            before += path.stat().st_size

    def titles(self, path: str, dtype: pl.DataType) -> pl.DataFrame | None:
        """Titles (`item` of type `dtype`, `title`) from `path`, else from beside MovieLens data; None if unknown."""
        beside = self.files[0].parent if self.source.startswith("ml-") else None
        return read_titles(path, beside=beside, dtype=dtype)

    def check(self, n_users: int) -> None:
        """What only all rows together tell; `n_users` is how many users they have. Raises `DataError`."""
        self._words.check(n_users)

    def _text(self, path: Path) -> Iterator[Part]:
        if self.source == "sequences":
            for block in text.blocks(path, size=self.block_bytes, quoted=False):
                yield self._words.parse(block, self.bad), block.done
            return
        layout = self._layout(path)
        self._check_columns(path, layout.columns)
        for block in text.blocks(path, size=self.block_bytes, quoted=layout.quoted):
            block = text.without_first_line(block) if layout.header and block.first_line == 1 else block
            if block.text:
                for rows in parse(block, layout, self.bad):
                    yield rows.select(LINE, **{field: pl.col(name) for field, name in self.columns.items()}), block.done

    def _layout(self, path: Path) -> Layout:
        if self.source in ("ml-100k", "ml-1m"):
            bar = b"\t" if self.source == "ml-100k" else b"::"
            return Layout(SEPARATED, bar, quoted=False, header=(), types=self._types)
        is_table = self.source == "table"
        start = text.head(path, size=LINE_LIMIT)
        if not start.strip():
            raise DataError(f"{path}: is empty; name another file in data.path")
        lines = start.decode("utf-8", "replace").split("\n")
        separator = _separator(lines[0], self.separator) if is_table else ","
        quoted = len(separator) == 1
        cells, n_lines = split_fields(lines, separator, quoted=quoted)
        header = tuple(cells) if self.has_header or not is_table else ()
        if not cells or (header and n_lines > 1):
            raise DataError(f'{path}, line 1: has a quote (") that is not closed on it; correct the line')
        columns = _distinct(header) or tuple(str(number) for number in range(1, len(cells) + 1))
        return Layout(columns, separator.encode(), quoted, header, {} if is_table else self._types)

    @property
    def _types(self) -> dict[str, type[pl.DataType]]:
        """Of the columns of known data, by their names in the file."""
        return {name: NUMBERS[field] for field, name in self.columns.items()}

    def _parquet(self, path: Path) -> Iterator[Part]:
        try:
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
            self._check_columns(path, file.schema_arrow.names)
            n_rows, seen = file.metadata.num_rows, 0
            for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=[*{*self.columns.values()}]):
                raw = pl.DataFrame(pl.from_arrow(batch)).select(
                    pl.int_range(seen + 1, seen + 1 + pl.len(), dtype=pl.Int64).alias(LINE),
                    **{field: pl.col(name) for field, name in self.columns.items()},
                )
                seen += len(raw)
                yield raw, path.stat().st_size * seen // max(1, n_rows)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: not a Parquet file, or damaged: {str(error).splitlines()[0]}") from None

    def _check_columns(self, path: Path, present: Sequence[str]) -> None:
        for name, column in self.columns.items():
            if column not in present:
                advice = column_advice(self.columns, present) if self.source == "table" else ""
                raise DataError(f'{path}: no column "{column}" ({name}); it has: {", ".join(present)}{advice}')


def open_interactions(
    source: str, *, path: str, user_column: str = "user", item_column: str = "item", time_column: str = "",
    rating_column: str = "", separator: str = "auto", has_header: bool = True, time_unit: TimeUnit = "auto",
    only_read: bool = False, block_bytes: int = 1 << 25,
) -> Interactions:  # fmt: skip
    """The interactions of `source` at `path`: a file, the folder that holds it, or a pattern such as `logs/*.csv.gz`.

    The column names, `separator` and `has_header` matter for "table" only. Text is read `block_bytes` at a time. Raises
    `DataError` for what is not there.
    """
    columns = COLUMNS.get(source)
    if columns is None:
        named = {"user": user_column, "item": item_column, "time": time_column, "rating": rating_column}
        columns = {field: name for field, name in named.items() if name}
        if len({*columns.values()}) < len(columns):
            raise DataError(f"data.user_column, item_column, …: one column is named twice: {columns}; name each once")
    if only_read:
        if source != "goodreads":
            raise DataError("preprocessing.only_read = true: only the source goodreads has is_read; set it to false")
        columns = {**columns, "is_read": "is_read"}
    files = _files(path, *FILES[source])
    return Interactions(source, files, columns, block_bytes, separator, has_header, time_unit)


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
    patterns = [name + packed for name in names for packed in PACKED]
    found = sorted({file for pattern in patterns for file in place.glob(pattern) if file.is_file()})
    if len(found) != 1:
        wanted, have = " or ".join(names), ", ".join(file.name for file in found) or "none"
        raise DataError(f"{place}: one file {wanted} expected here, found: {have}; name it in data.path")
    return (found[0],)


def _starts_as_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if not is_parquet and path.suffix.lower() in (".parquet", ".pq"):
        raise DataError(f"{path}: not a Parquet file, or damaged; bring the whole file")
    return is_parquet


def _separator(line: str, wanted: str) -> str:
    """What separates the fields of `line`: as `wanted`, else that of `SEPARATORS` which it has most of."""
    if wanted != "auto":
        return wanted.replace("\\t", "\t")
    return max(reversed(SEPARATORS), key=line.count)


def _distinct(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The names, a later one of the same as nothing that a setting could name."""
    return tuple(name if columns.index(name) == i else f"{name} {i + 1}" for i, name in enumerate(columns))
