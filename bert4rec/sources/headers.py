"""Match the columns of several files of one table by their names."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from bert4rec.runtime.errors import DataError, join_names
from bert4rec.sources.columns import column_advice
from bert4rec.sources.text_rows import OTHER

MAY_LACK = ("title",)  # fields that a later file may lack
WITHOUT = {"time": "--time=", "rating": "--rating=", "event": "--data.event_column=", "order": "--data.order_column="}


def matched(column: str, present: Collection[str]) -> str | None:
    """Return the one of the `present` columns with the name `column`, whatever its case and blanks; None without one.

    >>> matched("user", ["USER ", "item"]), matched("user", ["user", "User"]), matched("user", ["User", "USER"])
    ('USER ', 'user', None)
    """
    alike = [name for name in present if _plain(name) == _plain(column)]
    return column if column in present else alike[0] if len(alike) == 1 else None


def _plain(name: str) -> str:
    return "".join(name.split()).casefold()


def columns_in(
    path: Path, present: Collection[str], columns: Mapping[str, str], first: Path, *, is_table: bool
) -> dict[str, str]:
    """Return field → column as the file at `path` writes it, without fields that a file after the `first` may lack.

    `columns`: field → column of the first file. Raises `DataError` for a column that the file does not have.
    """
    is_first = path == first
    found = {
        field: (column if column in present else None) if is_first else matched(column, present)
        for field, column in columns.items()
    }
    missing = [field for field in columns if found[field] is None and (is_first or field not in MAY_LACK)]
    for field in missing:
        column, named, advice = columns[field], field.removeprefix(OTHER), ""
        if is_table and is_first:
            advice = column_advice(columns, [*present])
        elif is_table and field in WITHOUT and len(missing) == 1:
            advice = f"; write it into all files, or read them without {named}s: {WITHOUT[field]}"
        elif is_table:
            advice = f"; its columns are named differently from those of {first}: write both files with the same header"
        raise DataError(f'{path}: no column "{column}" ({named}); it has: {", ".join(present)}{advice}')
    return {field: column for field, column in found.items() if column is not None}


def unread_columns(
    first: Path, present: Collection[str], others: Iterable[tuple[Path, Collection[str]]]
) -> Iterator[str]:
    """Yield a warning for columns of the `others` (path, columns) that the `first` file lacks: they are not read."""
    lacking = [(name, path) for path, columns in others for name in columns if matched(name, present) is None]
    if lacking:
        names = ", ".join(dict.fromkeys(name for name, _ in lacking))
        files = join_names([*dict.fromkeys(path for _, path in lacking)])
        yield (
            f"not used, since the first file, {first}, has no such column: {names} (in {files}); write all files with "
            "the same header"
        )
