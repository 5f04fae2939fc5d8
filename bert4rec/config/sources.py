"""Describe each source once: the names, the form and the columns of its files, and how they are recognized.

Imports nothing of the project: all of `config` and `sources` use it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

GENERATED = ("synthetic", "random")  # they read no file
OWN_DATA = ("table", "sequences", "baskets")  # a format of many data sets; the others are one each
USUAL_FIELDS = {name: name for name in ("user", "item", "rating", "time")}
GROUPLENS_COLUMNS = {"user": "userId", "item": "movieId", "rating": "rating", "time": "timestamp"}


@dataclass(frozen=True)
class FileSource:
    """A source that reads files.

    `names`: names of its file in a folder, with wildcards; () = those of all formats of tables. `form`: lines of text
    with known `columns` (field → name in the file), sequences, baskets (items alone), or a table in any format with the
    columns of the settings. `separator`, `has_header`: the form of its lines. `newest_first`: the order of rows without
    times. `is_movielens`: its folder may have files of titles, and GroupLens has an archive of it with the published
    `md5`; None: GroupLens replaces the archive now and then. A file is recognized by its name and its `first_line`,
    which is a pattern and its meaning, or by the first columns of its `header`.
    """

    names: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    form: Literal["text", "sequences", "baskets", "table"] = "text"
    separator: str = ","
    has_header: bool = True
    newest_first: bool = False
    is_movielens: bool = False
    md5: str | None = None
    first_line: tuple[str, str] | None = None
    header: Sequence[str] = ()


_movielens = partial(FileSource, is_movielens=True)
_ratings_csv = partial(_movielens, ("ratings.csv",), GROUPLENS_COLUMNS, header=[*GROUPLENS_COLUMNS.values()])
SOURCES = {
    "ml-100k": _movielens(
        ("u.data",), USUAL_FIELDS, separator="\t", has_header=False, md5="0e33842e24a9c977be4e0107933c0723",
        first_line=(r"\d+\t\d+\t\d+\t\d+", "user, movie, rating and time between tabs"),
    ),
    "ml-1m": _movielens(
        ("ratings.dat",), USUAL_FIELDS, separator="::", has_header=False, md5="c4d9eecfca2ab87c1945afe126590906",
        first_line=(r"\d+::\d+::[\d.]+::\d+", "user::movie::rating::time"),
    ),
    "ml-20m": _ratings_csv(md5="cd245b17a1ae2cc31bb14903e1204af3"),
    "ml-25m": _ratings_csv(md5="6b51fb2759a8657d3bfcbfc42b592ada"),
    "ml-32m": _ratings_csv(md5="d472be332d4daa821edc399621853b57"),
    "ml-latest-small": _ratings_csv(),
    "goodreads": FileSource(
        ("goodreads_interactions.csv",), {"user": "user_id", "item": "book_id", "rating": "rating"}, newest_first=True,
        header=["user_id", "book_id", "is_read"],
    ),
    "sequences": FileSource(("*.txt",), {"user": "user", "item": "item"}, form="sequences", has_header=False),
    "baskets": FileSource(("*.txt", "*.dat"), {"user": "user", "item": "item"}, form="baskets", has_header=False),
    "table": FileSource(form="table"),
}  # fmt: skip
MOVIELENS = [name for name, source in SOURCES.items() if source.is_movielens]  # sets that can be downloaded
