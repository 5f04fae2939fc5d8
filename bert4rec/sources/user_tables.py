"""Read the tables that a user writes by hand or exports: features and titles of items, lists of items.

They are read as interactions are, in every format of `tables`. A line that cannot be read is an error, since a table of
items has no line too many; a blank one is left out.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from bert4rec.config.first_lines import column_names
from bert4rec.config.recognition import format_of
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.sources.column_inference import item_columns
from bert4rec.sources.column_words import ITEM_WORDS, name_words
from bert4rec.sources.columns import is_row
from bert4rec.sources.ids import canonical_ids, ids_like
from bert4rec.sources.progress import LINE, BadRows
from bert4rec.sources.tables import TableFile
from bert4rec.sources.text_blocks import NEWLINE, blocks, head
from bert4rec.sources.text_rows import EMPTY_LINE, NOT_UTF_8, split_fields
from bert4rec.sources.text_values import shown, typed

MOVIELENS_FILES = ("movies.csv", "movies.dat", "u.item")
TABLE_BLOCK_BYTES = 1 << 24
ITEM_KEYS = ("item", "movieId")  # keys of an object of JSON lines that is an item


def read_table(path: Path, *, item_column: str = "item", texts: Collection[str] | None = None) -> pl.DataFrame:
    """Return the table in the file at `path`; fields of text are typed as their values are.

    Ids in the column of the items stay text, and so do the columns `texts`: "007" is not 7. With None, all fields of
    text are text. Raises `DataError`, in one line.
    """
    try:
        kind = format_of(path)
        if kind == "json lines":
            table = _read_json(path, {item_column, *ITEM_KEYS})
        else:
            table = _all_rows(_movielens(path) if kind == "text" else TableFile(path, kind))
            if kind == "text" and texts is not None and len(table):
                fields, table = table, typed(table, texts)
                table = table.with_columns(fields[id_column(str(path), table, item_column)])
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a table of items: {str(error).splitlines()[0]}") from None
    if not len(table):
        raise DataError(f"{path}: holds no items; name another file")
    if "" in table.columns:
        number = 1 + table.columns.index("")
        raise DataError(f"{path}: column {number} of {table.width} has no name; name it, or remove it from the file")
    return table


def id_column(path: str, table: pl.DataFrame, item_column: str) -> str:
    """Return the column of the items' ids: `item_column`, or one that is recognized. Raises `DataError`."""
    if item_column in table.columns:
        return item_column
    likely = item_columns(table)
    if len(likely) != 1:
        if is_row(table.columns):
            raise DataError(f"{path}: its first line is a row and not a header; write one above it, such as item,title")
        advice = f"it has: {', '.join(table.columns)}; rename the column of the ids to {item_column}"
        raise DataError(f"{path}: no column {item_column}, and no other is recognized as the ids of items; {advice}")
    return likely[0]


def one_row_an_item(path: str, table: pl.DataFrame, column: str, item_type: pl.DataType) -> pl.DataFrame:
    """Return the table with `original`, the ids of its `column` as `item_type`, instead of that column.

    Equal rows are one. Raises `DataError` for a row without an id like those of the log, and for two rows of an item.
    """
    ids = table[column]
    if missing := (canonical_ids(ids) if ids.dtype == pl.String else ids).null_count():
        raise DataError(f"{path}: {pluralize(missing, 'row')} without {column}; every row needs the id of its item")
    originals = pl.Series([None] * len(ids)) if ids.dtype.is_nested() else ids_like(ids, item_type)
    if (is_bad := originals.is_null()).any():
        value = shown(ids.filter(is_bad)[0])
        raise DataError(f"{path}: {column} {value}: not an id like those of the log, which are numbers")
    rows = table.with_columns(original=originals).drop(column)
    rows = rows if any(dtype.is_nested() for dtype in rows.dtypes) else rows.unique(maintain_order=True)
    if len(twice := rows.filter(pl.col("original").is_duplicated())):
        raise DataError(f'{path}: item "{twice["original"][0]}" has two rows; leave one row for each item')
    return rows


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
    table = read_table(file, item_column=item_column)
    item = id_column(str(file), table, item_column)
    others = [name for name in table.columns if name != item]
    if "title" not in others and len(others) != 1:
        raise DataError(f"{file}: no column title; it has: {', '.join(table.columns)}; rename the column of the titles")
    title = pl.col("title" if "title" in others else others[0]).cast(pl.String).str.strip_chars()
    rows = one_row_an_item(str(file), table.select(item, title.alias("\ntitle")), item, dtype)
    return rows.select(item="original", title="\ntitle").drop_nulls()


def read_item_list(
    path: Path, is_known: Callable[[Sequence[Any]], Sequence[bool]], *, item_column: str
) -> tuple[list[Any], str]:
    """Return the items that the file at `path` lists, and the column that has them; "" for one item a line.

    A line is an item, with or without quotes, or a row of a table with a column `item_column`, item, or one that is
    recognized. `is_known` says which ids the model knows. Raises `DataError`, in one line.
    """
    kind = format_of(path)
    lines = _whole_lines(path) if kind == "text" else []
    known = is_known(lines)
    if kind == "text" and (not lines or known[0]):
        return lines, ""
    columns = [*TableFile(path, kind).columns]
    if not columns:
        raise DataError(f'{path}: has no objects with a column, such as {{"item": 7}}; write one item a line as text')
    column = next((name for name in (item_column, "item") if name in columns), "")
    if kind == "text" and not column and len(columns) > 1 and any(places := [*is_known(columns)]):
        numbers = [str(number) for number, is_item in enumerate(places, 1) if is_item]
        if len(numbers) > 1:
            named = ", ".join(columns[int(number) - 1] for number in numbers)
            raise DataError(f"{path}: its first line has several items: {named}; write one item a line")
        column, table = numbers[0], _all_rows(TableFile(path, kind, has_header=False))
        return table[column].drop_nulls().to_list(), column
    if len(columns) == 1 and kind == "text":
        return (lines[1:], columns[0]) if column or name_words(columns[0]) & ITEM_WORDS else (lines, "")
    if not column and any(known):
        return lines, ""
    likely = [name for name in columns if name_words(name) & ITEM_WORDS] or columns
    if not column and len(likely) > 1:
        raise DataError(f"{path}: which column has the items? it has: {', '.join(columns)}; rename that column to item")
    column = column or likely[0]
    return read_table(path, item_column=column)[column].drop_nulls().to_list(), column


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, which may be compressed. Raises `DataError` for one that is not UTF-8."""
    for block in blocks(path, size=TABLE_BLOCK_BYTES, quoted=False):
        for number, line in enumerate(block.text.removesuffix(NEWLINE).split(NEWLINE), block.first_line):
            try:
                yield line.decode()
            except UnicodeDecodeError:
                raise DataError(f"{path}, line {number}: {NOT_UTF_8}") from None


def _whole_lines(path: Path) -> list[str]:
    """Return the lines that are not blank, without the quotes around a whole line."""
    items = []
    for line in map(str.strip, lines_of(path)):
        fields = split_fields([line], ",", quoted=True)[0] if line.startswith('"') else [line]
        items.append(fields[0] if len(fields) == 1 else line)
    return [item for item in items if item]


def _movielens(path: Path) -> TableFile:
    """Return the text table at `path`; `.dat` and `.item` files may have MovieLens' own formats."""
    suffix = path.suffix.lower()
    table = TableFile(path, "text", may_be_latin=suffix in (".dat", ".item"))
    first = head(path).partition(NEWLINE)[0].decode("latin-1")
    if suffix == ".dat":
        return replace(table, separator="::", has_header=False, names=("movieId", "title", "genres"))
    if suffix == ".item" and column_names(fields := first.split("\t")) == fields:  # u.item; RecBole's have typed names
        numbers = map(str, range(3, first.count("|") + 2))
        return replace(table, separator="|", has_header=False, names=("movieId", "title", *numbers))
    names = column_names(table.layout.header)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f'{path}: two columns are called "{twice}"; rename one')
    return table


def _all_rows(table: TableFile) -> pl.DataFrame:
    """Return all columns and rows. Raises `DataError` for a line that cannot be read; blank lines are left out."""
    bad, columns = BadRows(ignored=EMPTY_LINE), {name: name for name in table.columns}
    parts = [rows for rows, _ in table.rows(columns, bad, block_bytes=TABLE_BLOCK_BYTES, only_first=False)]
    if bad.total:
        more = f" (and {pluralize(bad.total - 1, 'line')} more)" if bad.total > 1 else ""
        raise DataError(f"{bad.shown[0]}{more}")
    return pl.concat(parts).drop(LINE) if parts else pl.DataFrame(schema=[*columns])


def _read_json(path: Path, id_keys: Collection[str]) -> pl.DataFrame:
    """Return JSON lines, or one object {item: list of values}, as the attribute files of S3-Rec have."""
    lines = [(f"{path}, line {number}", line) for number, line in enumerate(lines_of(path), 1) if line.strip()]
    rows = [_object(place, line) for place, line in lines]
    if not rows:
        raise DataError(f"{path}: is empty; name another file")
    if len(rows) != 1 or any(isinstance(rows[0].get(key), str | int) for key in id_keys):
        return pl.DataFrame(rows, infer_schema_length=None)
    for item, values in rows[0].items():
        if not isinstance(values, list):
            expected = 'a list of values, as {"7": ["drama"]}; or one object a line, as {"item": 7, "genre": "drama"}'
            raise DataError(f'{path}: item "{item}" has {shown(values)}; expected: {expected}')
    return pl.DataFrame({"item": [*rows[0]], "attributes": [*rows[0].values()]}, strict=False)


def _object(place: str, line: str) -> dict[str, Any]:
    """Return the object of a JSON line. Raises `DataError` for another line, and for a key that comes twice in it."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key in found if [name for name, _ in pairs].count(key) > 1)
            raise DataError(f'{place}: the key "{twice}" comes twice in an object; leave one')
        return found

    try:
        row = json.loads(line, object_pairs_hook=once)
    except ValueError:
        row = line
    if not isinstance(row, dict):
        raise DataError(f'{place}: {shown(row)} is not a JSON object; expected: one a line, as in {{"item": 7}}')
    return row
