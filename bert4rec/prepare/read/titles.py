"""Item titles as one small frame from `movies.dat`, `u.item` and CSV files."""

from pathlib import Path

import polars as pl

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
        raise DataError(f'{path}: item "{twice["item"][0]}" stands there twice; leave one title for each item')
    return titles.select(item="key", title="title")
