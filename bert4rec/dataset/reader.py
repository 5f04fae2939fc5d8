"""Opens a dataset folder, after checking that it is whole and made with the settings at hand."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.format import (
    DATASET_FORMAT,
    EVALUATED,
    ITEMS,
    LEFT_OUT,
    METADATA,
    ORACLE,
    TEST,
    VALIDATION,
)
from bert4rec.dataset.histories import REMAKE, EvaluationSplit, Histories, Ints, TrainingWindows
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import sample_sha256

FIRST_IDS = 1000

KEYS = {
    "format_version", "preprocessing", "users", "items", "rows", "source", "files", "fingerprint", "has_times",
    "lengths", "repeated_targets", "left_out",
}  # fmt: skip


class Sizes(NamedTuple):
    """How many items and users a dataset has: what the tables of a model are as large as.

    `window_length` is the mean of what it is trained on; 0 where that is not known.
    """

    items: int
    users: int = 0
    window_length: float = 0.0


@dataclass(frozen=True, repr=False)
class Dataset:
    """An open dataset folder."""

    folder: Path
    metadata: Mapping[str, Any]
    histories: Histories
    splits: Mapping[str, EvaluationSplit]

    def __repr__(self) -> str:
        return f"Dataset('{self.folder}': {self.n_users:,} users, {self.n_items:,} items, {self.n_rows:,} interactions)"

    @property
    def n_users(self) -> int:
        """Users, those of an older dataset among them whose ids it keeps."""
        return int(self.metadata["users"])

    @property
    def n_items(self) -> int:
        """Items in the catalogue."""
        return int(self.metadata["items"])

    @property
    def n_rows(self) -> int:
        """Interactions, after all filters."""
        return int(self.metadata["rows"])

    @property
    def share_of_repeats(self) -> float:
        """Share of held-out targets, 0 to 1, that their users have seen before: of the test, else of the validation."""
        counts = self.metadata["repeated_targets"]
        held_out = next((counts[split] for split in (TEST, VALIDATION) if counts[split]["of"]), {"users": 0, "of": 1})
        return float(held_out["users"] / held_out["of"])

    @property
    def typical_length(self) -> int:
        """Return the length that three quarters of the histories do not exceed."""
        return int(self.metadata["lengths"]["third_quartile"])

    def windows(self, *, max_len: int, step: int) -> TrainingWindows:
        """Return the training parts of the histories, in windows of at most `max_len` items."""
        return TrainingWindows(self.histories, max_len=max_len, step=step)

    @cached_property
    def first_ids(self) -> str:
        """Which items have which ids, as a checksum of the first ones: in another order or set those are others."""
        return checksum(self.originals(FIRST_IDS))

    def originals(self, n: int) -> list[Any]:
        """The own ids of the first `n` items."""
        with pq.ParquetFile(self.folder / ITEMS) as items:
            first = next(items.iter_batches(batch_size=n, columns=["original"]))
        return list(first["original"].to_pylist())

    @cached_property
    def popularity(self) -> Ints:
        """Each item's training positions [n_items]; read when they are first used."""
        counts = np.zeros(self.n_items, np.int32)
        with pq.ParquetFile(self.folder / ITEMS) as items:
            for part in items.iter_batches(columns=["item", "train_count"]):
                # Not by to_numpy, which imports pandas: no training should wait for it.
                item, count = (np.from_dlpack(part[name]) for name in ("item", "train_count"))
                counts[item] = count
        return counts

    def oracle_ranks(self) -> dict[str, Ints]:
        """Protocol → rank [test users] that the generator of synthetic data gives the target; empty for real data.

        LEFT_OUT for a user without negatives.
        """
        path = self.folder / ORACLE
        if not path.exists():
            return {}
        table = pq.read_table(path)
        return {name: table[name].fill_null(LEFT_OUT).to_numpy() for name in table.column_names if name != "user"}


def checksum(originals: list[Any]) -> str:
    """Return a checksum of the items' original ids, in the order of their dense ids."""
    return hashlib.sha256(json.dumps(originals).encode()).hexdigest()[:12]


def open_dataset(
    folder: Path, *, preprocessing: Mapping[str, Any] | None = None, verify: bool = True, with_times: bool = False
) -> Dataset:
    """Return the dataset at `folder`; raise `DataError` if it was made with other settings than `preprocessing`.

    `with_times`: rows are read with the times of items and targets, which the dataset must have then. With `verify` a
    sample of each file, at most 4 MiB, is compared with its checksum; one process a host does. Ids are checked when
    they are read. Every byte is checked by `bert4rec check FOLDER`.

    Raises `DataError`, in one line, for a folder that is missing, incomplete, changed since it was written, or of
    another format. Where the data came from does not matter: a folder may come from elsewhere.
    """
    metadata = read_metadata(folder)
    _check_settings(folder, metadata, preprocessing or {})
    _check_files(folder, metadata["files"], verify=verify)
    if with_times:
        require_times(folder, metadata)
    histories = Histories(folder, metadata["items"], with_times=with_times)
    return Dataset(folder, metadata, histories, {name: EvaluationSplit(name, histories, folder) for name in EVALUATED})


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return `metadata.json` of a dataset folder. Raises `DataError`."""
    path = folder / METADATA
    try:
        metadata: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no dataset folder (no metadata.json); run `bert4rec prepare` with these settings first"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMAKE}") from None
    if not isinstance(metadata, dict) or not metadata.keys() >= KEYS:
        raise DataError(f"{path}: does not describe a dataset; {REMAKE}")
    if metadata.get("format_version") != DATASET_FORMAT:
        found = metadata.get("format_version")
        raise DataError(f"{path}: format_version {found}, this program reads {DATASET_FORMAT}; {REMAKE}")
    return metadata


def require_times(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Raise `DataError` for a dataset folder that does not say when its items were taken."""
    if not metadata["has_times"]:
        raise DataError(
            f"{folder}: does not say when items were taken, as the model wants to know: prepare data that have a time, "
            'in a table named by data.time_column, or train with model.times = "none"'
        )


def _check_settings(folder: Path, saved: Mapping[str, Any], preprocessing: Mapping[str, Any]) -> None:
    for key, value in preprocessing.items():
        if (found := saved["preprocessing"].get(key)) != value:
            raise DataError(
                f"{folder}: made with preprocessing.{key} = {json.dumps(found)}, the settings say "
                f"{json.dumps(value)}; {REMAKE}"
            )


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]], *, verify: bool) -> None:
    """All files are there with their sizes, and to `verify` with the checksums of their samples."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: is missing; {REMAKE}")
        if (size := path.stat().st_size) != expected.get("bytes"):
            raise DataError(f"{path}: has {size} bytes, metadata.json says {expected.get('bytes')}; {REMAKE}")
        if verify and sample_sha256(path) != expected.get("sample_sha256"):
            raise DataError(f"{path}: its checksum is not that of metadata.json; {REMAKE}")


ITEMS_AT_ONCE = 65_536


def problem_of(dataset: Dataset, *, n_items: int, first_ids: str, previous: Path | None = None) -> str:
    """Why `dataset` does not extend one of `n_items` items, the first ids' checksum `first_ids`; "" where it does.

    `previous` is the folder of that one where it is still there: then every id is compared, and not only the first
    ones.
    """
    if dataset.n_items < n_items:
        return f"it has {dataset.n_items:,} items, fewer than the {n_items:,} of the model"
    if first_ids not in map(checksum, _forms(dataset.originals(min(FIRST_IDS, n_items)))):
        return f"its first {min(FIRST_IDS, n_items):,} items are not those of the model"
    return next(_differences(previous / ITEMS, dataset.folder / ITEMS), "") if previous else ""


def _forms(originals: list[Any]) -> Iterator[list[Any]]:
    """Ids that are text now may have been numbers, as long as all items had some."""
    yield originals
    if all(isinstance(original, str) and original.isdecimal() for original in originals):
        yield [int(original) for original in originals]


def _differences(previous: Path, current: Path) -> Iterator[str]:
    with pq.ParquetFile(previous) as old, pq.ParquetFile(current) as new:
        parts = (file.iter_batches(ITEMS_AT_ONCE, columns=["item", "original"]) for file in (old, new))
        for before, after in zip_longest(*parts):
            if before is None:
                return
            after = after[: len(before)]
            if before.equals(after):
                continue
            for number, mine, other in zip(before["item"], *map(_as_text, (before, after)), strict=True):
                if mine != other:
                    yield f"its item {number} is {other}, not {mine}"


def _as_text(part: pa.RecordBatch) -> list[str]:
    return list(part["original"].cast(pa.string()).to_pylist())
