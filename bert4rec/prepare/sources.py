"""Every format of raw interactions as one lazy frame in file order: `user`, `item`, where known `time`, `rating`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from bert4rec.errors import DataError
from bert4rec.prepare import synthetic
from bert4rec.prepare.fields import LINE, OTHER, Raw, cast_fields
from bert4rec.prepare.titles import read_titles

PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Interactions:
    """The interactions of one source, every field already checked.

    `frame`: `user`, `item` (Int64 or String), where known `time` (Int64, seconds) and `rating` (Float32), in file
    order. `titles`: `item` (typed as in the frame), `title`; None where unknown. `oracle`: what generated the rows,
    for the synthetic source. `catalogue`: the items (`original`) where they are known apart from the rows. `n_rows`,
    `n_users`, `n_items`: the counts of `frame`.
    """

    frame: pl.LazyFrame
    titles: pl.DataFrame | None
    oracle: synthetic.Oracle | None
    n_rows: int
    n_users: int
    n_items: int
    catalogue: pl.LazyFrame | None = None


def read_interactions(
    source: str, *, path: str = "", titles_path: str = "", user_column: str = "user", item_column: str = "item",
    time_column: str = "", rating_column: str = "", n_users: int = 0, n_items: int = 0, n_rows: int = 0, seed: int = 0,
) -> Interactions:  # fmt: skip
    """Open `source` at `path` (the file, or the folder that holds it) and check every field, in one pass.

    The column names matter for "table" only; `n_users`, `n_items`, `n_rows` and `seed` for "synthetic" and "random".
    Raises `DataError` for a file that is missing, empty or not in its format, naming the place.
    """
    if source in synthetic.GENERATORS:
        rows, oracle = synthetic.GENERATORS[source](n_users=n_users, n_items=n_items, n_rows=n_rows, seed=seed)
        sizes = len(rows), rows["user"].n_unique(), rows["item"].n_unique()
        return Interactions(rows.lazy(), None, oracle, *sizes, catalogue=synthetic.catalogue(source, n_items))
    reader = READERS[source]
    if source == "table":
        columns = {"user": user_column, "item": item_column, "time": time_column, "rating": rating_column}
        columns = {field: name for field, name in columns.items() if name}
        if len({*columns.values()}) < len(columns):
            raise DataError(f"data.user_column, item_column, …: one column is named twice: {columns}; name each once")
        reader = partial(_table, columns=columns)
    file = _file(path, *FILES[source])
    try:
        frame, counts = cast_fields(reader(file))
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file}: {_reason(file, error)}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None
    beside = file.parent if source.startswith("ml-") else None
    titles = read_titles(titles_path, beside=beside, dtype=frame.collect_schema()["item"])
    return Interactions(frame, titles, None, counts["rows"], counts["users"], counts["items"])


def _file(path: str, *patterns: str) -> Path:
    """The file at `path`, or the only one in the folder `path` that fits a pattern."""
    if not path:
        raise DataError("data.path is empty: name the file with the interactions, or the folder that holds it")
    place = Path(path)
    try:
        place.stat()
    except OSError as error:
        raise DataError(f"{place}: {error.strerror}; correct data.path") from None
    if place.is_file():
        return place
    found = sorted({file for pattern in patterns for file in place.glob(pattern) if file.is_file()})
    if len(found) != 1:
        wanted, names = " or ".join(patterns), ", ".join(file.name for file in found) or "none"
        raise DataError(f"{place}: one file {wanted} expected here, found: {names}; name it in data.path")
    return found[0]


def _lines(path: Path) -> pl.LazyFrame:
    """`LINE` (from 1) and `text`, without a byte order mark and carriage returns."""
    text = pl.col("text").str.strip_chars_start("\ufeff").str.strip_chars_end("\r")
    return pl.scan_lines(path, name="text", row_index_name=LINE, row_index_offset=1, glob=False).with_columns(text)


def _separated(path: Path, *, separator: str) -> Raw:
    """user, item, rating, time with a separator of any length: `u.data`, `ratings.dat`."""
    fields = ["user", "item", "rating", "time"]
    # splitn leaves a fifth field in the fourth, where it cannot be cast: so it is found
    parts = pl.col("text").str.splitn(separator, len(fields)).struct.rename_fields(fields)
    return Raw(_lines(path).select(LINE, parts.struct.unnest()), path, {field: field for field in fields})


def _table(path: Path, *, columns: dict[str, str], whole_number_ids: bool = False) -> Raw:
    """The named columns of a Parquet file, or of a CSV file with a header; other columns are left alone."""
    if path.suffix.lower() in PARQUET:
        frame = pl.scan_parquet(path, row_index_name=LINE, row_index_offset=1, glob=False)
        unit = "row"
    else:
        frame = pl.scan_csv(path, infer_schema=False, row_index_name=LINE, row_index_offset=2, glob=False)
        unit = "line"
    present = frame.collect_schema().names()
    for field, name in columns.items():
        if name not in present:
            have = ", ".join(column for column in present if column != LINE)
            advice = "" if whole_number_ids else f"; name it with data.{field}_column"
            raise DataError(f'{path}: no column "{name}" ({field}); it has: {have}{advice}')
    # The others too: Polars cuts rows with too many fields in silence where it need not parse the last column.
    others = [name for name in present if unit == "line" and name not in (LINE, *columns.values())]
    frame = frame.select(
        LINE, **{field: pl.col(name) for field, name in columns.items()}, **{f"{OTHER}{name}": name for name in others}
    )
    return Raw(frame, path, columns, whole_number_ids, unit)


def _sequences(path: Path) -> Raw:
    """`user item` on each line, or a user and all its items on each line: as the file has it."""
    words = _lines(path).select(LINE, words=pl.col("text").str.extract_all(r"[^ \t]+"))
    count, user = pl.col("words").list.len(), pl.col("words").list.get(0, null_on_oob=True)
    longest, lines, users = (
        words.select(count.max(), lines=pl.len(), users=user.n_unique()).collect(engine="streaming").row(0)
    )
    if (longest or 0) > 2 and users < lines:
        line, n_words = words.filter(count > 2).select(LINE, count).head(1).collect().row(0)
        raise DataError(
            f"{path}, line {line}: {n_words} fields, and some users stand on several lines: write either one "
            "`user item` pair on each line, or each user once with all its items"
        )
    if (longest or 0) <= 2:
        item = pl.col("words").list.get(1, null_on_oob=True)
        frame = words.select(LINE, user=user, item=item)
    else:
        frame = words.select(LINE, user=user, item=pl.col("words").list.slice(1)).explode("item", empty_as_null=True)
    return Raw(frame, path, {"user": "user", "item": "item"}, whole_number_ids=False)


def _reason(path: Path, error: pl.exceptions.PolarsError) -> str:
    """Polars' message as one line that says what to do."""
    text = str(error)
    if "utf" in text.lower():
        return "not UTF-8 text; convert it, for instance with iconv -t UTF-8"
    if isinstance(error, pl.exceptions.NoDataError):
        return "is empty; name another file in data.path"
    if "more fields" in text:
        return f"{_longer_line(path)} more fields than the header; correct or remove it"
    return f"cannot be read in this format: {text.splitlines()[0]}"


def _longer_line(path: Path) -> str:
    """Where the first line with more commas than the header stands; quoted commas may hide it."""
    commas = pl.col("text").str.count_matches(",", literal=True)
    found = _lines(path).filter(commas > commas.first()).head(1).collect()
    return f"line {found[LINE][0]} has" if len(found) else "a line has"


_MOVIELENS_CSV = {"user": "userId", "item": "movieId", "rating": "rating", "time": "timestamp"}
_GOODREADS = {"user": "user_id", "item": "book_id", "rating": "rating"}

READERS: dict[str, Callable[..., Raw]] = {
    "ml-100k": partial(_separated, separator="\t"),
    "ml-1m": partial(_separated, separator="::"),
    **dict.fromkeys(
        ("ml-20m", "ml-25m", "ml-32m", "ml-latest-small"),
        partial(_table, columns=_MOVIELENS_CSV, whole_number_ids=True),
    ),
    "goodreads": partial(_table, columns=_GOODREADS, whole_number_ids=True),
    "sequences": _sequences,
    "table": _table,
}
FILES = {
    "ml-100k": ("u.data",),
    "ml-1m": ("ratings.dat",),
    **dict.fromkeys(("ml-20m", "ml-25m", "ml-32m", "ml-latest-small"), ("ratings.csv",)),
    "goodreads": ("goodreads_interactions.csv",),
    "sequences": ("*.txt",),
    "table": ("*.csv", "*.parquet", "*.pq"),
}
