"""Opens a dataset folder memory-mapped, after checking that it is whole and made with the settings at hand."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert4rec.errors import DataError
from bert4rec.vocabulary import DATASET_FORMAT, FIRST_ITEM_ID, table_rows

REMAKE = "make it again with `python preprocessing.py` and the same settings"

KEYS = {"format_version", "max_len", "preprocessing", "users", "items", "rows", "source", "files", "fingerprint"}

Ints: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Rows:
    """Some rows of a split as ragged arrays.

    `items` [total] int32 holds the rows' items one after another, `lengths` [B] int64 how many each row has. The
    other columns are there in evaluation splits only: `targets` [B], `negatives[protocol]` [B, n].
    """

    items: Ints
    lengths: npt.NDArray[np.int64]
    targets: Ints | None = None
    negatives: Mapping[str, Ints] | None = None


class Split:
    """One split, memory-mapped: rows are read from the page cache that all processes share."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._rows = datasets.load_from_disk(str(folder)).with_format("arrow")

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: npt.NDArray[np.int64]) -> Rows:
        """The rows at `indices` [B], in that order; no Python object per item is made."""
        table: pa.Table = self._rows[indices]
        items = table["items"].combine_chunks()
        lengths = pc.list_value_length(items).to_numpy().astype(np.int64)
        values = items.flatten().to_numpy()
        if "target" not in table.column_names:
            return Rows(values, lengths)
        negatives = {
            name.removesuffix("_negatives"): table[name].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
            for name in table.column_names
            if name.endswith("_negatives")
        }
        return Rows(values, lengths, table["target"].to_numpy(), negatives)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Items in each row [rows]: read from the list offsets, not from the items."""
        chunks = [pc.list_value_length(chunk).to_numpy() for chunk in self.column("items").chunks]
        return np.concatenate([np.zeros(0, np.int64), *chunks]).astype(np.int64)

    def column(self, name: str) -> pa.ChunkedArray:
        """One whole column, memory-mapped."""
        return self._rows.data.table[name]


@dataclass(frozen=True)
class Dataset:
    """An open dataset folder."""

    folder: Path
    metadata: Mapping[str, Any]
    splits: Mapping[str, Split]

    @property
    def n_items(self) -> int:
        """Items in the catalogue."""
        return int(self.metadata["items"])

    @cached_property
    def popularity(self) -> Ints:
        """Each item's training positions [n_items], item id i at i - FIRST_ITEM_ID; read when it is first wanted."""
        counts = np.zeros(self.n_items, np.int32)
        with pq.ParquetFile(self.folder / "items.parquet") as items:
            for part in items.iter_batches(columns=["item", "train_count"]):
                counts[part["item"].to_numpy() - FIRST_ITEM_ID] = part["train_count"].to_numpy()
        return counts

    def oracle_ranks(self) -> dict[str, Ints]:
        """Protocol → rank [test users] that the generator of synthetic data gives the target; empty for real data."""
        path = self.folder / "oracle.parquet"
        if not path.exists():
            return {}
        table = pq.read_table(path)
        return {name: table[name].to_numpy() for name in table.column_names if name != "user"}


def open_dataset(folder: Path, *, max_len: int, preprocessing: Mapping[str, Any], verify: bool = True) -> Dataset:
    """Open `folder` for a model that sees `max_len` items, made with the settings `preprocessing`.

    With `verify` every byte is read once, for the checksums and the range of the ids; one process a host does.

    Raises `DataError`, in one line, for a folder that is missing, incomplete, changed since it was written, of another
    format, or made with other settings. Where the data came from does not matter: a folder may come from elsewhere.
    """
    metadata = _read_metadata(folder)
    _check_settings(folder, metadata, {"max_len": max_len, "preprocessing": dict(preprocessing)})
    _check_files(folder, metadata["files"], verify=verify)
    splits = {name: Split(folder / name) for name in ("train", "validation", "test")}
    if verify:
        for split in splits.values():
            _check_ids(folder, split, table_rows(metadata["items"]))
    return Dataset(folder, metadata, splits)


def _read_metadata(folder: Path) -> dict[str, Any]:
    path = folder / "metadata.json"
    try:
        metadata: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no dataset folder (no metadata.json); run `python preprocessing.py` with these settings first"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMAKE}") from None
    if not isinstance(metadata, dict) or not metadata.keys() >= KEYS:
        raise DataError(f"{path}: does not describe a dataset; {REMAKE}")
    if metadata.get("format_version") != DATASET_FORMAT:
        found = metadata.get("format_version")
        raise DataError(f"{path}: format_version {found}, this program reads {DATASET_FORMAT}; {REMAKE}")
    return metadata


def _check_settings(folder: Path, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if made["max_len"] != wanted["max_len"]:
        raise DataError(
            f"{folder}: made with model.max_len = {made['max_len']}, the settings say {wanted['max_len']}; {REMAKE}"
        )
    for key, value in wanted["preprocessing"].items():
        if (found := made["preprocessing"].get(key)) != value:
            raise DataError(
                f"{folder}: made with preprocessing.{key} = {json.dumps(found)}, the settings say "
                f"{json.dumps(value)}; {REMAKE}"
            )


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]], *, verify: bool) -> None:
    """All files are there with their sizes, and to `verify` with their checksums."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: is missing; {REMAKE}")
        if path.stat().st_size != expected["bytes"]:
            size = path.stat().st_size
            raise DataError(f"{path}: has {size} bytes, metadata.json says {expected['bytes']}; {REMAKE}")
        if verify and _sha256(path) != expected["sha256"]:
            raise DataError(f"{path}: its checksum is not that of metadata.json; {REMAKE}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_ids(folder: Path, split: Split, n_rows: int) -> None:
    """TorchRec accepts ids outside the table in silence, so the range is checked here."""
    columns: Sequence[str] = ("items",) if split.name == "train" else ("items", "target")
    for name in columns:
        for chunk in split.column(name).chunks:
            values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
            limits = pc.min_max(values).as_py()
            if limits["min"] is not None and not FIRST_ITEM_ID <= limits["min"] <= limits["max"] < n_rows:
                raise DataError(
                    f"{folder / split.name}: column {name} has an id outside {FIRST_ITEM_ID}…{n_rows - 1}; {REMAKE}"
                )
