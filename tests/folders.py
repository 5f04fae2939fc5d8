"""Dataset folders compared, and changed by hand, whole again afterwards."""

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.format import HISTORIES, history_columns
from bert4rec.dataset.histories import Histories
from bert4rec.dataset.reader import KEYS
from bert4rec.dataset.segments import Segments
from bert4rec.prepare.id_files import write_ids
from bert4rec.runtime.files import sample_sha256, sha256

FIRST_ITEMS = "items/part-0000000000.parquet"


def histories_of(
    place: Path, items: Sequence[Sequence[int]], *, times: Sequence[Sequence[int]] | None = None, n_items: int = 10**6,
    per_batch: int = 2, events: Sequence[Sequence[int]] | None = None, target_kinds: Sequence[int] = (),
    **offsets: Sequence[int],
) -> Histories:  # fmt: skip
    """The histories of users 0, 1, …, whose `items` count from 0, in a folder at `place`; all of them for training."""
    columns: dict[str, Any] = {"user": range(len(items))}
    columns["items"] = [list(user_items) for user_items in items]
    columns |= {name: lists for name, lists in (("times", times), ("events", events)) if lists is not None}
    nowhere = [-1] * len(items)
    columns |= {"n_train": [*map(len, items)], "validation": nowhere, "test": nowhere} | offsets
    types = history_columns(has_times=times is not None, has_ratings=False, has_events=events is not None)
    schema = pa.schema(list(types.items()))
    table = pa.table({name: list(values) for name, values in columns.items()}, schema=schema)
    (place / HISTORIES).mkdir(parents=True)
    with pa.OSFile(str(place / HISTORIES / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_table(table, max_chunksize=per_batch)
    write_state(place / HISTORIES)
    kinds = ["", "view", "buy"] if events is not None else []
    return Histories(place, n_items, with_times=times is not None, kinds=kinds, target_kinds=target_kinds)


def id_table(folder: Path, name: str) -> pl.DataFrame:
    """All rows of the `users` or `items` of a dataset, by number; ids are text if those of any file are."""
    files = [pl.read_parquet(path) for path in sorted((folder / name).glob("*.parquet"))]
    return pl.concat(files, how="vertical_relaxed").sort(name.removesuffix("s"))


def write_users(folder: Path, segments: Sequence[Sequence[Any]]) -> None:
    """Give a dataset the users with these original ids, by segments, one interaction each."""
    shutil.rmtree(folder / "users")
    originals, first, frames = [*itertools.chain(*segments)], 0, []
    for ids in segments:
        numbers = pl.Series("user", range(first, first := first + len(ids)), pl.Int32)
        frames.append([pl.DataFrame([numbers, pl.Series("original", ids)]).with_columns(count=1)])
    sizes = write_ids(folder / "users", frames)
    files = {path.relative_to(folder).as_posix(): {} for path in (folder / "users").iterdir()}
    path = folder / "metadata.json"
    metadata = json.loads(path.read_text())
    changes = {"users": len(originals), "segments": metadata["segments"] | {"users": sizes}}
    path.write_text(json.dumps(metadata | changes | {"files": metadata["files"] | files}))


def write_catalogue(folder: Path, **columns: Any) -> Path:
    """The items with these columns, by number, as a run has them; row groups have one row."""
    table = pa.table(columns)
    numbers = np.arange(len(table))
    orders = ((seed, Segments([len(table)], [seed]).numbers(numbers)) for seed in itertools.count())
    seed, order = next((seed, order) for seed, order in orders if is_sorted(table["original"].take(pa.array(order))))
    table = table.append_column("item", pa.array(numbers)).take(pa.array(order))
    (folder / "items").mkdir(parents=True)
    pq.write_table(table, folder / FIRST_ITEMS, row_group_size=1)
    np.save(folder / "train_counts.npy", np.array(columns["train_count"], np.int32))
    files = {name: {"bytes": (folder / name).stat().st_size} for name in (FIRST_ITEMS, "train_counts.npy")}
    known = {"items": len(table), "segments": {"items": [[len(table), seed]]}, "files": files, "format_version": 3}
    (folder / "metadata.json").write_text(json.dumps(dict.fromkeys(KEYS, "") | known))
    return folder


def is_sorted(ids: pa.ChunkedArray) -> bool:
    return ids.to_pylist() == sorted(ids.to_pylist())


def write_state(folder: Path) -> None:
    """Let `state.json` list the Arrow files of `histories` or `negatives`, with the batches that they hold."""
    path, files = folder / "state.json", []
    for file in sorted(folder.glob("*.arrow")):
        batches = [*pa.ipc.open_stream(file.read_bytes())]
        firsts = [batch["user"][0].as_py() if len(batch) and "user" in batch.schema.names else 0 for batch in batches]
        sizes = [[first, len(batch)] for first, batch in zip(firsts, batches, strict=True)]
        files.append({"filename": file.name, "batches": sizes})
    state = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(state | {"_data_files": files}))


def rewrite(folder: Path, name: str, change: Callable[[datasets.Dataset], datasets.Dataset]) -> None:
    """Save the rows of `histories` or `negatives` again after `change`, and its checksums."""
    rows = change(datasets.load_from_disk(str(folder / name), keep_in_memory=True))
    shutil.rmtree(folder / name)
    rows.save_to_disk(str(folder / name))
    write_state(folder / name)
    path = folder / "metadata.json"
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "metadata.json"]
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
            "sample_sha256": sample_sha256(path),
        }
        for path in paths
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": files}))


def remove_targets(folder: Path, *splits: str) -> None:
    """Let nobody have a target of these evaluation splits, and save the folder whole."""
    rewrite(folder, HISTORIES, lambda rows: rows.map(lambda row: row | dict.fromkeys(splits, -1)))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of the folder, `metadata.json` without when and of which file it was made."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    metadata = json.loads(files["metadata.json"])
    for name in ("created_at", "created_from"):
        metadata.pop(name, None)
    return {**files, "metadata.json": json.dumps(metadata).encode()}


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file, with the time at which it was last written."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}
