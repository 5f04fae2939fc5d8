"""Open a dataset folder after checking that it is complete and was made with the present settings."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert4rec.config.recognition import what_is
from bert4rec.dataset.columns import PREPARE_AGAIN, Columns
from bert4rec.dataset.format import (
    DATASET_FORMAT,
    EVALUATED,
    FIRST_PART,
    HISTORIES,
    ITEMS,
    LEFT_OUT,
    METADATA,
    METADATA_DEFAULTS,
    NEEDED,
    ORACLE,
    TEST,
    TRAIN_COUNTS,
    USERS,
    VALIDATION,
    ReplacedError,
    T,
    fingerprints_of,
    kinds_of,
    read_version,
    target_kinds,
)
from bert4rec.dataset.held_out import ChosenTargets, EvaluationSplit
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.histories import Histories, TrainingWindows
from bert4rec.dataset.id_tables import IdTable, to_numpy
from bert4rec.dataset.item_features import FEATURES_FOLDER, FeatureSizes, ItemFeatures
from bert4rec.dataset.placement import Placement, files_by_host, parts_here
from bert4rec.runtime.arrays import Int32s, Int64s
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import sample_sha256

FIRST_IDS = 1000

KEYS = {
    "format_version", "preprocessing", "users", "items", "rows", "source", "files", "fingerprint", "has_times",
    "lengths", "repeated_targets", "left_out", "segments",
}  # fmt: skip


class Sizes(NamedTuple):
    """The number of items and users of a dataset, which are the numbers of rows of a model's tables.

    `window_length` is the mean length of the training windows, or 0 if unknown; `events` the number of their kinds;
    `prior` names the sources that are counted for all items.
    """

    items: int
    users: int = 0
    window_length: float = 0.0
    features: FeatureSizes | None = None
    events: int = 0
    prior: Sequence[str] = ()


@dataclass(frozen=True, repr=False)
class Catalogue:
    """The items of a dataset folder, or of the links to them that a run has."""

    folder: Path
    metadata: Mapping[str, Any]

    @property
    def n_items(self) -> int:
        """Return the number of items in the catalogue."""
        return int(self.metadata["items"])

    @cached_property
    def features(self) -> ItemFeatures | None:
        """Return the features of the items, if there are any."""
        about = self.metadata.get("item_features")
        return ItemFeatures(self.folder, about, self.metadata["fingerprint"]) if about else None

    @cached_property
    def item_table(self) -> IdTable:
        """Return the ids and the other columns of the items, which are read when they are asked for."""
        return IdTable(self.folder, self.metadata, ITEMS)

    @cached_property
    def popularity(self) -> Int32s:
        """Return the number of training positions of each item [n_items] int32, mapped: once for a host's processes."""
        return self.read_version(lambda: np.load(self.folder / TRAIN_COUNTS, mmap_mode="r").view(np.ndarray))

    def read_version(self, read: Callable[[], T]) -> T:
        """Return what `read` returns. Raises `DataError` if the folder holds another dataset by now."""
        return read_version(self.folder, self.metadata["fingerprint"], read)


@dataclass(frozen=True, repr=False)
class Dataset(Catalogue):
    """An open dataset folder; with a `placement`, `histories` are those of this host's own parts."""

    histories: Histories
    splits: Mapping[str, EvaluationSplit]
    placement: Placement | None = None

    def __repr__(self) -> str:
        return f"Dataset('{self.folder}': {self.n_users:,} users, {self.n_items:,} items, {self.n_rows:,} interactions)"

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def n_users(self) -> int:
        """Return the number of users, including those of an older dataset that this one extends."""
        return int(self.metadata["users"])

    @property
    def n_rows(self) -> int:
        """Return the number of interactions after all filters."""
        return int(self.metadata["rows"])

    @property
    def share_of_repeats(self) -> float:
        """Return the share, 0 to 1, of test (else validation) targets that their users have seen before."""
        counts = self.metadata["repeated_targets"]
        held_out = next((counts[split] for split in (TEST, VALIDATION) if counts[split]["of"]), {"users": 0, "of": 1})
        return float(held_out["users"] / held_out["of"])

    @property
    def typical_length(self) -> int:
        """Return the length that three quarters of the histories do not exceed."""
        return int(self.metadata["lengths"]["third_quartile"])

    def windows(self, *, max_len: int, step: int) -> TrainingWindows:
        """Return the training parts of the histories, in windows of at most `max_len` items."""
        return self._windows.setdefault((max_len, step), TrainingWindows(self.histories, max_len=max_len, step=step))

    @cached_property
    def _windows(self) -> dict[tuple[int, int], TrainingWindows]:
        """Return the windows by `max_len` and `step`; they keep the numbers that they have computed."""
        return {}

    @cached_property
    def user_table(self) -> IdTable:
        """Return the ids and the numbers of interactions of the users, which are read when they are asked for."""
        return IdTable(self.folder, self.metadata, USERS)

    @cached_property
    def first_ids(self) -> str:
        """Return a checksum of some items: the first rows, with the numbers and original ids of their items."""
        return checksum(self.first_items(FIRST_IDS))

    def first_items(self, n: int) -> list[tuple[int, Any]]:
        """Return number and original id of the items in the first `n` rows."""
        numbers = self.item_table.segments.numbers(np.arange(min(n, self.n_items)))
        return list(zip(numbers.tolist(), self.item_rows(numbers, ["original"])["original"].to_pylist(), strict=True))

    def originals(self, n: int) -> list[Any]:
        """Return the original ids of the first `n` items."""
        return list(self.item_rows(np.arange(min(n, self.n_items)), ["original"])["original"].to_pylist())

    def item_rows(self, items: Int64s, columns: Sequence[str]) -> pa.Table:
        """Return those of the `columns` that are known of the `items` [n]."""
        return self.item_table.rows(items, columns)

    def oracle_ranks(self) -> dict[str, Int32s]:
        """Return protocol → rank of the target [test users] by the generator of synthetic data; {} for real data.

        The rank of a user without negatives is LEFT_OUT.
        """
        path = self.folder / ORACLE
        if not path.exists() or isinstance(self.splits[TEST], ChosenTargets):
            return {}
        table = self.read_version(partial(pq.read_table, path))
        return {name: table[name].fill_null(LEFT_OUT).to_numpy() for name in table.column_names if name != "user"}


def checksum(first_items: Sequence[tuple[int, Any]]) -> str:
    """Return a checksum of the numbers and original ids of items."""
    return hashlib.sha256(json.dumps(first_items).encode()).hexdigest()[:12]


def open_dataset(
    folder: Path, *, preprocessing: Mapping[str, Any] | None = None, verify: bool = True, with_times: bool = False,
    parts_by_host: bool = False,
) -> Dataset:  # fmt: skip
    """Return the dataset at `folder`; raise `DataError` if it was made with other settings than `preprocessing`.

    `with_times`: rows include the times of items and targets, which the dataset must have. With `verify`, a sample of
    each file, at most 4 MiB, is compared with its checksum; one process per host needs this. Ids are checked when they
    are read. `bert4rec check FOLDER` checks every byte. With `parts_by_host`, only the parts that are here are read.

    Also raises `DataError` for a folder that is missing, incomplete, changed since it was written, or of another
    format. The source of the data is not compared: the folder may be a copy from another machine.
    """
    metadata = _read_checked(folder, verify=verify, parts_by_host=parts_by_host)
    _check_settings(folder, metadata, preprocessing or {})
    if with_times:
        require_times(folder, metadata)
    parts = parts_here(folder, parts_of(folder, metadata)) if parts_by_host else None
    return _opened(folder, metadata, parts, with_times=with_times)


def parts_of(folder: Path, metadata: Mapping[str, Any]) -> list[str]:
    """Return the parts of a dataset, in the order of the users, wherever they are."""
    return [*dict.fromkeys(Columns(folder / HISTORIES, metadata["fingerprint"]).files)]


def of_parts(dataset: Dataset, placement: Placement) -> Dataset:
    """Return the dataset with the parts alone that belong to this host."""
    with_times = dataset.histories.with_times
    opened = _opened(dataset.folder, dataset.metadata, placement.parts, with_times=with_times)
    return replace(opened, placement=placement)


def _opened(folder: Path, metadata: Mapping[str, Any], parts: list[str] | None, *, with_times: bool) -> Dataset:
    kinds = kinds_of(metadata)
    targets = target_kinds(folder, metadata)
    hidden = HiddenEvents.of(metadata["preprocessing"], kinds)
    histories = Histories(
        folder, metadata["items"], with_times=with_times, kinds=kinds, target_kinds=targets, hidden=hidden,
        fingerprint=metadata["fingerprint"], parts=parts,
    )  # fmt: skip
    return Dataset(folder, metadata, histories, {name: EvaluationSplit(name, histories, folder) for name in EVALUATED})


def _read_checked(folder: Path, *, verify: bool, parts_by_host: bool) -> dict[str, Any]:
    """Return `metadata.json` after looking at the files: again, if the dataset is replaced by another one meanwhile."""
    while True:
        metadata = read_metadata(folder)
        elsewhere = {name for name in files_by_host(metadata) if parts_by_host and not (folder / name).is_file()}
        files = {name: file for name, file in metadata["files"].items() if name not in elsewhere}
        check = partial(_check_files, folder, files, NEEDED, verify=verify)
        with suppress(ReplacedError):
            read_version(folder, str(metadata["fingerprint"]), check)
            return metadata


def open_catalogue(folder: Path) -> Catalogue:
    """Return the items of a dataset `folder` or of a run's links to them. Raises `DataError` for a missing file."""
    metadata = read_metadata(folder)
    _check_files(folder, files_of_items(metadata), {f"{ITEMS}/{FIRST_PART}", TRAIN_COUNTS}, verify=False)
    return Catalogue(folder, metadata)


def files_of_items(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files of a dataset with all that is known of its items, and their sizes and checksums."""
    folders = (f"{ITEMS}/", f"{FEATURES_FOLDER}/")
    return {name: file for name, file in metadata["files"].items() if name == TRAIN_COUNTS or name.startswith(folders)}


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return `metadata.json` of a dataset folder. Raises `DataError` if it is missing, damaged or of another format."""
    path = folder / METADATA
    try:
        metadata: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        advice = "" if folder.exists() else "; make it with `bert4rec prepare` and the same settings"
        raise DataError(f"{folder}: expected a dataset; {what_is(folder)}{advice}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {PREPARE_AGAIN}") from None
    if not isinstance(metadata, dict) or not metadata.keys() >= KEYS:
        raise DataError(f"{path}: does not describe a dataset; {PREPARE_AGAIN}")
    if metadata.get("format_version") != DATASET_FORMAT:
        version = metadata.get("format_version")
        raise DataError(f"{path}: format_version {version}, this program reads {DATASET_FORMAT}; {PREPARE_AGAIN}")
    return metadata


def moved_share(metadata: Mapping[str, Any]) -> float:
    """Return by how much a share of the rows, 0 to 1, has changed in the last weeks of the log of a dataset.

    >>> moved_share({"log": {"shift": {"values": {"boots": [0.28, 0.04], "sandals": [0.03, 0.25]}}}})
    0.24
    """
    shift = metadata.get("log", {}).get("shift", {})
    shares = [*shift.get("values", {}).values(), *([shift["popular"]] if "popular" in shift else [])]
    return max((round(abs(since - before), 4) for before, since in shares), default=0.0)


def require_times(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Raise `DataError` if the dataset in `folder` has no times."""
    if not metadata["has_times"]:
        raise DataError(
            f"{folder}: has no times of the interactions, which the model uses; prepare data with a time column "
            '(in a table: set data.time_column), or train with model.times = "none"'
        )


def require_kinds(folder: Path, metadata: Mapping[str, Any], kinds: Sequence[str]) -> None:
    """Raise `DataError` if a model that was trained with these `kinds` of events cannot read those of the dataset."""
    present = kinds_of(metadata)
    if kinds and present != tuple(kinds) == present[: len(kinds)]:
        new, known = ", ".join(present[len(kinds) :]), ", ".join(kinds[1:])
        raise DataError(
            f"{folder}: has kinds of events that the model was not trained with: {new}; give these rows one of its "
            f"kinds ({known}) or remove them, and prepare again, or train a new model: bert4rec train {folder}"
        )
    if kinds and present != tuple(kinds):
        has = f"has the kinds of events {', '.join(present[1:])}" if present else "has no kinds of events"
        raise DataError(
            f"{folder}: {has}; the model was trained with {', '.join(kinds[1:])}, in this order; prepare it with "
            "--data.event_column=COLUMN and --data.extends=FOLDER, the dataset of the model, or train another model"
        )


def _check_settings(folder: Path, saved: Mapping[str, Any], preprocessing: Mapping[str, Any]) -> None:
    optional: Mapping[str, Any] = METADATA_DEFAULTS if preprocessing else {}
    for key, value in {**optional, **preprocessing}.items():
        if (saved_value := saved["preprocessing"].get(key, optional.get(key))) != value:
            raise DataError(
                f"{folder}: made with preprocessing.{key} = {json.dumps(saved_value)}, the settings say "
                f"{json.dumps(value)}; {PREPARE_AGAIN}"
            )


def _check_files(
    folder: Path, files: Mapping[str, Mapping[str, Any]], needed: Collection[str], *, verify: bool
) -> None:
    """Raise `DataError` for a missing file or another size, and with `verify` for another checksum of its sample."""
    for name in sorted(files.keys() | needed):
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: is missing; {PREPARE_AGAIN}")
    for name, expected in files.items():
        path = folder / name
        if (size := path.stat().st_size) != expected.get("bytes"):
            raise DataError(f"{path}: has {size} bytes, metadata.json says {expected.get('bytes')}; {PREPARE_AGAIN}")
        if verify and sample_sha256(path) != expected.get("sample_sha256"):
            raise DataError(f"{path}: its checksum differs from that in metadata.json; {PREPARE_AGAIN}")


def problem_of(
    dataset: Dataset, *, n_items: int, first_ids: str, fingerprint: str = "", previous: Path | None = None
) -> str:
    """Return why `dataset` does not extend the one of a model; "" if it does.

    If it says that it extends the dataset with this `fingerprint`, nothing is compared: some of its items may be
    forgotten. The model's dataset has `n_items` items and the checksum `first_ids` of its first ids. If its folder
    `previous` still exists, every id is compared, not only the first ones.
    """
    if fingerprint in fingerprints_of(dataset.metadata):
        return ""
    if dataset.n_items < n_items:
        return f"it has {dataset.n_items:,} items, fewer than the {n_items:,} of the model"
    if first_ids not in map(checksum, _forms(dataset.first_items(min(FIRST_IDS, n_items)))):
        return f"its first {min(FIRST_IDS, n_items):,} items are not those of the model"
    if not previous:
        return ""
    for part in IdTable(previous, read_metadata(previous), ITEMS).parts(["item", "original"]):
        some = part.filter(pc.less(part["item"], dataset.n_items))
        items, old = to_numpy(some["item"]), some["original"].cast(pa.large_string())
        new = dataset.item_rows(items, ["original"])["original"].cast(pa.large_string())
        if (place := pc.index(pc.equal(old, new), False).as_py()) >= 0:
            return f"its item {items[place]} is {new[place]}, not {old[place]}"
    return ""


def _forms(items: list[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    """Yield the items, and with integers if all ids are decimal: text ids may have been integers in older datasets."""
    yield items
    if all(isinstance(original, str) and original.isdecimal() for _, original in items):
        yield [(item, int(original)) for item, original in items]
