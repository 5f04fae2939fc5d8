"""Read the tables that a user writes by hand or exports: features and titles of items, lists of items.

Text (any separator, quoted fields, compressed), JSON lines, Parquet and Arrow are read alike. A line that cannot be
read is an error, since a table of items has no line too many.
"""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from bert4rec.config.first_lines import column_names
from bert4rec.config.recognition import format_of
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.sources.column_inference import item_columns
from bert4rec.sources.column_words import ITEM_WORDS, name_words
from bert4rec.sources.ids import ids_like
from bert4rec.sources.progress import LINE, BadRows
from bert4rec.sources.tables import TableFile
from bert4rec.sources.text_blocks import NEWLINE, Block, blocks
from bert4rec.sources.text_rows import NOT_UTF_8, Layout, parse, read_layout, split_fields
from bert4rec.sources.text_values import shown, typed

MOVIELENS_FILES = ("movies.csv", "movies.dat", "u.item")
TABLE_BLOCK_BYTES = 1 << 24
ITEM_KEYS = ("item", "movieId")  # keys of an object of JSON lines that is an item
MOVIES_DAT = ("movieId", "title", "genres")  # columns of movies.dat
MOVIELENS_SUFFIXES = (".dat", ".item")  # of files without a header, in Latin-1 or UTF-8


def read_table(
    path: Path, *, setting: str, item_column: str = "item", item_type: pl.DataType | None = None,
    texts: Collection[str] = (),
) -> pl.DataFrame:  # fmt: skip
    """Return the table in the file at `path`; fields of text are typed as their values are.

    Ids in the column of the items are text if `item_type` is, and so are the columns `texts`: "007" is not 7. Without
    an `item_type`, all fields of text are text. Raises `DataError`, which names the `setting`, in one line.
    """
    try:
        kind = format_of(path)
        if kind == "parquet":
            table = pl.read_parquet(path, glob=False)
        elif kind in ("arrow file", "arrow stream"):
            table = (pl.read_ipc if kind == "arrow file" else pl.read_ipc_stream)(path)
        elif kind == "json lines" or path.suffix.lower() == ".json":
            table = _read_json(path, {item_column, *ITEM_KEYS}, setting)
        else:
            fields = _text_fields(path, setting)
            table = fields if item_type is None else _typed(fields, str(path), item_column, item_type, texts)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read as a table of items: {reason}; correct {setting}") from None
    if not len(table):
        raise DataError(f"{path}: holds no items; name another file in {setting}")
    if "" in table.columns:
        number = 1 + table.columns.index("")
        raise DataError(f"{path}: column {number} of {table.width} has no name; name it, or remove it from the file")
    return table.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def id_column(path: str, table: pl.DataFrame, item_column: str) -> str:
    """Return the column of the items' ids: `item_column`, or one that is recognized. Raises `DataError`."""
    if item_column in table.columns:
        return item_column
    likely = item_columns(table)
    if len(likely) != 1:
        raise DataError(
            f"{path}: no column {item_column}, and no other column is recognized as the ids of the items; it has: "
            f"{', '.join(table.columns)}; rename the column of the ids to {item_column}"
        )
    return likely[0]


def read_item_list(
    path: Path, is_known: Callable[[Sequence[Any]], Sequence[bool]], *, item_column: str, setting: str
) -> tuple[list[Any], str]:
    """Return the items that the file at `path` lists, and the column that has them; "" for one item a line.

    A line is an item, with or without quotes, or a row of a table with a column `item_column`, item, or one that is
    recognized. `is_known` says which ids the model knows. Raises `DataError`, in one line.
    """
    kind = format_of(path)
    lines = _lines(path) if kind == "text" else []
    known = is_known(lines)
    if kind == "text" and (not lines or known[0]):
        return lines, ""
    columns = [*TableFile(path, kind).columns]
    if not columns:
        raise DataError(
            f'{path}: has no objects with a column, such as {{"item": 7}}; or write one item a line as text'
        )
    column = next((name for name in (item_column, "item") if name in columns), "")
    if kind == "text" and not column and len(columns) > 1 and any(places := [*is_known(columns)]):
        return _first_line_is_a_row(path, columns, places)
    if len(columns) == 1 and kind == "text":
        return (lines[1:], columns[0]) if column or name_words(columns[0]) & ITEM_WORDS else (lines, "")
    if not column and any(known):
        return lines, ""
    likely = [name for name in columns if name_words(name) & ITEM_WORDS] or columns
    if not column and len(likely) > 1:
        raise DataError(
            f"{path}: the column of the items is not recognized; it has: {', '.join(columns)}; rename that column to "
            "item"
        )
    column = column or likely[0]
    return read_table(path, setting=setting, item_column=column)[column].drop_nulls().to_list(), column


def _first_line_is_a_row(path: Path, fields: Sequence[str], are_known: Sequence[bool]) -> tuple[list[Any], str]:
    """Return the items of a table without a header, whose first line has the `fields`, and the number of their column.

    Raises `DataError` if several fields are items, and for a line that cannot be read.
    """
    known = [number for number, is_item in enumerate(are_known, 1) if is_item]
    if len(known) > 1:
        named = ", ".join(fields[number - 1] for number in known)
        raise DataError(f"{path}: its first line has several items: {named}; write one item a line")
    bad, column = BadRows(), str(known[0])
    table = TableFile(path, "text", has_header=False)
    parts = [rows for rows, _ in table.rows({"item": column}, bad, block_bytes=TABLE_BLOCK_BYTES, only_first=False)]
    if bad.total:
        raise DataError(f"{bad.shown[0]}; correct the line")
    return [item for rows in parts for item in rows["item"].drop_nulls().to_list()], column


def _lines(path: Path) -> list[str]:
    """Return the lines that are not blank, without the quotes around a whole line."""
    items = []
    for line in (line.strip() for line in _content(path).split("\n")):
        fields = split_fields([line], ",", quoted=True)[0] if line.startswith('"') else [line]
        items.append(fields[0] if len(fields) == 1 else line)
    return [item for item in items if item]


def _content(path: Path) -> str:
    """Return the text of a file, unpacked. Raises `DataError` if it is not UTF-8."""
    content = b"".join(block.text for block in blocks(path, size=TABLE_BLOCK_BYTES, quoted=False))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if path.suffix.lower() in MOVIELENS_SUFFIXES:
            return content.decode("latin-1")  # the encoding of the older MovieLens files
        raise DataError(f"{path}, line {1 + content.count(NEWLINE, 0, error.start)}: {NOT_UTF_8}") from None


def _filled(path: Path, setting: str) -> str:
    """Return the text of a file. Raises `DataError` if it is empty."""
    text = _content(path).rstrip("\r\n")
    if not text.strip():
        raise DataError(f"{path}: is empty; name another file in {setting}")
    return text


def _text_fields(path: Path, setting: str) -> pl.DataFrame:
    """Return the fields of the lines as text. Raises `DataError` for a line with another number of fields."""
    text = _filled(path, setting)
    header, _, body = text.partition("\n")
    fields = header.split("\t")
    if path.suffix.lower() == ".dat":
        layout, block = Layout(MOVIES_DAT, b"::", quoted=False, header=()), Block(path, text.encode(), 1, 0)
    elif path.suffix.lower() == ".item" and column_names(fields) == fields:  # u.item; RecBole's have typed names
        names = ("movieId", "title", *map(str, range(3, header.count("|") + 2)))
        layout, block = Layout(names, b"|", quoted=False, header=()), Block(path, text.encode(), 1, 0)
    else:
        layout = read_layout(path, separator="auto", has_header=True)
        block = Block(path, body.encode(), 2, 0)
    names = tuple(column_names(layout.header))
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f'{path}: two columns are called "{twice}"; rename one')
    bad = BadRows()
    frames = [*parse(block, layout, bad)] if block.text else []
    if bad.total:
        more = f" (and {pluralize(bad.total - 1, 'line')} more)" if bad.total > 1 else ""
        raise DataError(f"{bad.shown[0]}{more}; correct the line")
    empty = pl.DataFrame(schema=dict.fromkeys(layout.columns, pl.String))
    return pl.concat([frame.drop(LINE) for frame in frames]) if frames else empty


def _typed(
    fields: pl.DataFrame, path: str, item_column: str, item_type: pl.DataType, texts: Collection[str]
) -> pl.DataFrame:
    table = typed(fields, texts)
    if not len(fields):
        return table
    return table.with_columns(fields[id_column(path, table, item_column)])  # "007" is not 7


def _read_json(path: Path, id_keys: set[str], setting: str) -> pl.DataFrame:
    """Return JSON lines, or one object {item: list of values}, as the attribute files of S3-Rec have."""
    text = _filled(path, setting)
    try:
        content = _json(text, f"{path}")
    except ValueError:
        content = None
    if isinstance(content, dict) and not any(isinstance(content.get(key), str | int) for key in id_keys):
        for item, values in content.items():
            if not isinstance(values, list):
                raise DataError(
                    f'{path}: item "{item}" has {shown(values)}; expected: a list of values, as in '
                    '{"7": ["drama"]},'
                    ' or one object a line with the id of its item, as in {"item": 7, "genre": "drama"}'
                )
        return pl.DataFrame({"item": [*content], "attributes": [*content.values()]}, strict=False)
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        place = f"{path}, line {number}"
        try:
            row = _json(line, place)
        except ValueError:
            row = line
        if not isinstance(row, dict):
            raise DataError(f'{place}: {shown(row)} is not a JSON object; expected: one a line, as in {{"item": 7}}')
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _json(text: str, place: str) -> Any:
    """Return the value of a JSON text. Raises `DataError` for a key that comes twice in an object."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key in found if [name for name, _ in pairs].count(key) > 1)
            raise DataError(f'{place}: the key "{twice}" comes twice in an object; leave one')
        return found

    return json.loads(text, object_pairs_hook=once)


def read_titles(
    path: str, *, beside: Path | None, dtype: pl.DataType, item_column: str = "item"
) -> pl.DataFrame | None:
    """Return `item` (of type `dtype`) and `title` from the file at `path`, or from a MovieLens file in `beside`.

    The file is a table with the ids in the column `item_column`, or in one that is recognized, and a column `title` or
    only one other column; `.dat` and `.item` files may have MovieLens' own formats. Returns None if there is no file.
    Raises `DataError` for a file that cannot be used.
    """
    movielens = [beside / name for name in MOVIELENS_FILES] if beside else []
    file = Path(path) if path else next((file for file in movielens if file.is_file()), None)
    if file is None:
        return None
    table = read_table(file, setting="data.titles_path", item_column=item_column)
    item = id_column(str(file), table, item_column)
    others = [name for name in table.columns if name != item]
    if "title" not in others and len(others) != 1:
        raise DataError(f"{file}: no column title; it has: {', '.join(table.columns)}; rename the column of the titles")
    title = "title" if "title" in others else others[0]
    return _checked(file, table.select(item=item, title=pl.col(title).cast(pl.String)), dtype)


def _checked(path: Path, titles: pl.DataFrame, dtype: pl.DataType) -> pl.DataFrame:
    """Return the titles with ids of type `dtype`. Raises `DataError` for a title that would be lost silently."""
    titles = titles.with_columns(pl.col("title").str.strip_chars(), key=ids_like(titles["item"], dtype))
    bad = titles.filter(pl.any_horizontal(pl.col("key", "title").is_null()))
    if len(bad):
        item, title, _ = bad.row(0)
        raise DataError(f'{path}: item "{item}", title "{title}": every title needs an item id like those of the data')
    twice = titles.filter(pl.col("key").is_duplicated())
    if len(twice):
        raise DataError(f'{path}: item "{twice["item"][0]}" has two titles; leave one title for each item')
    return titles.select(item="key", title="title")
