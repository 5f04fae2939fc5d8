"""Remove the ids of users or items from all files of a run that has learnt from them, and of its evaluations."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert4rec.checkpoint.models_folder import PACKAGE
from bert4rec.checkpoint.package import ITEM_LINES, MODEL_CARD
from bert4rec.checkpoint.run_folder import EXAMPLES, HTML_PAGE, REPORT
from bert4rec.config.tables import Config
from bert4rec.dataset.format import FORGOTTEN, ITEMS, METADATA, USERS
from bert4rec.dataset.runs import CATALOGUE
from bert4rec.prepare.folder import checksums
from bert4rec.prepare.grown_tables import with_counts_alone
from bert4rec.prepare.id_files import write_ids
from bert4rec.report.pages import write_html
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.files import MANIFEST, atomic_write, describe, put_back, replace_directory, write_manifest
from bert4rec.serving.export import card_again
from bert4rec.serving.load import find_source
from bert4rec.update.versions import K, link_folder

ID_COLUMNS = {USERS: ("original_user", "user"), ITEMS: ("original_item", "item")}
"""Columns of a table for people: the first that it has holds the ids."""


def clean_of_users(run: Path, ids: Collection[int | str]) -> None:
    """Remove the users with these `ids` from the examples, the page, the ranks and the lists of a run."""
    texts = {str(one) for one in ids}
    _clean_log(run / CATALOGUE / METADATA, USERS, texts)
    _clean_tables(run, USERS, texts)
    for path in sorted(run.rglob("lists-*.jsonl")):
        _clean_lines(path, lambda line: None if str(line.get("user")) in texts else line)
    _clean_examples(run, lambda one: None if str(one["user"]) in texts else one)


def clean_of_items(run: Path, numbers: Int64s, ids: Collection[int | str]) -> None:
    """Remove the items with these `numbers` and `ids` from the catalogue, the package, and what was written for people.

    The rows of the items stay where numbers are places, with their counts alone.
    """
    texts = {str(one) for one in ids}
    _clean_log(run / CATALOGUE / METADATA, ITEMS, texts)
    _clean_catalogue(run / CATALOGUE, numbers)
    _clean_package(run, numbers)
    _clean_tables(run, ITEMS, texts)
    for path in sorted(run.rglob("lists-*.jsonl")):
        _clean_lines(path, lambda line: _list_without(line, texts))

    def without(one: dict[str, Any]) -> dict[str, Any] | None:
        lists = {key: value for key, value in one.items() if isinstance(value, list)}
        kept = {
            key: [entry for entry in some if not (isinstance(entry, dict) and str(entry.get("item")) in texts)]
            for key, some in lists.items()
        }
        return None if str((one.get("target") or {}).get("item")) in texts else one | kept

    _clean_examples(run, without)


def _clean_log(path: Path, table: str, texts: Collection[str]) -> None:
    """Remove ids from what a run's copy of the metadata tells of the log."""
    if not path.is_file():
        return
    metadata = json.loads(path.read_text(encoding="utf-8"))
    log = metadata.get("log", {})
    is_largest = table == USERS and str(log.get("largest_user", {}).get("user")) in texts
    has_twin = not {*texts}.isdisjoint(map(str, log.get("case_twins", {}).get(table, {}).get("example", ())))
    if is_largest or has_twin:
        del metadata["log"]
        _write_json(path, metadata)


def _clean_catalogue(catalogue: Path, numbers: Int64s) -> None:
    """Replace a run's folder of items by one with counts alone of some, in one step."""
    if not _is_whole(catalogue, METADATA):
        return
    metadata = json.loads((catalogue / METADATA).read_text(encoding="utf-8"))
    first, n_null, files = 0, 0, {**metadata["files"]}
    with _copied(catalogue) as new:
        for name in sorted(name for name in files if name.startswith(f"{ITEMS}/")):
            rows = pl.read_parquet(catalogue / name)
            cleaned = with_counts_alone(rows, numbers)
            if not cleaned.equals(rows):
                (new / name).unlink()
                write_ids(new / ITEMS, [[cleaned]], first=first)
                files[name] = checksums(new / name)
            n_null, first = n_null + cleaned["original"].null_count(), first + len(rows)
        if files != metadata["files"]:
            forgotten = {USERS: 0, **metadata.get(FORGOTTEN, {}), ITEMS: n_null}
            _write_json(new / METADATA, metadata | {FORGOTTEN: forgotten, "files": files})
            replace_directory(new, catalogue, replaced=_replaced(catalogue))


def _clean_package(run: Path, numbers: Int64s) -> None:
    """Replace the package of a run by one with counts alone of some items, in one step."""
    package = run / PACKAGE
    if not _is_whole(package, ITEM_LINES):
        return
    lines = _lines(package / ITEM_LINES)
    before = [*lines]
    for number in numbers[numbers < len(lines)].tolist():
        line = {name: value for name, value in json.loads(lines[number]).items() if name not in ("title", "columns")}
        lines[number] = json.dumps(line | {"id": None}, ensure_ascii=False) + "\n"
    if lines == before:
        return
    with _copied(package) as new:
        atomic_write(new / ITEM_LINES, "".join(lines))
        atomic_write(new / MODEL_CARD, card_again(find_source(run), new, k=K))
        manifest = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
        write_manifest(new, manifest | describe(new, [ITEM_LINES, MODEL_CARD]))
        replace_directory(new, package, replaced=_replaced(package))


def _is_whole(folder: Path, name: str) -> bool:
    """Return whether a folder has the file `name`, after it is put back if a kill has left it replaced by nothing."""
    if (replaced := _replaced(folder)).is_dir():
        put_back(replaced, folder)
    return (folder / name).is_file()


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


@contextmanager
def _copied(folder: Path) -> Iterator[Path]:
    """Yield a folder with links to the files of another, which may take its place; what is left of it is removed."""
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    link_folder(folder, new)
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _clean_tables(run: Path, table: str, texts: Collection[str]) -> None:
    """Remove the rows with an id from tables of ranks and lists."""
    for path in sorted(run.rglob("*.parquet")):
        if path.name.startswith(("ranks-", "lists-")):
            _clean_parquet(path, ID_COLUMNS[table], texts)
    for path in sorted(run.rglob("lists-*.csv")):
        text = path.read_text(encoding="utf-8")
        if (cleaned := _csv_without(text, ID_COLUMNS[table][-1], texts)) != text:
            atomic_write(path, cleaned)


def _clean_parquet(path: Path, columns: Collection[str], texts: Collection[str]) -> None:
    """Write a table again without the rows with an id, if it has any."""
    with pq.ParquetFile(path) as file:
        name = next((name for name in columns if name in file.schema_arrow.names), "")
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


def _csv_without(text: str, name: str, texts: Collection[str]) -> str:
    rows = [*csv.reader(io.StringIO(text, newline=""))]
    place = rows[0].index(name) if rows and name in rows[0] else -1
    kept = [row for row in rows if place < 0 or row[place] not in texts]
    if len(kept) == len(rows):
        return text
    cleaned = io.StringIO(newline="")
    csv.writer(cleaned, lineterminator="\n").writerows(kept)
    return cleaned.getvalue()


def _clean_lines(path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
    """Write JSON lines again as `change` returns them, None for one that goes; lines that stay keep their bytes."""
    lines, cleaned = _lines(path), list[str]()
    for line in lines:
        before = json.loads(line)
        after = change(before)
        if after is not None:
            cleaned.append(line if after == before else json.dumps(after, ensure_ascii=False) + "\n")
    if cleaned != lines:
        atomic_write(path, "".join(cleaned))


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as file:  # a title may have other characters that end a line
        return [*file]


def _list_without(line: Mapping[str, Any], texts: Collection[str]) -> dict[str, Any]:
    """Return a line with a list of items, and with lists parallel to it, without the items."""
    items = line.get("items", [])
    kept = [place for place, item in enumerate(items) if str(item) not in texts]
    return {
        key: [value[place] for place in kept] if isinstance(value, list) and len(value) == len(items) else value
        for key, value in line.items()
    }


def _clean_examples(run: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Let the examples of a run be what `change` returns, None for one that goes, and write the page again."""
    if (run / EXAMPLES).is_file():
        examples = json.loads((run / EXAMPLES).read_text(encoding="utf-8"))
        kept = [one for one in map(change, examples["users"]) if one is not None]
        if kept != examples["users"]:
            (run / HTML_PAGE).unlink(missing_ok=True)  # first: a page that is missing is written, whatever was done
            atomic_write(run / EXAMPLES, json.dumps(examples | {"users": kept}, indent=2) + "\n")
    if (run / REPORT).is_file() and not (run / HTML_PAGE).is_file():
        write_html(run, Config().model_dump(mode="json"))


def _write_json(path: Path, content: Any) -> None:
    atomic_write(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
