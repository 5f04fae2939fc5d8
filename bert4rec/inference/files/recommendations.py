"""Recommendations written to a file: JSON lines, CSV or Parquet, a few thousand users at a time."""

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.inference.recommender import Recommendation
from bert4rec.runtime.errors import DataError

ENDINGS = (".jsonl", ".csv", ".parquet")
COLUMNS = ("user", "rank", "item", "title", "score")

Rows: TypeAlias = Sequence[tuple[Any, Sequence[Recommendation]]]
"""The name of each user and the recommendations, the best first."""

Write: TypeAlias = Callable[[Rows], None]


@contextmanager
def writer(path: Path | None) -> Iterator[Write]:
    """What writes to `path`, whole or not at all, in the form of its ending; JSON lines to standard output for None.

    Raises `DataError` for another ending, and where it cannot be written.
    """
    if path is None:
        yield _to_json_lines(sys.stdout)
        return
    if path.suffix not in ENDINGS:
        raise DataError(f"{path}: its name must end in {', '.join(ENDINGS)}")
    unfinished = path.with_name(path.name + ".tmp")
    try:
        with contextlib.ExitStack() as stack:
            if path.suffix == ".parquet":
                yield _to_parquet(unfinished, stack)
            else:
                file = stack.enter_context(unfinished.open("w", newline="", encoding="utf-8"))
                yield _to_csv(file) if path.suffix == ".csv" else _to_json_lines(file)
        unfinished.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _to_json_lines(file: TextIO) -> Write:
    def write(rows: Rows) -> None:
        for user, found in rows:
            line: dict[str, Any] = {"user": user, "items": [one.item for one in found]}
            if any(one.title for one in found):
                line["titles"] = [one.title for one in found]
            print(json.dumps({**line, "scores": [round(one.score, 6) for one in found]}, ensure_ascii=False), file=file)

    return write


def _to_csv(file: TextIO) -> Write:
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(COLUMNS)

    def write(rows: Rows) -> None:
        lines.writerows(
            (user, rank, one.item, one.title, f"{one.score:.6f}")
            for user, found in rows
            for rank, one in enumerate(found, 1)
        )

    return write


def _to_parquet(path: Path, stack: contextlib.ExitStack) -> Write:
    opened: list[pq.ParquetWriter] = []

    def write(rows: Rows) -> None:
        columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for user, found in rows:
            for rank, one in enumerate(found, 1):
                for name, value in zip(COLUMNS, (user, rank, one.item, one.title, one.score), strict=True):
                    columns[name].append(value)
        table = pa.table(columns)
        if not opened:
            opened.append(stack.enter_context(pq.ParquetWriter(path, table.schema)))
        opened[0].write_table(table.cast(opened[0].schema))

    return write
