"""Histories to recommend for, from a file of any size, a few thousand at a time."""

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.inference.files.grouping import by_user
from bert4rec.inference.history import History, TimedHistory
from bert4rec.runtime.errors import DataError

AT_ONCE = 4096  # histories
JSON_LINES = (".jsonl", ".ndjson", ".json")

Histories: TypeAlias = list[tuple[Any, History]]
"""The name of each user and the items, the oldest first."""

FORMS = (
    'JSON lines such as {"user": 7, "items": ["a", "b"]}, or a CSV or Parquet file with the columns user and item (a '
    "row an interaction, in the order of a column time or else the oldest first) or, in Parquet, user and items (lists)"
)
TIMED = (
    'JSON lines such as {"user": 7, "items": ["a", "b"], "times": [5, 9]}, in seconds, or a CSV or Parquet file with '
    "the columns user, item and time (a row an interaction) or, in Parquet, user, items and times (lists)"
)


class Rows(NamedTuple):
    """The rows of a file, `parts` with `user`, `item` and, if it `has_times`, `time` in seconds.

    `newest_first`: the order of rows without times.
    """

    parts: Iterable[pa.RecordBatch]
    has_times: bool = False
    newest_first: bool = False


def read_file(
    path: str, read_rows: Callable[[str], Rows], *, with_times: bool = False, at: float | None = None
) -> Iterator[Histories]:
    """Return the histories in a file, "-" for JSON lines from standard input. Raises `DataError`, in one line.

    `read_rows` reads a file with a row an interaction. `with_times`: as `TimedHistory`, that ask for the instant `at`
    (None: that of the last item).
    """
    forms = TIMED if with_times else FORMS
    try:
        if path == "-":
            found = _of_json_lines(sys.stdin, "standard input", forms)
            yield from _in_parts(found, at)
        elif Path(path).suffix == ".parquet" and "items" in pq.read_schema(path).names:
            yield from _in_parts(_of_parquet(path, forms), at)
        elif _has_json_lists(path):
            with open(path, encoding="utf-8") as file:
                yield from _in_parts(_of_json_lines(file, path, forms), at)
        else:
            rows = read_rows(path)
            if with_times and not rows.has_times:
                raise DataError(f"{path}: no column with times, which this model needs; it must be {forms}")
            found = by_user(rows.parts, with_times=with_times, newest_first=rows.newest_first)
            yield from _in_parts(found, at)
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path}: cannot be read: {reason}; it must be {forms}") from None


def _has_json_lists(path: str) -> bool:
    """Return whether a file is to be read as JSON lines with a history each: by its first line, or else by its name."""
    with open(path, "rb") as file:
        start = next((line.strip() for line in file if line.strip()), b"")
    try:
        first = json.loads(start)
    except ValueError:
        first = None
    if isinstance(first, dict):
        return "items" in first
    return isinstance(first, list) or Path(path).suffix in JSON_LINES


def _of_json_lines(file: TextIO, name: str, forms: str) -> Iterator[tuple[Any, History]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            user, items = (number, row) if isinstance(row, list) else (row.get("user", number), row["items"])
            times = row["times"] if forms == TIMED else []
            if not isinstance(items, list) or not isinstance(times, list):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{name}: line {number} is no history; it must be {forms}") from None
        yield user, TimedHistory(items, times) if forms == TIMED else items


def _of_parquet(path: str, forms: str) -> Iterator[tuple[Any, History]]:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        wanted = ["items", "times"] if forms == TIMED else ["items"]
        if any(name not in names or not _is_list(file.schema_arrow.field(name).type) for name in wanted):
            raise DataError(f"{path}: the column {' or '.join(wanted)} holds no lists; it must be {forms}")
        number = itertools.count(1)
        for part in file.iter_batches(AT_ONCE):
            users = part["user"].to_pylist() if "user" in names else [next(number) for _ in range(len(part))]
            lists = [[values or [] for values in part[name].to_pylist()] for name in wanted]
            yield from zip(users, map(TimedHistory, *lists) if forms == TIMED else lists[0], strict=True)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _in_parts(histories: Iterator[tuple[Any, History]], at: float | None) -> Iterator[Histories]:
    while part := list(itertools.islice(histories, AT_ONCE)):
        yield part if at is None else [(user, _asked_for(history, at)) for user, history in part]


def _asked_for(history: History, at: float) -> History:
    return history._replace(at=at) if isinstance(history, TimedHistory) else history
