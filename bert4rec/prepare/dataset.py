"""Writes the dataset folder: the only contract between preparation and training.

The same tables and settings give the same bytes, whatever Polars' chunks and threads: lists are written in record
batches of a fixed size, and only `created_at` in `metadata.json` tells the time.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.errors import DataError
from bert4rec.prepare.card import dataset_card
from bert4rec.vocabulary import DATASET_FORMAT

ROWS_PER_BATCH = 1000
BYTES_PER_SHARD = 500_000_000
METADATA = "metadata.json"
LOCK = ".lock"
TYPES = {
    "user": pa.int32(),
    "items": pa.list_(pa.int32()),
    "times": pa.list_(pa.int64()),
    "ratings": pa.list_(pa.float32()),
    "target": pa.int32(),
    "popular_negatives": pa.list_(pa.int32()),
    "uniform_negatives": pa.list_(pa.int32()),
}


def write_dataset(
    folder: Path, *, splits: Mapping[str, pl.DataFrame], tables: Mapping[str, pl.DataFrame], metadata: Mapping[str, Any]
) -> int:
    """Write the dataset at `folder`, whole or not at all, and return its size in bytes.

    `splits`: name → frame with columns of `TYPES`. `tables`: name → frame for `<name>.parquet`. `metadata`: what
    stands in `metadata.json` besides the checksums. An older dataset there is replaced. Raises `DataError` where
    something else stands at `folder`, or the disk refuses.
    """
    try:
        with _replacing(folder) as new:
            for name, frame in splits.items():
                _write_split(new / name, frame)
            for name, frame in tables.items():
                pq.write_table(frame.to_arrow(compat_level=pl.CompatLevel.oldest()), new / f"{name}.parquet")
            (new / "README.md").write_text(dataset_card(metadata, splits, tables), encoding="utf-8")
            return _write_metadata(new, metadata)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{folder}: cannot write the dataset: {getattr(error, 'strerror', None) or error}") from None


def clear_target(folder: Path) -> None:
    """Clean up beside `folder` after killed runs; raise `DataError` where anything but a dataset stands there."""
    try:
        _clean(folder.resolve())
        if folder.is_file():
            raise DataError(f"{folder}: is a file; choose another data.dataset_dir")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / METADATA).is_file():
            raise DataError(f"{folder}: is not empty and not a dataset folder; choose another data.dataset_dir")
    except OSError as error:
        raise DataError(f"{folder}: cannot be used as data.dataset_dir: {error.strerror}") from None


def _write_split(folder: Path, frame: pl.DataFrame) -> None:
    """A folder as `datasets` saves it, with a fingerprint of the content in place of a random one."""
    schema = pa.schema([(name, TYPES[name]) for name in frame.columns])
    batches = [_batch(frame.slice(first, ROWS_PER_BATCH), schema) for first in range(0, len(frame), ROWS_PER_BATCH)]
    digest = hashlib.sha256(str(schema).encode())
    for batch in batches:
        digest.update(batch.serialize())
    table = pa.Table.from_batches(batches, schema)
    split = datasets.Dataset(
        datasets.table.InMemoryTable(table), split=datasets.Split(folder.name), fingerprint=digest.hexdigest()[:16]
    )
    split.save_to_disk(folder, num_shards=1 + table.nbytes // BYTES_PER_SHARD)


def _batch(frame: pl.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in buffers of their own: those of a slice go on behind it, and Arrow writes some of that as padding."""
    table = frame.to_arrow().cast(schema)
    return table.take(pa.array(np.arange(len(frame)))).combine_chunks().to_batches()[0]


def _write_metadata(folder: Path, metadata: Mapping[str, Any]) -> int:
    """`metadata.json` with the checksums of every other file; returns the size of the folder in bytes."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    sizes = {path: path.stat().st_size for path in paths}
    files = {
        path.relative_to(folder).as_posix(): {"bytes": size, "sha256": _sha256(path)} for path, size in sizes.items()
    }
    content = {
        "format_version": DATASET_FORMAT,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **metadata,
        "files": files,
        "fingerprint": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (folder / METADATA).write_text(text, encoding="utf-8")
    return sum(sizes.values()) + len(text.encode())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place when the block ends well, and goes when it does not."""
    clear_target(folder)
    folder = folder.resolve()  # a link stays a link to the new folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = (folder.with_name(f"{prefix}{os.getpid()}") for prefix in _prefixes(folder))
    try:
        new.mkdir()
        with (new / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held while this process lives: see _clean
            yield new
            (new / LOCK).unlink()
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        _clean(folder)


def _prefixes(folder: Path) -> tuple[str, str]:
    """How the names of a folder being written, and of one being replaced, begin."""
    return f".{folder.name}.new-", f".{folder.name}.old-"


def _clean(folder: Path) -> None:
    """Remove what killed runs left beside `folder`, and put back the dataset that one was about to replace."""
    beside = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else []
    new, old = ([path for path in beside if path.name.startswith(prefix)] for prefix in _prefixes(folder))
    for path in old:
        if folder.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rename(folder)
    for path in new:
        if not _in_use(path):
            shutil.rmtree(path, ignore_errors=True)


def _in_use(new: Path) -> bool:
    try:
        with (new / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
