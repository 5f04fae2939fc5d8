"""Histories to recommend for, from a file of any size, a few thousand at a time."""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from bert4rec.inference.files.grouping import by_user
from bert4rec.runtime.errors import DataError

AT_ONCE = 4096  # histories
ROW = ("user", "item")  # the columns of a file with a row an interaction

Histories: TypeAlias = list[tuple[Any, Sequence[Any]]]
"""The name of each user and the items, the oldest first."""

FORMS = (
    'JSON lines such as {"user": 7, "items": ["a", "b"]}, or a CSV or Parquet file with the columns user and item (a '
    "row an interaction, the oldest first) or, in Parquet, user and items (lists)"
)


def read_file(path: str) -> Iterator[Histories]:
    """The histories in a file, "-" for JSON lines from standard input. Raises `DataError`, in one line."""
    suffix = Path(path).suffix
    try:
        if path == "-":
            yield from _in_parts(_of_json_lines(sys.stdin, "standard input"))
        elif suffix in (".parquet", ".csv"):
            yield from _in_parts(_of_parquet(path) if suffix == ".parquet" else _of_csv(path))
        else:
            with open(path, encoding="utf-8") as file:
                yield from _in_parts(_of_json_lines(file, path))
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path}: cannot be read: {reason}; it must be {FORMS}") from None


def _of_json_lines(file: TextIO, name: str) -> Iterator[tuple[Any, Sequence[Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            user, items = (number, row) if isinstance(row, list) else (row.get("user", number), row["items"])
            if not isinstance(items, list):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{name}: line {number} is no history; it must be {FORMS}") from None
        yield user, items


def _of_csv(path: str) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Ids are text: whoever looks them up knows whether they are numbers."""
    wanted = csv.ConvertOptions(
        include_columns=[*ROW], column_types=dict.fromkeys(ROW, pa.string()), strings_can_be_null=False
    )
    try:
        file = csv.open_csv(path, convert_options=wanted)
    except KeyError:  # pyarrow's, for a column that is not there
        _check_columns(path, [])
    else:
        with file:
            yield from by_user(file)


def _of_parquet(path: str) -> Iterator[tuple[Any, Sequence[Any]]]:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if "items" in names:
            if not _is_list(file.schema_arrow.field("items").type):
                raise DataError(f"{path}: the column items holds no lists; it must be {FORMS}")
            number = itertools.count(1)
            for part in file.iter_batches(AT_ONCE):
                users = part["user"].to_pylist() if "user" in names else [next(number) for _ in range(len(part))]
                yield from zip(users, (items or [] for items in part["items"].to_pylist()), strict=True)
        else:
            _check_columns(path, names)
            yield from by_user(file.iter_batches(columns=[*ROW]))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _check_columns(path: str, names: Sequence[str]) -> None:
    if not {*ROW} <= {*names}:
        raise DataError(f"{path}: no columns user and item; it must be {FORMS}")


def _in_parts(histories: Iterator[tuple[Any, Sequence[Any]]]) -> Iterator[Histories]:
    while part := list(itertools.islice(histories, AT_ONCE)):
        yield part
