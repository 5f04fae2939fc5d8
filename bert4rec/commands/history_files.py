"""Read histories from files, and write recommendations to files, a few thousand users at a time."""

import contextlib
import csv
import itertools
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.config.recognition import MAGIC, Format, problem_of_path
from bert4rec.dataset.ids import canonical
from bert4rec.prepare.ordering import SORTED_BY
from bert4rec.runtime.errors import DataError, pluralize
from bert4rec.serving.histories import AT_ONCE, Histories, History, TimedHistory
from bert4rec.serving.recommender import Recommendations, UserScore
from bert4rec.sources.progress import LINE
from bert4rec.sources.tables import typed_columns, typed_rows
from bert4rec.sources.text_blocks import head
from bert4rec.sources.user_tables import lines_of

if TYPE_CHECKING:
    from bert4rec.sources.interactions import Interactions

JSON_LINES = (".jsonl", ".ndjson", ".json")
HISTORY_FORMS = (
    'JSON lines such as {"user": 7, "items": ["a", "b"], "times": [5, 9]}, in seconds, or a CSV or Parquet file with '
    "the columns user, item and time (a row an interaction) or, in Parquet, user, items and times (lists); only models "
    "that know times need them, and rows without times are taken as the oldest first; models that know kinds of events "
    "read them from events, in rows from the column data.event_column or event"
)
HISTORY_ENDINGS = (".jsonl", ".csv", ".parquet")
RECOMMENDATION_COLUMNS = ("user", "rank", "item", "title", "score", "fallback")
USER_COLUMNS = ("item", "rank", "user", "score")

Recommended: TypeAlias = Sequence[tuple[Any, Recommendations | Sequence[UserScore]]]
"""The name of each user and the recommendations, or of an item and its users, the best first."""

Write: TypeAlias = Callable[[Recommended], None]

logger = logging.getLogger(__name__)


def read_histories(
    path: str, open_rows: "Callable[[str], Interactions]", *, with_times: bool = False, at: float | None = None,
    with_events: bool = False, may_lack_times: bool = False,
) -> Iterator[Histories]:  # fmt: skip
    """Yield the histories in a file, or in JSON lines from standard input ("-"). Raises `DataError`, in one line.

    `open_rows` opens a file with one row per interaction. With `with_times`, yields `TimedHistory` with the query time
    `at` (None: the time of the last item), without times where there are none if it `may_lack_times`; `with_events`,
    `TimedHistory` with the kinds of events that the file has.
    """
    has = {"with_times": with_times, "with_events": with_events, "may_lack_times": may_lack_times}
    try:
        kind = None if path == "-" else _typed_format(path)
        if path == "-":
            histories = _from_json_lines(sys.stdin, **has)
        elif kind and "items" in (columns := typed_columns(Path(path), kind)):
            histories = _from_lists(Path(path), kind, columns, **has)
        elif not kind and _has_json_lists(path):
            histories = _from_json_lines(lines_of(Path(path)), **has)
        else:
            histories = _from_rows(path, open_rows(path), **has)
        while part := list(itertools.islice(histories, AT_ONCE)):
            yield [
                (_user(user), past._replace(at=at) if isinstance(past, TimedHistory) else past) for user, past in part
            ]
    except OSError as error:
        raise DataError(problem_of_path(Path(path), error)) from None
    except ValueError as error:  # text that is not UTF-8 and errors of Arrow, too
        name = "standard input" if path == "-" else path
        raise DataError(f"{name}: cannot be read: {error}; it must be {HISTORY_FORMS}") from None


def _user(user: Any) -> Any:
    """Return the canonical id of a user, as a preparation has it."""
    return (canonical(user) or user) if isinstance(user, str) else user


def _typed_format(path: str) -> Format | None:
    with open(path, "rb") as file:
        start = file.read(max(map(len, MAGIC)))
    return next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)


def _has_json_lists(path: str) -> bool:
    """Return whether each line of a file is a history as JSON, judged by its first line or else by its name."""
    start = head(Path(path)).lstrip().split(b"\n", 1)[0]
    try:
        first = json.loads(start)
    except ValueError:
        first = None
    if isinstance(first, dict):
        return "items" in first
    return isinstance(first, list) or bool({*Path(path).suffixes[-2:]} & {*JSON_LINES})


def _from_json_lines(
    file: Iterable[str], *, with_times: bool, with_events: bool, may_lack_times: bool
) -> Iterator[tuple[Any, History]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row = {"items": row} if isinstance(row, list) else row
            user, items = row.get("user", number), row["items"]
            times = row.get("times") or [] if with_times else []
            events = row.get("events", ()) if with_events else ()
            if not all(isinstance(part, list) for part in (items, times, events or [])):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"line {number}: not a history") from None
        if with_times and not may_lack_times and "times" not in row:
            raise ValueError(f"line {number} has no times, which this model needs")
        yield user, TimedHistory(items, times, events=events) if with_times or with_events else items


def _from_lists(
    path: Path, kind: Format, present: Collection[str], *, with_times: bool, with_events: bool, may_lack_times: bool
) -> Iterator[tuple[Any, History]]:
    """Yield the users of a table with a row for each user, which has the columns `present`."""
    with_times = with_times and not (may_lack_times and "times" not in present)
    wanted = ["items", *["times"] * with_times, *["events"] * (with_events and "events" in present)]
    columns = {name: name for name in ("user", *wanted) if name in present}
    for rows, _ in typed_rows(path, kind, columns, AT_ONCE):
        if any(not isinstance(rows.schema.get(name), pl.List | pl.Array) for name in wanted):
            raise ValueError(f"the column {' or '.join(wanted)} holds no lists")
        users = rows["user" if "user" in columns else LINE].to_list()
        lists = zip(*([values or [] for values in rows[name].to_list()] for name in wanted), strict=True)
        yield from ((user, _history(wanted, values)) for user, values in zip(users, lists, strict=True))


def _history(names: Sequence[str], lists: Sequence[Any]) -> History:
    """Return the history of the `lists` with these `names`, its items alone if they are all."""
    return lists[0] if len(names) == 1 else TimedHistory(**dict(zip(names, lists, strict=True)))


def _from_rows(
    path: str, rows: "Interactions", *, with_times: bool, with_events: bool, may_lack_times: bool
) -> Iterator[tuple[Any, History]]:
    """Yield the users of a file with one row per interaction, in the order of their first rows.

    All rows are in memory, 8 to 24 bytes each, and each distinct text id once. Items are sorted as in a preparation: by
    full time, then by the order column; else they keep the order of the rows. Raises `DataError` if no row is usable.
    """
    columns = rows.columns
    has_times, has_events = "time" in columns, with_events and "event" in columns
    if with_times and not has_times and not may_lack_times:
        raise ValueError("no column with times, which this model needs")
    order = "reverse order" if rows.order["newest_first"] else "order"
    by = ", then ".join(columns[name] for name in ("time", "order") if name in columns)
    ties = ", rows of one time in reverse" if rows.order["newest_first"] else ""
    order = f"in the order of {by}{ties}" if by else f"in the {order} of the rows"
    kinds = f", kinds of events from {columns['event']}" if has_events else ", kinds of events unknown" * with_events
    logger.info(f"{path}: users from the column {columns['user']}, items from {columns['item']}{kinds}, {order}")
    ids = rows.first_of({name: columns[name] for name in ("user", "item")})
    texts = [column.name for column in ids if not (column.dtype.is_integer() or column.dtype.is_float())]
    as_text = pl.col(texts).cast(pl.String).cast(pl.Categorical)
    names = ["user", "item", *[name for name in SORTED_BY if name in columns], *["event"] * has_events]
    parts = [part.select(pl.col(names), pl.col("^fraction$")).with_columns(as_text) for part, _ in rows]
    if rows.bad.guests:
        logger.warning(f"{path}: skipped {pluralize(rows.bad.guests, 'row')} without a user")
    if n_bad := rows.bad.total:
        if not any(map(len, parts)):
            raise DataError(f"{rows.bad.shown[0]}; no row of {path} can be used, correct them")
        logger.warning(f"{path}: skipped {pluralize(n_bad, 'row')} that cannot be used: {rows.bad.shown[0]}")
    if not parts:
        return
    whole = pl.concat(parts, how="diagonal")
    wanted = {"items": pl.col("item")} | ({"times": pl.col("time")} if with_times and has_times else {})
    if has_events:
        wanted["events"] = pl.col("event").replace_strict(range(len(rows.kinds)), rows.kinds)
    keys = [pl.col(name) for name in reversed(SORTED_BY) if name in whole.columns]
    keys = [key.fill_null(0) if key.meta.output_name() == "fraction" else key for key in keys]
    if rows.order["newest_first"]:
        keys, wanted = [key.reverse() for key in keys], {name: column.reverse() for name, column in wanted.items()}
    if keys:
        wanted = {name: column.sort_by(keys, maintain_order=True) for name, column in wanted.items()}
    histories = whole.group_by("user", maintain_order=True).agg(**wanted)
    for part in histories.iter_slices(AT_ONCE):
        yield from ((user, _history([*wanted], values)) for user, *values in part.iter_rows())


def check_ending(path: Path | None) -> None:
    """Raise `DataError` if the suffix of the output `path` names no format that can be written."""
    if path is not None and path.suffix not in HISTORY_ENDINGS:
        raise DataError(f"{path}: its name must end in {', '.join(HISTORY_ENDINGS)}")


@contextlib.contextmanager
def writer(path: Path | None, columns: Sequence[str] = RECOMMENDATION_COLUMNS) -> Iterator[Write]:
    """Yield a function that writes to `path` in the format of its suffix, or JSON lines to standard output for None.

    `columns` are those of recommendations, or `USER_COLUMNS`. A file that exists is replaced, once the new one is
    complete. Raises `DataError` for another suffix, and if it cannot be written.
    """
    if path is None:
        yield _json_lines_writer(sys.stdout)
        return
    check_ending(path)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        with contextlib.ExitStack() as stack:
            if path.suffix == ".parquet":
                yield _parquet_writer(unfinished, columns, stack)
            else:
                file = stack.enter_context(unfinished.open("w", newline="", encoding="utf-8"))
                yield _csv_writer(file, columns) if path.suffix == ".csv" else _json_lines_writer(file)
        unfinished.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _json_lines_writer(file: TextIO) -> Write:
    def write(rows: Recommended) -> None:
        for name, best in rows:
            print(json.dumps(_json_line(name, best), ensure_ascii=False), file=file)

    return write


def _json_line(name: Any, best: Recommendations | Sequence[UserScore]) -> dict[str, Any]:
    scores = [round(one.score, 6) for one in best]
    if not isinstance(best, Recommendations):
        return {"item": name, "users": [one.user for one in best], "scores": scores}
    titles = {"titles": [one.title for one in best]} if any(one.title for one in best) else {}
    fallback = {"fallback": best.fallback} if best.is_fallback else {}
    return {"user": name, "items": [one.item for one in best], **titles, "scores": scores, **fallback}


def _flat(rows: Recommended) -> list[tuple[Any, ...]]:
    """Return one row of the columns for each recommendation, or each user."""
    return [
        (name, rank, *one, *([best.fallback] if isinstance(best, Recommendations) else []))
        for name, best in rows
        for rank, one in enumerate(best, 1)
    ]


def _csv_writer(file: TextIO, columns: Sequence[str]) -> Write:
    lines, score = csv.writer(file, lineterminator="\n"), columns.index("score")
    lines.writerow(columns)

    def write(rows: Recommended) -> None:
        for row in _flat(rows):
            lines.writerow([*row[:score], f"{row[score]:.6f}", *row[score + 1 :]])

    return write


def _parquet_writer(path: Path, names: Sequence[str], stack: contextlib.ExitStack) -> Write:
    opened: list[pq.ParquetWriter] = []

    def add(rows: Sequence[tuple[Any, ...]]) -> None:
        columns = [*zip(*rows, strict=True)] or [()] * len(names)
        table = pa.table(list(map(pa.array, columns)), names=names)
        if not opened:
            opened.append(stack.enter_context(pq.ParquetWriter(path, table.schema)))
        opened[0].write_table(table.cast(opened[0].schema))

    def write(rows: Recommended) -> None:
        if flat := _flat(rows):  # the first rows decide the types of the columns
            add(flat)

    stack.callback(lambda: None if opened else pq.write_table(pa.table([[]] * len(names), names=names), path))
    return write
