"""Opens a dataset folder memory-mapped, after checking that it is whole and made with the settings at hand."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bert4rec.dataset.columns import REMAKE, Columns, Indices, Ints
from bert4rec.dataset.format import (
    DATASET_FORMAT,
    FIRST_ITEM_ID,
    ITEMS,
    LEFT_OUT,
    METADATA,
    ORACLE,
    PAD_ID,
    PROTOCOLS,
    RATINGS,
    SPLITS,
    STATE,
    TARGET_TIME,
    TEST,
    TIMES,
    TRAIN,
    VALIDATION,
    table_rows,
)
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.files import sample_sha256

Bools: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float32]

FIRST_IDS = 1000
ROWS_AT_ONCE = 8192  # whose times are in memory
NO_TIME = np.iinfo(np.int64).min  # in the place of a time, where a history has no item

KEYS = {
    "format_version", "max_len", "preprocessing", "users", "items", "rows", "source", "files", "fingerprint",
    "has_times", "repeated_targets", "left_out",
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Some rows of a split as ragged arrays.

    `items` [total] int32 holds the rows' items one after another, `lengths` [B] int64 how many each row has. The
    other columns are there in evaluation splits only: `targets` [B], `users` [B], `negatives[protocol]` [B, n]; a user
    who has seen too much of the catalogue has none, but PAD_ID in their n places (n is 0 where no row has any).
    Of a split that is read with times `times` [total] and `target_times` [B] are seconds.
    """

    items: Ints
    lengths: Indices
    targets: Ints | None = None
    negatives: Mapping[str, Ints] | None = None
    users: Ints | None = None
    times: Indices | None = None
    target_times: Indices | None = None

    def are_repeated(self) -> Bools:
        """Which targets [B] stand in their user's own history."""
        assert self.targets is not None, "an evaluation split has targets"
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return np.bincount(rows[self.items == self.targets[rows]], minlength=len(self.lengths)) > 0

    def are_left_out(self, protocol: str) -> Bools:
        """Which users [B] have no negatives for `protocol`."""
        assert self.negatives is not None, "an evaluation split has negatives"
        return (self.negatives[protocol] == PAD_ID).all(axis=1)


class Split:
    """One split of a dataset for a table of `n_rows` rows, memory-mapped: all processes share the page cache.

    Opened when it is first used, and then at no cost per row. Pickled, it takes no row along. `read` takes times along
    only `with_times`.
    """

    def __init__(self, folder: Path, n_rows: int, *, with_times: bool = False) -> None:
        self.name = folder.name
        self._folder, self._n_rows, self._with_times = folder, n_rows, with_times

    def __len__(self) -> int:
        return len(self._columns)

    @cached_property
    def users(self) -> Ints:
        """The user of each row [N], ascending; read whole when it is first wanted."""
        return self._columns.numbers("user", np.arange(len(self))) if len(self) else np.empty(0, np.int32)

    @cached_property
    def last_times(self) -> Indices | None:
        """When the last item of each row [N] was, in seconds, or `NO_TIME`; read when it is first wanted.

        None where the dataset has no times.
        """
        if not self.has_times:
            return None
        found = np.full(len(self), NO_TIME)
        for first in range(0, len(self), ROWS_AT_ONCE):
            rows = np.arange(first, min(first + ROWS_AT_ONCE, len(self)))
            times, lengths = self.times(rows), self.lengths(rows)
            found[rows[lengths > 0]] = times[lengths.cumsum()[lengths > 0] - 1]
        return found

    def lengths(self, indices: Indices) -> Indices:
        """How many items the rows at `indices` [B] have."""
        return self._columns.lengths("items", indices)

    def targets(self, indices: Indices) -> Ints:
        """The targets of the rows at `indices` [B], of an evaluation split. Raises `DataError` as `read` does."""
        return self._checked("target", self._columns.numbers("target", indices), indices, np.ones_like(indices))

    @property
    def has_times(self) -> bool:
        """Whether it is known when each item was taken."""
        return TIMES in self._columns.names

    def times(self, indices: Indices) -> Indices:
        """The seconds [total] of the items of the rows at `indices` [B], as `read` has the items."""
        return self._columns.long_lists(TIMES, indices)[0]

    def read(self, indices: Indices) -> Rows:
        """The rows at `indices` [B], in that order; no Python object per row is made.

        Raises `DataError` for an id that the item table does not have: TorchRec would accept it in silence.
        """
        rows = Rows(*self._lists("items", indices), times=self.times(indices) if self._with_times else None)
        if "target" not in self._columns.names:
            return rows
        return replace(
            rows,
            targets=self.targets(indices),
            negatives={name: self._equally_many(f"{name}_negatives", indices) for name in PROTOCOLS},
            users=self._columns.numbers("user", indices),
            target_times=self._columns.long_numbers(TARGET_TIME, indices) if self._with_times else None,
        )

    @cached_property
    def n_pairs(self) -> int:
        """Pairs of a user and an item in all rows."""
        return self._columns.n_elements("items") if len(self) else 0

    @property
    def mean_length(self) -> float:
        """Items of a row; 0 where there is none."""
        return self.n_pairs / max(1, len(self))

    @property
    def has_ratings(self) -> bool:
        """Whether it is known how users rated items."""
        return RATINGS in self._columns.names

    def pairs(self, numbers: Indices, *, with_ratings: bool = False) -> tuple[Ints, Ints, Floats | None]:
        """Users, items and, if they are wanted, ratings of the pairs with the `numbers` [B], ascending.

        A pair's number is its place in the column of items, over all rows. Raises `DataError` as `read` does.
        """
        rows = self._columns.rows_of("items", numbers)
        items = self._checked("items", self._columns.elements("items", numbers), rows, np.ones_like(rows))
        ratings = self._columns.elements(RATINGS, numbers).view(np.float32) if with_ratings else None
        return self._columns.numbers("user", rows, maps=True), items, ratings

    @cached_property
    def _columns(self) -> Columns:
        """Where the rows are; the folder is one that `datasets` has saved."""
        state = self._folder / STATE
        try:
            files = [self._folder / file["filename"] for file in json.loads(state.read_text())["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{state}: cannot be read ({error}); {REMAKE}") from None
        return Columns(files)

    def _lists(self, name: str, indices: Indices) -> tuple[Ints, Indices]:
        values, lengths = self._columns.lists(name, indices)
        return self._checked(name, values, indices, lengths), lengths

    def _equally_many(self, name: str, indices: Indices) -> Ints:
        """A column of lists as [B, n]: each has n elements, or none, and then PAD_ID in their places."""
        values, lengths = self._lists(name, indices)
        n, has_some = int(lengths.max(initial=0)), lengths > 0
        if (lengths[has_some] != n).any():
            raise DataError(f"{self._folder}: column {name} has more of some rows than of others; {REMAKE}")
        found = np.full((len(lengths), n), PAD_ID, np.int32)
        found[has_some] = values.reshape(has_some.sum(), n)
        return found

    def _checked(self, name: str, ids: Ints, indices: Indices, lengths: Indices) -> Ints:
        """`ids`, of which the rows at `indices` [B] have `lengths` [B], if all of them are items."""
        if not len(ids) or (ids.min() >= FIRST_ITEM_ID and ids.max() < self._n_rows):
            return ids
        wrong = int(np.flatnonzero((ids < FIRST_ITEM_ID) | (ids >= self._n_rows))[0])
        row = indices[np.searchsorted(lengths.cumsum(), wrong, side="right")]
        raise DataError(
            f"{self._folder}: row {row}: column {name} has the id {ids[wrong]}, outside {FIRST_ITEM_ID}…"
            f"{self._n_rows - 1}; `bert4rec check {self._folder.parent}` finds all of them; {REMAKE}"
        )


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
    splits: Mapping[str, Split]

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
    def max_len(self) -> int:
        """Items of the longest window that there may be."""
        return int(self.metadata["max_len"])

    @property
    def sizes(self) -> Sizes:
        """Of its tables and batches."""
        return Sizes(self.n_items, self.n_users, self.splits[TRAIN].mean_length)

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
        """Each item's training positions [n_items], item id i at i - FIRST_ITEM_ID; read when it is first used."""
        counts = np.zeros(self.n_items, np.int32)
        with pq.ParquetFile(self.folder / ITEMS) as items:
            for part in items.iter_batches(columns=["item", "train_count"]):
                # Not by to_numpy, which imports pandas: no training should wait for it.
                item, count = (np.from_dlpack(part[name]) for name in ("item", "train_count"))
                counts[item - FIRST_ITEM_ID] = count
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
    """Of the items' own ids, in the order of the ids that a model knows them by."""
    return hashlib.sha256(json.dumps(originals).encode()).hexdigest()[:12]


def open_dataset(
    folder: Path, *, max_len: int | Literal["auto"], preprocessing: Mapping[str, Any], verify: bool = True,
    with_times: bool = False,
) -> Dataset:  # fmt: skip
    """Open `folder` for a model that sees `max_len` items, made with the settings `preprocessing`.

    With "auto" it sees as many as the longest windows of the dataset have. `with_times`: rows are read with the times
    of items and targets, which the dataset must have then. The time that it takes does not depend on the number of
    rows. With `verify` a sample of each file, at most 4 MiB, is compared with its checksum; one process a host does.
    Ids are checked when they are read. Every byte is checked by `bert4rec check FOLDER`.

    Raises `DataError`, in one line, for a folder that is missing, incomplete, changed since it was written, of another
    format, or made with other settings. Where the data came from does not matter: a folder may come from elsewhere.
    """
    metadata = read_metadata(folder)
    _check_settings(folder, metadata, {"max_len": max_len, "preprocessing": dict(preprocessing)})
    _check_files(folder, metadata["files"], verify=verify)
    if with_times:
        require_times(folder, metadata)
    n_rows = table_rows(metadata["items"])
    splits = {name: Split(folder / name, n_rows, with_times=with_times) for name in SPLITS}
    return Dataset(folder, metadata, splits)


def read_metadata(folder: Path) -> dict[str, Any]:
    """What a dataset folder says of itself. Raises `DataError`."""
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


def _check_settings(folder: Path, saved: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    if settings["max_len"] not in ("auto", saved["max_len"]):
        raise DataError(
            f"{folder}: made with model.max_len = {saved['max_len']}, the settings say {settings['max_len']}; {REMAKE}"
        )
    for key, value in settings["preprocessing"].items():
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
