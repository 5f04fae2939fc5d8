"""Every source: what its files are called and hold, and its interactions."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from bert4rec.config.recognition import PACKED, SUFFIXES, format_of, has_sequences, matching_files, recognize
from bert4rec.config.tables import Data, Preprocessing
from bert4rec.prepare.column_inference import column_advice
from bert4rec.prepare.fields import IDS
from bert4rec.prepare.interactions import FileSource, Interactions, decimal_id_fields
from bert4rec.prepare.synthetic import GENERATORS, GeneratedSource
from bert4rec.prepare.tables import Table
from bert4rec.prepare.times import Times
from bert4rec.runtime.errors import DataError

HISTORY_BYTES = 1 << 24  # of text that are read at once of a file of histories
USUAL_COLUMNS = {"user": "user", "item": "item", "time": "time"}
USUAL_FILE = (USUAL_COLUMNS, "auto", True, False)  # of histories: columns, separator, has_header, newest_first
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
) -> Interactions | GeneratedSource:
    """Return the interactions that `data` describes, in files or generated; `text_ids` as in `open_interactions`."""
    if data.source in GENERATORS:
        return GeneratedSource(
            data.source, n_users=data.n_users, n_items=data.n_items, n_rows=data.n_rows, seed=preprocessing.seed
        )
    return open_interactions(data, preprocessing, text_ids=text_ids)


def open_interactions(data: Data, preprocessing: Preprocessing, *, text_ids: Collection[str] = ()) -> Interactions:
    """Return the interactions that `data` names by a file, the folder that holds it, or a pattern such as
    `logs/*.csv.gz`.

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
    return replace(found, decimal_ids=decimal_id_fields(found, names))


def open_histories(path: str, data: Data, preprocessing: Preprocessing, *, is_named: bool) -> Interactions:
    """Return the rows of the file at `path` of users to recommend for: `user`, `item` and, where known, `time`.

    The file is like the one that `data` names for a preparation, or has the columns user, item and perhaps time, or
    is one that a preparation recognizes. `is_named`: the columns are those of `data` and no others. Raises `DataError`.
    """
    file, own = Path(path), SOURCES.get(data.source, SOURCES["table"])
    named = {"user": data.user_column, "item": data.item_column, "time": data.time_column}
    if not is_named and own.form != "table":
        named = {"time": "", **own.columns} if own.has_header else USUAL_COLUMNS
    backwards = preprocessing.reverse_file_order
    of_data = (named, data.separator, data.has_header, own.newest_first if backwards == "auto" else backwards)
    for columns, separator, has_header, newest_first in (of_data, *(() if is_named else (USUAL_FILE,))):
        present = Table(file, format_of(file), separator, has_header).columns
        needed = [columns["user"], columns["item"], *([columns["time"]] if is_named and columns["time"] else [])]
        if all(name in present for name in needed):
            time = next((name for name in (columns["time"], "time") if name in present), "")
            source = replace(SOURCES["table"], separator=separator, has_header=has_header)
            found = {"user": columns["user"], "item": columns["item"]} | ({"time": time} if time else {})
            times = Times(data.time_unit, data.time_format if time == data.time_column else "")
            rows = Interactions(source, (file,), found, times, HISTORY_BYTES, newest_first)
            return replace(rows, decimal_ids=decimal_id_fields(rows, IDS))
    if not is_named and (recognized := _recognized(path)) not in ("", "table"):
        return open_interactions(data.model_copy(update={"source": recognized, "path": path}), Preprocessing())
    wanted = {name: column for name, column in named.items() if column}
    missing = ", ".join(f"{column} ({name})" for name, column in wanted.items() if column not in present)
    raise DataError(f"{path}: no column {missing}; it has: {', '.join(present)}{column_advice(wanted, [*present])}")


def _recognized(path: str) -> str:
    """Return the source that reads the file at `path`; "" where it is not recognized."""
    try:
        return recognize(path).source
    except DataError:
        return ""


def named_columns(data: Data) -> dict[str, str]:
    """Return the columns that the settings of a table name, by their fields. `DataError` where two fields are one
    column.
    """
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
    """Return the file at `path`, the only one in the folder `path` that has one of the names, or all that fit a
    pattern.
    """
    if files := matching_files(path):
        return files
    place = Path(path)
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
