"""Reads the rows of a split as they stand on the disk, in parts of bounded size."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert4rec.dataset.check.metadata import REMAKE, Metadata
from bert4rec.dataset.check.rows_in_parts import Ints, Part, first_true, refusal
from bert4rec.dataset.check.tables import readable
from bert4rec.dataset.schema import LISTS, NEGATIVES, STATE, TARGET_TIME, TRAIN, columns
from bert4rec.runtime.errors import DataError


class SplitReader:
    """One split, in the order of its rows, which is that of the users.

    Raises `DataError` at once for files that are not those of the split or have other columns, and while reading for
    what Arrow cannot read and for users out of order.
    """

    def __init__(self, metadata: Metadata, name: str) -> None:
        self._metadata, self._place = metadata, metadata.folder / name
        self._evaluated = name != TRAIN
        self._types = columns(
            name, has_times=metadata.has_times, has_ratings=metadata.has_ratings,
            has_target_times=metadata.has_target_times,
        )  # fmt: skip
        shards = _shards(self._place)
        for shard in shards:
            _check_columns(shard, self._types)
        self._batches = self._checked(_batches(shards, [*self._types]))
        self._rest = pa.RecordBatch.from_pylist([], pa.schema([*self._types.items()]))
        self.rows_read = self.rows_taken = 0

    def take(self, limit: int) -> Part:
        """The rows of the users below `limit` that were not taken before."""
        taken: list[pa.RecordBatch] = []
        for batch in itertools.chain([self._rest], self._batches):
            cut = int(np.searchsorted(batch["user"].to_numpy(), limit))
            taken.append(batch.slice(0, cut))
            self._rest = batch.slice(cut)
            if len(self._rest):
                break
        part = self._part(taken)
        self.rows_taken += len(part)
        return part

    def _checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Those that have rows, without nulls and in the order of the users."""
        last_user = -1
        for batch in batches:
            if len(batch):
                self._check_nulls(batch)
                users = batch["user"].to_numpy().astype(np.int64)
                self._check_users(users, last_user)
                self.rows_read, last_user = self.rows_read + len(users), int(users[-1])
                yield batch

    def _check_nulls(self, batch: pa.RecordBatch) -> None:
        for name in self._types:
            column = batch[name]
            if column.null_count or (pa.types.is_list(column.type) and column.flatten().null_count):
                rows = f"rows {self.rows_read} to {self.rows_read + len(batch) - 1}"
                raise DataError(f"{self._place}: {rows}: column {name} has a null; {REMAKE}")

    def _check_users(self, users: Ints, last_user: int) -> None:
        n_users, steps = self._metadata.n_users, np.diff(users, prepend=last_user)
        outside = (users < 0) | (users >= n_users)
        wrong = first_true(outside | (steps <= 0 if self._evaluated else steps < 0))
        if wrong is None:
            return
        what = "a second row of this user" if steps[wrong] == 0 else f"stands behind user {users[wrong] - steps[wrong]}"
        if outside[wrong]:
            what = f"there is no such user, they have ids from 0 to {n_users - 1}"
        raise refusal(self._place, self.rows_read + wrong, int(users[wrong]), what)

    def _part(self, batches: Sequence[pa.RecordBatch]) -> Part:
        schema = pa.schema(list(self._types.items()))
        table = pa.Table.from_batches(batches) if batches else schema.empty_table()
        found = {name: table[name].combine_chunks() for name in self._types}
        users = found["user"].to_numpy().astype(np.int64)
        lengths = _lengths(found["items"])
        for name, column in found.items():
            if pa.types.is_list(column.type) and name not in NEGATIVES:
                self._check_lengths(name, users, _lengths(column), lengths)
        drawn = self._drawn(users, found) if self._evaluated else np.zeros(0, np.int64)
        flat = {name: column.flatten().to_numpy() for name, column in found.items() if pa.types.is_list(column.type)}
        shape = (len(drawn), self._metadata.n_negatives)
        return Part(
            place=self._place,
            first=self.rows_taken,
            users=users,
            lengths=lengths,
            lists={name: flat[name] for name in LISTS if name in flat},
            targets=found["target"].to_numpy() if self._evaluated else np.zeros(0, np.int32),
            target_times=found[TARGET_TIME].to_numpy() if TARGET_TIME in found else None,
            drawn=drawn,
            negatives={name: flat[name].reshape(shape) for name in NEGATIVES if self._evaluated},
        )

    def _drawn(self, users: Ints, found: Mapping[str, pa.ListArray]) -> Ints:
        """The rows that have negatives, of each kind as many as the settings say; the others have none."""
        counts = {name: _lengths(found[name]) for name in NEGATIVES}
        has_some = np.any([lengths > 0 for lengths in counts.values()], axis=0)
        for name, lengths in counts.items():
            self._check_lengths(name, users, lengths, np.where(has_some, self._metadata.n_negatives, 0))
        return np.flatnonzero(has_some)

    def _check_lengths(self, name: str, users: Ints, lengths: Ints, expected: Ints) -> None:
        if (wrong := first_true(lengths != expected)) is not None:
            what = f"{name} has {lengths[wrong]} elements, not {expected[wrong]}"
            what += " as preprocessing.n_eval_negatives says" if name in NEGATIVES else " as items"
            raise refusal(self._place, self.rows_taken + wrong, int(users[wrong]), what)


def _shards(folder: Path) -> list[Path]:
    """The files of a split, in their order; there must be no other one that `datasets` would not read."""
    path = folder / STATE
    try:
        names = [str(entry["filename"]) for entry in json.loads(path.read_text(encoding="utf-8"))["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path}: does not list the files of the split ({error!r}); {REMAKE}") from None
    found = {file.name for file in folder.glob("*.arrow")}
    if len({*names}) != len(names) or {*names} != found:
        raise DataError(f"{path}: lists the files {names}, the folder holds {sorted(found)}; {REMAKE}")
    return [folder / name for name in names]


def _check_columns(path: Path, types: Mapping[str, pa.DataType]) -> None:
    with readable(path), pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        found = {field.name: field.type for field in stream.schema}
    if found != types or len(stream.schema) != len(types):
        shown, expected = (", ".join(f"{name} {kind}" for name, kind in table.items()) for table in (found, types))
        raise DataError(f"{path}: has the columns {shown}; must be {expected}; {REMAKE}")


def _batches(paths: Sequence[Path], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The record batches of the files, read one by one: a mapped file would count as memory of the process."""
    for path in paths:
        with readable(path), pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                batch.validate(full=True)  # offsets that point outside would be followed
                yield pa.RecordBatch.from_arrays([batch[name] for name in names], list(names))


def _lengths(lists: pa.ListArray) -> Ints:
    return pc.list_value_length(lists).to_numpy().astype(np.int64)
