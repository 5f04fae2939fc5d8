"""Describe each source once: the names, the form and the columns of its files, or how it is copied into one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bert4rec.config.recognition import SUFFIXES
from bert4rec.sources.database import fetch_database
from bert4rec.sources.lake import fetch_lake
from bert4rec.sources.workbook import fetch_workbook

USUAL_FIELDS = {name: name for name in ("user", "item", "rating", "time")}
GROUPLENS_COLUMNS = {"user": "userId", "item": "movieId", "rating": "rating", "time": "timestamp"}
# Copies the place, table and query into the Parquet file; counts rows, warns, and returns what identifies their state.
Fetch: TypeAlias = Callable[[str, str, str, Path, Callable[[int], None], Callable[[str], None]], dict[str, Any]]
FETCHERS: dict[str, tuple[Fetch, str]] = {  # kind, as in `FETCHED` → function, and the extra with its packages
    "database": (fetch_database, "sql"),
    "lake": (fetch_lake, "lake"),
    "workbook": (fetch_workbook, "excel"),
}


@dataclass(frozen=True)
class FileSource:
    """Describe a source that reads files.

    `names`: names of its file in a folder, with wildcards. `form`: lines of text with known `columns` (field → name in
    the file), sequences, baskets (items alone), or a table in any format with the columns of the settings.
    `separator`, `has_header`: the form of its lines. `newest_first`: the order of rows without times. `is_movielens`:
    its folder may have files of titles.
    """

    names: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    form: Literal["text", "sequences", "baskets", "table"] = "text"
    separator: str = ","
    has_header: bool = True
    newest_first: bool = False
    is_movielens: bool = False


GROUPLENS_CSV = FileSource(("ratings.csv",), GROUPLENS_COLUMNS, is_movielens=True)
SOURCES = {
    "ml-100k": FileSource(("u.data",), USUAL_FIELDS, separator="\t", has_header=False, is_movielens=True),
    "ml-1m": FileSource(("ratings.dat",), USUAL_FIELDS, separator="::", has_header=False, is_movielens=True),
    **dict.fromkeys(("ml-20m", "ml-25m", "ml-32m", "ml-latest-small"), GROUPLENS_CSV),
    "goodreads": FileSource(
        ("goodreads_interactions.csv",), {"user": "user_id", "item": "book_id", "rating": "rating"}, newest_first=True
    ),
    "sequences": FileSource(("*.txt",), {"user": "user", "item": "item"}, form="sequences", has_header=False),
    "baskets": FileSource(("*.txt", "*.dat"), {"user": "user", "item": "item"}, form="baskets", has_header=False),
    "table": FileSource(tuple(f"*{suffix}" for suffix in SUFFIXES), form="table"),
}
