"""Every source: what its files are called and hold, and its interactions."""

import glob
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from bert4rec.config.file_kinds import PACKED, SUFFIXES
from bert4rec.config.source_of_path import has_sequences
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.prepare.read.fields import IDS
from bert4rec.prepare.read.interactions import FileSource, Interactions, find_decimal_ids
from bert4rec.prepare.read.synthetic import GENERATORS, Generated
from bert4rec.prepare.read.times import Times
from bert4rec.runtime.errors import DataError

BLOCKS = 128  # blocks of text fit into the memory: as fields, a block takes some ten times its bytes
GROUPLENS_LINES = {name: name for name in ("user", "item", "rating", "time")}
GROUPLENS_COLUMNS = {"user": "userId", "item": "movieId", "rating": "rating", "time": "timestamp"}
GROUPLENS_CSV = FileSource(("ratings.csv",), GROUPLENS_COLUMNS, is_movielens=True)
SOURCES = {
    "ml-100k": FileSource(("u.data",), GROUPLENS_LINES, separator="\t", has_header=False, is_movielens=True),
    "ml-1m": FileSource(("ratings.dat",), GROUPLENS_LINES, separator="::", has_header=False, is_movielens=True),
    **dict.fromkeys(("ml-20m", "ml-25m", "ml-32m", "ml-latest-small"), GROUPLENS_CSV),
    "goodreads": FileSource(
        ("goodreads_interactions.csv",), {"user": "user_id", "item": "book_id", "rating": "rating"}, newest_first=True
    ),
    "sequences": FileSource(("*.txt",), {"user": "user", "item": "item"}, form="sequences", has_header=False),
    "table": FileSource(tuple(f"*{suffix}" for suffix in SUFFIXES), form="table"),
}


def open_source(
    data: Data, preprocessing: Preprocessing, *, text_ids: Collection[str] = ()
) -> Interactions | Generated:
    """The interactions that `data` describes, in files or generated; `text_ids` as in `open_interactions`."""
    if data.source in GENERATORS:
        return Generated(
            data.source, n_users=data.n_users, n_items=data.n_items, n_rows=data.n_rows, seed=preprocessing.seed
        )
    return open_interactions(data, preprocessing, text_ids=text_ids)


def open_interactions(data: Data, preprocessing: Preprocessing, *, text_ids: Collection[str] = ()) -> Interactions:
    """The interactions that `data` names by a file, the folder that holds it, or a pattern such as `logs/*.csv.gz`.

    `text_ids`: fields of a table whose ids "7.0" are not 7. Raises `DataError` for what is not there.
    """
    source, is_table = SOURCES[data.source], data.source == "table"
    columns = named_columns(data) if is_table else dict(source.columns)
    if preprocessing.only_read:
        if data.source != "goodreads":
            raise DataError("preprocessing.only_read = true: only the source goodreads has is_read; set it to false")
        columns["is_read"] = "is_read"
    if not data.path:
        download = f"download {data.source} with --download, or " if source.is_movielens else ""
        raise DataError(
            f"data.path is empty: {download}name the file with the interactions, or the folder that holds it"
        )
    files = _files(data.path, *source.names)
    if source.is_movielens and has_sequences(files[0]):
        raise DataError(
            f"{files[0]}: has lines of a user and items, not the ratings of {data.source}; read them with "
            "--data.source=sequences"
        )
    block_bytes, backwards = int(preprocessing.memory_gb * 1e9) // BLOCKS, preprocessing.reverse_file_order
    newest_first = source.newest_first if backwards == "auto" else backwards
    times = Times(data.time_unit, data.time_format if is_table else "")
    if is_table:
        source = replace(source, separator=data.separator, has_header=data.has_header)
    found = Interactions(source, files, columns, times, block_bytes, newest_first)
    names = [name for name in IDS if name not in text_ids] if is_table else []
    return replace(found, decimal_ids=find_decimal_ids(found, names))


def named_columns(data: Data) -> dict[str, str]:
    """The columns that the settings of a table name, by their fields. `DataError` where two fields are one column."""
    named = {"user": data.user_column, "item": data.item_column, "time": data.time_column, "rating": data.rating_column}
    columns = {field: name for field, name in named.items() if name}
    if data.title_column in columns.values():
        raise DataError(
            f'data.title_column = "{data.title_column}": this column is another field already; name another'
        )
    if data.title_column:
        columns["title"] = data.title_column
    if len({*columns.values()}) < len(columns):
        raise DataError(f"data.user_column, item_column, …: one column is named twice: {columns}; name each once")
    return columns


def _files(path: str, *names: str) -> tuple[Path, ...]:
    """The file at `path`, the only one in the folder `path` that has one of the names, or all that fit a pattern."""
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
        expected, present = " or ".join(names), ", ".join(file.name for file in found) or "none"
        raise DataError(f"{place}: one file {expected} expected here, found: {present}; name it in data.path")
    return (found[0],)
