"""Forget users of a model: their rows leave the dataset, and their ids all files of its versions.

Each step can be done again, and the dataset comes last: killed anywhere, the same command does the rest, and until then
the users are found. What the versions have learnt stays learnt.
"""

import csv
import io
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert4rec.checkpoint.models_folder import DATASET, find_versions
from bert4rec.checkpoint.run_folder import EXAMPLES, HTML_PAGE, REPORT
from bert4rec.config.tables import Config
from bert4rec.dataset.format import METADATA, USERS
from bert4rec.dataset.id_tables import UNKNOWN, IdTable
from bert4rec.dataset.ids import canonical_value
from bert4rec.dataset.reader import read_metadata
from bert4rec.dataset.runs import CATALOGUE
from bert4rec.prepare.forget import forget_users
from bert4rec.report.pages import write_html
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import DataError, join_names
from bert4rec.runtime.files import atomic_write, put_back, replace_directory, withdraw_directory
from bert4rec.update.finish import DECISION, TAILS, UNFINISHED_UPDATE, UPDATE_PLAN, finish

REPLACED_DATASET = ".dataset.old"  # the dataset while it is replaced, on a file system that cannot exchange two names
ID_COLUMNS = ("original_user", "user")  # of a table for people: the first that it has holds the ids


class Forgotten(NamedTuple):
    """Count what was forgotten: the number of `users` and of their `rows`.

    `unknown`: ids that the dataset does not have; `versions`: names of those that learnt from the rows.
    """

    users: int
    rows: int
    unknown: list[str]
    versions: list[str]


def ids_of(models: Path, names: Sequence[str]) -> list[int | str]:
    """Return the different ids that the `names` of users mean, as the dataset of a models folder writes them.

    Raises `DataError` for a name that is no id.
    """
    table, ids = _table(models), list[int | str]()
    for name in names:
        if (one := canonical_value(name, is_number=table.are_numbers)) is None:
            expected = "a whole number" if table.are_numbers else "text"
            raise DataError(f"{name or '(nothing)'}: is no user of {models}; expected: {expected}, as in the log")
        ids.append(one)
    return [*dict.fromkeys(ids)]


def forget(models: Path, names: Sequence[str]) -> Forgotten:
    """Forget the users with these `names`, and return what was forgotten.

    An unfinished update is removed; if it was decided, it is finished first. Raises `DataError` if the dataset has none
    of the users, or no other rows.
    """
    unfinished, dataset, replaced = models / UNFINISHED_UPDATE, models / DATASET, models / REPLACED_DATASET
    if replaced.is_dir():
        put_back(replaced, dataset)
    if (unfinished / DECISION).is_file():
        finish(models)
    if not (unfinished / UPDATE_PLAN).is_file():
        withdraw_directory(unfinished)  # of a call that was killed; it may have the older dataset
    ids = ids_of(models, names)
    found = _table(models).find(ids)
    unknown = [str(one) for one, number in zip(ids, found, strict=True) if number == UNKNOWN]
    numbers = np.sort(found[found != UNKNOWN])
    if not len(numbers):
        advice = "they are forgotten already, or written in another way: --prove looks for them in every file"
        raise DataError(f"{models}: has no user {join_names(unknown)}; {advice}")
    withdraw_directory(unfinished)
    n_rows = forget_users(dataset, numbers, unfinished / DATASET)
    versions = find_versions(models)
    for version in versions:
        _clean_run(version.folder, ids)
    for path in sorted((models / TAILS).glob("*.npz")):
        _clean_tail(path, numbers)
    replace_directory(unfinished / DATASET, dataset, replaced=replaced)
    withdraw_directory(unfinished)
    learnt = [version.name for version in versions if numbers[0] < version.about["users"]]
    return Forgotten(len(numbers), n_rows, unknown, learnt)


def _table(models: Path) -> IdTable:
    return IdTable(models / DATASET, read_metadata(models / DATASET), USERS)


def _clean_run(run: Path, ids: Collection[int | str]) -> None:
    """Remove the users from the examples, the page, the ranks and the lists of a run and of its evaluations."""
    texts = {str(one) for one in ids}
    _clean_catalogue(run / CATALOGUE / METADATA, texts)
    for path in sorted(run.rglob("*.parquet")):
        if path.name.startswith(("ranks-", "lists-")):
            _clean_parquet(path, texts)
    for path in sorted(run.rglob("lists-*.csv")):
        _clean_lines(path, lambda text: _csv_without(text, texts))
    for path in sorted(run.rglob("lists-*.jsonl")):
        _clean_lines(path, lambda text: _json_lines_without(text, texts))
    if (run / EXAMPLES).is_file():
        examples = json.loads((run / EXAMPLES).read_text(encoding="utf-8"))
        kept = [one for one in examples["users"] if str(one["user"]) not in texts]
        if len(kept) < len(examples["users"]):
            (run / HTML_PAGE).unlink(missing_ok=True)  # first: a page that is missing is written, whatever was done
            atomic_write(run / EXAMPLES, json.dumps(examples | {"users": kept}, indent=2) + "\n")
    if (run / REPORT).is_file() and not (run / HTML_PAGE).is_file():
        write_html(run, Config().model_dump(mode="json"))


def _clean_catalogue(path: Path, texts: Collection[str]) -> None:
    """Remove ids from what a run's copy of the metadata tells of the log."""
    if not path.is_file():
        return
    metadata = json.loads(path.read_text(encoding="utf-8"))
    log = metadata.get("log", {})
    is_largest = str(log.get("largest_user", {}).get("user")) in texts
    has_twin = texts & {*map(str, log.get("case_twins", {}).get(USERS, {}).get("example", ()))}  # type: ignore[operator]
    if is_largest or has_twin:
        del metadata["log"]
        atomic_write(path, json.dumps(metadata, indent=2, ensure_ascii=False) + "\n")


def _clean_parquet(path: Path, texts: Collection[str]) -> None:
    """Write a table again without the rows of the users, if it has any."""
    with pq.ParquetFile(path) as file:
        name = next((name for name in ID_COLUMNS if name in file.schema_arrow.names), "")
        if not name:
            return
        wanted, groups = pa.array([*texts], pa.large_string()), range(file.num_row_groups)

        def are_kept(column: pa.ChunkedArray) -> pa.ChunkedArray:
            return pc.invert(pc.is_in(column.cast(pa.large_string()), value_set=wanted))

        if all(pc.all(are_kept(file.read_row_group(group, [name])[name])).as_py() is not False for group in groups):
            return
        unfinished = path.with_name(f"{path.name}.tmp")
        with pq.ParquetWriter(unfinished, file.schema_arrow) as writer:
            for group in groups:
                rows = file.read_row_group(group)
                writer.write_table(rows.filter(are_kept(rows[name])))
    unfinished.replace(path)


def _clean_lines(path: Path, without: Callable[[str], str]) -> None:
    text = path.read_text(encoding="utf-8")
    if (cleaned := without(text)) != text:
        atomic_write(path, cleaned)


def _csv_without(text: str, texts: Collection[str]) -> str:
    rows = [*csv.reader(io.StringIO(text, newline=""))]
    place = rows[0].index("user") if rows and "user" in rows[0] else -1
    kept = [row for row in rows if place < 0 or row[place] not in texts]
    if len(kept) == len(rows):
        return text
    cleaned = io.StringIO(newline="")
    csv.writer(cleaned, lineterminator="\n").writerows(kept)
    return cleaned.getvalue()


def _json_lines_without(text: str, texts: Collection[str]) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if str(json.loads(line).get("user")) not in texts)


def _clean_tail(path: Path, numbers: Int64s) -> None:
    """Remove the users with these numbers from the gains on the tail of a day."""
    with np.load(path) as loaded:
        arrays: dict[str, Any] = {name: loaded[name] for name in loaded.files}
    is_kept = ~np.isin(arrays["users"], numbers)
    if not is_kept.all():
        content = io.BytesIO()
        np.savez(content, **{name: values[is_kept] for name, values in arrays.items()})
        atomic_write(path, content.getvalue())
