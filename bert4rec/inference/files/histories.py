"""Histories to recommend for, from a file of any size, a few thousand at a time."""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from bert4rec.inference.files.grouping import by_user
from bert4rec.inference.history import History, TimedHistory
from bert4rec.runtime.errors import DataError

AT_ONCE = 4096  # histories
ROW = ("user", "item")  # the columns of a file with a row an interaction
TIME = "time"  # one more, where the model asks for it

Histories: TypeAlias = list[tuple[Any, History]]
"""The name of each user and the items, the oldest first."""

FORMS = (
    'JSON lines such as {"user": 7, "items": ["a", "b"]}, or a CSV or Parquet file with the columns user and item (a '
    "row an interaction, the oldest first) or, in Parquet, user and items (lists)"
)
TIMED = (
    'JSON lines such as {"user": 7, "items": ["a", "b"], "times": [5, 9]}, in seconds, or a CSV or Parquet file with '
    "the columns user, item and time (a row an interaction, the oldest first) or, in Parquet, user, items and times "
    "(lists)"
)


def read_file(path: str, *, with_times: bool = False, at: float | None = None) -> Iterator[Histories]:
    """The histories in a file, "-" for JSON lines from standard input. Raises `DataError`, in one line.

    `with_times`: as `TimedHistory`, that ask for the instant `at` (None: that of the last item).
    """
    suffix, forms = Path(path).suffix, TIMED if with_times else FORMS
    try:
        if path == "-":
            found = _of_json_lines(sys.stdin, "standard input", forms)
            yield from _in_parts(found, at)
        elif suffix in (".parquet", ".csv"):
            found = _of_parquet(path, forms) if suffix == ".parquet" else _of_csv(path, forms)
            yield from _in_parts(found, at)
        else:
            with open(path, encoding="utf-8") as file:
                yield from _in_parts(_of_json_lines(file, path, forms), at)
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path}: cannot be read: {reason}; it must be {forms}") from None


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


def _of_csv(path: str, forms: str) -> Iterator[tuple[Any, History]]:
    """Ids are text: whoever looks them up knows whether they are numbers."""
    types = dict.fromkeys(ROW, pa.string()) | ({TIME: pa.float64()} if forms == TIMED else {})
    wanted = csv.ConvertOptions(include_columns=[*types], column_types=types, strings_can_be_null=False)
    try:
        file = csv.open_csv(path, convert_options=wanted)
    except KeyError:  # pyarrow's, for a column that is not there
        _check_columns(path, [], forms)
    else:
        with file:
            yield from by_user(file)


def _of_parquet(path: str, forms: str) -> Iterator[tuple[Any, History]]:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if "items" in names:
            wanted = ["items", "times"] if forms == TIMED else ["items"]
            if any(name not in names or not _is_list(file.schema_arrow.field(name).type) for name in wanted):
                raise DataError(f"{path}: the column {' or '.join(wanted)} holds no lists; it must be {forms}")
            number = itertools.count(1)
            for part in file.iter_batches(AT_ONCE):
                users = part["user"].to_pylist() if "user" in names else [next(number) for _ in range(len(part))]
                lists = [[values or [] for values in part[name].to_pylist()] for name in wanted]
                yield from zip(users, map(TimedHistory, *lists) if forms == TIMED else lists[0], strict=True)
        else:
            _check_columns(path, names, forms)
            columns = [*ROW, TIME] if forms == TIMED else [*ROW]
            yield from by_user(_with_seconds(part) for part in file.iter_batches(columns=columns))


def _with_seconds(part: pa.RecordBatch) -> pa.RecordBatch:
    """Its column `time`, if it has one, as seconds since 1970, float64."""
    if TIME not in part.schema.names:
        return part
    times = part[TIME]
    if pa.types.is_temporal(times.type):
        times = pc.divide(times.cast(pa.timestamp("ms")).cast(pa.int64()).cast(pa.float64()), 1000.0)
    return part.set_column(part.schema.get_field_index(TIME), TIME, times.cast(pa.float64()))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _check_columns(path: str, names: Sequence[str], forms: str) -> None:
    wanted = [*ROW, TIME] if forms == TIMED else [*ROW]
    if not {*wanted} <= {*names}:
        named = f"{', '.join(wanted[:-1])} and {wanted[-1]}"
        raise DataError(f"{path}: no columns {named}; it must be {forms}")


def _in_parts(histories: Iterator[tuple[Any, History]], at: float | None) -> Iterator[Histories]:
    while part := list(itertools.islice(histories, AT_ONCE)):
        yield part if at is None else [(user, _asked_for(history, at)) for user, history in part]


def _asked_for(history: History, at: float) -> History:
    return history._replace(at=at) if isinstance(history, TimedHistory) else history
