"""Check that a dataset folder is whole and leaks nothing, with none of the code that writes, reads or trains."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bert4rec.dataset import format
from bert4rec.runtime.console import NO_BAR, ProgressBar
from bert4rec.runtime.errors import DataError, in_one_line

REMAKE = "make the dataset again with `bert4rec prepare`"

USERS_AT_ONCE = 1 << 12  # many more would not fit into the processor's cache
ROWS_AT_ONCE = 1 << 16  # of a Parquet table
KEYS_AT_ONCE = 1 << 24  # hashes of original ids compared in one pass, 8 bytes each; a larger table takes more passes
BYTES_AT_ONCE = 1 << 22  # of a file whose checksum is computed

NEEDED = (format.USERS, format.ITEMS, *(f"{split}/{format.STATE}" for split in format.SPLITS))
COUNTS = ("rows", "train_windows", "train_positions", "validation_users", "test_users")
COUNT, IDS = range(2**63), range(1, format.MOST_IDS + 1)

Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[np.int64]


def check_dataset(folder: Path) -> dict[str, Any]:
    """Return what `metadata.json` says of `folder`, after every byte, row and count was found to agree with it.

    Raises `DataError` for the first file, row or count that is wrong.
    """
    metadata = _read_metadata(folder)
    _check_files(folder, metadata["files"])
    content = _Content(folder, metadata)
    content.check_splits()
    content.check_items()
    content.check_counts()
    for name, n_rows in ((format.USERS, metadata["users"]), (format.ITEMS, metadata["items"])):
        _check_originals(folder / name, n_rows)
    return metadata


def _read_metadata(folder: Path) -> dict[str, Any]:
    path = folder / format.METADATA
    try:
        metadata: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder}: no dataset folder (no metadata.json); name one of `bert4rec prepare`") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMAKE}") from None
    _check_values(path, metadata, format_version=range(format.DATASET_FORMAT, format.DATASET_FORMAT + 1))
    _check_values(path, metadata, users=IDS, items=IDS, max_len=IDS, **dict.fromkeys(COUNTS, COUNT))
    _check_values(path, metadata, has_times=bool, has_ratings=bool, extends=bool, source=str, fingerprint=str)
    _check_values(path, metadata, preprocessing=dict, files=dict)
    settings = metadata["preprocessing"]
    _check_values(path, settings, split=str, sliding_step=range(metadata["max_len"] + 1), n_eval_negatives=IDS)
    if settings["split"] not in ("leave_one_out", "time", "none"):
        raise DataError(f"{path}: split = {settings['split']!r}: must be leave_one_out, time or none; {REMAKE}")
    if settings.get("validation_users") != "all":
        _check_values(path, settings, validation_users=COUNT)
    if settings["split"] == "time":
        _check_values(path, metadata, split_instant=int)
    for name, entry in metadata["files"].items():
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or type(entry.get("sha256")) is not str:
            raise DataError(f"{path}: files: {name} has no size and checksum; {REMAKE}")
    files = json.dumps(metadata["files"], sort_keys=True).encode()
    if hashlib.sha256(files).hexdigest() != metadata["fingerprint"]:
        raise DataError(f"{path}: the fingerprint does not match the files; {REMAKE}")
    return metadata


def _check_values(path: Path, table: Any, **kinds: type | range) -> None:
    for name, kind in kinds.items():
        value = table.get(name) if isinstance(table, dict) else None
        if isinstance(kind, range):
            is_valid, expected = type(value) is int and value in kind, f"an integer from {kind[0]} to {kind[-1]}"
        else:
            is_valid, expected = type(value) is kind, f"of type {kind.__name__}"
        if not is_valid:
            raise DataError(f"{path}: {name} = {json.dumps(value)[:40]}: must be {expected}; {REMAKE}")


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `DataError` for the first file that is missing, not listed, or changed."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    for name in sorted({*files, *NEEDED} - found):
        raise DataError(f"{folder / name}: is missing; {REMAKE}")
    for name in sorted(found - {*files, format.METADATA}):
        raise DataError(f"{folder / name}: is not listed in metadata.json; move it out of the folder")
    for name, entry in files.items():
        if (size := (folder / name).stat().st_size) != entry["bytes"]:
            raise DataError(f"{folder / name}: has {size} bytes, metadata.json says {entry['bytes']}; {REMAKE}")
    done, total = 0, sum(entry["bytes"] for entry in files.values())
    with ProgressBar(total, form=NO_BAR) as bar:
        for name, entry in files.items():
            digest = hashlib.sha256()
            with (folder / name).open("rb") as file:
                while block := file.read(BYTES_AT_ONCE):
                    digest.update(block)
                    done += len(block)
                    if bar.is_due():
                        bar.show(done, f"read {done:,} of {total:,} bytes for the checksums ({done / total:.0%})")
            if digest.hexdigest() != entry["sha256"]:
                raise DataError(f"{folder / name}: its checksum does not match metadata.json; {REMAKE}")


@dataclass(frozen=True)
class _Part:
    """Hold consecutive rows of a split or table, the first of them row `first`.

    `ids` [B]: the first column, `id_name`; `values`: column → its numbers, [B], of a column of lists all of them end to
    end; `lengths`: column of lists → how many each row has [B].
    """

    place: Path
    first: int
    id_name: str
    ids: Ints
    values: Mapping[str, Any]
    lengths: Mapping[str, Ints]

    def refuse(self, wrong: Array, problem: str, *values: Any, column: str = "") -> None:
        """Raise `DataError` for the first row, or element of `column`, that is `wrong`; {} become its `values`."""
        if not wrong.any():
            return
        row = at = int(wrong.argmax())
        if column in self.lengths:
            ends = np.cumsum(self.lengths[column])
            row = int(np.searchsorted(ends, at, side="right"))
            shown = f"{column}[{at - ends[row] + self.lengths[column][row]}] is {self.values[column][at]}, "
        else:
            shown = f"{column} is {self.values[column][at]}, " if column else ""
        problem = problem.format(*(value[at] if isinstance(value, np.ndarray) else value for value in values))
        where = f"row {self.first + row} ({self.id_name} {self.ids[row]})"
        raise DataError(f"{self.place}: {where}: {shown}{problem}; {REMAKE}")


class _Content:
    """Check the splits and tables of a folder, a few thousand users at a time, and count what they hold."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        self._folder, self._metadata, settings = folder, metadata, metadata["preprocessing"]
        self._split, self._max_len = settings["split"], metadata["max_len"]
        self._step, self._n_negatives = settings["sliding_step"] or self._max_len, settings["n_eval_negatives"]
        self._item_ids = range(format.FIRST_ITEM_ID, format.FIRST_ITEM_ID + metadata["items"])
        kind = np.int32 if metadata["rows"] < 2**31 else np.int64
        self._train_counts, self._target_counts = (np.zeros(metadata["items"], kind) for _ in range(2))
        self._counts: Counter[str] = Counter()
        self._repeated, self._left_out = Counter(validation=0, test=0), Counter(validation=0, test=0)

    def check_splits(self) -> None:
        """Raise `DataError` for the first row of a split, of the users or of the oracle that is wrong."""
        folder, metadata, n_users = self._folder, self._metadata, self._metadata["users"]
        ids, stops = range(n_users), [*range(USERS_AT_ONCE, n_users, USERS_AT_ONCE), n_users]
        sources = []
        for name in format.SPLITS:
            types = format.columns(name, has_times=metadata["has_times"], has_ratings=metadata["has_ratings"])
            batches = _split_batches(folder / name, types)
            sources.append(_parts(folder / name, batches, types, ids, stops, may_repeat=name == "train"))
        sources.append(_table_parts(folder / format.USERS, ("user", "count"), ids, stops, n_users))
        if format.ORACLE in metadata["files"]:
            sources.append(_table_parts(folder / format.ORACLE, ("user",), ids, stops, metadata["test_users"]))
        with ProgressBar(n_users, form=NO_BAR) as bar:
            for stop, train, validation, test, users, *oracle in zip(stops, *sources, strict=False):
                for part in oracle:
                    part.refuse(~np.isin(part.ids, test.ids), "must be a user of test")
                    test.refuse(~np.isin(test.ids, part.ids), f"has no row in {format.ORACLE}")
                self._check_users(train, validation, test, users)
                if bar.is_due():
                    bar.show(stop, f"checked {stop:,} of {n_users:,} users ({stop / n_users:.0%})")

    def _check_users(self, train: _Part, validation: _Part, test: _Part, users: _Part) -> None:
        """Raise `DataError` for the first wrong row of the next `users` and of their rows of the splits."""
        first, counts, evaluated = int(users.ids[0]), users.values["count"], (validation, test)
        users.refuse(counts < (not self._metadata["extends"]), "must be at least 1", column="count")
        for part in (train, *evaluated):
            self._check_values(part)
        lengths, history = self._check_windows(train, first, len(counts))
        self._check_evaluated(validation, lengths, history, first, None)
        self._check_evaluated(test, lengths, history, first, validation)

        is_validated, is_tested = (np.isin(users.ids, part.ids) for part in evaluated)
        is_eligible, has_more = counts >= format.MIN_EVALUATED, np.zeros(len(counts), bool)
        stored = lengths + is_validated + is_tested
        if self._split == "time":
            # No split holds what a user does after the target of the test, or one who begins after its instant.
            is_eligible, has_more = lengths + is_validated >= 2, is_tested | (stored == 0)
        elif self._split == "leave_one_out":
            users.refuse(is_eligible & ~is_tested, "test has no row of this user", column="count")
        for part in evaluated:
            here = part.ids - first
            is_refused = (self._split == "none") | (~is_eligible[here] & (self._split != "time"))
            part.refuse(is_refused, "count is {}, no evaluation with split = {}", counts[here], self._split)
        wrong = np.where(has_more, stored > counts, stored != counts)
        users.refuse(wrong, "the splits hold {} interactions", stored, column="count")
        self._check_negatives(evaluated, lengths, history["items"], counts - stored, first)

        _count(self._train_counts, history["items"])
        self._counts.update(rows=int(counts.sum()), train_windows=len(train.ids), train_positions=int(lengths.sum()))
        self._counts.update(validation_users=len(validation.ids), test_users=len(test.ids))
        self._counts.update(eligible=int(is_eligible.sum()))
        for name, part in zip(("validation", "test"), evaluated, strict=True):
            _count(self._target_counts, part.values["target"])
            rows = np.repeat(np.arange(len(part.ids)), part.lengths["items"])
            self._repeated[name] += len(np.unique(rows[part.values["items"] == part.values["target"][rows]]))
            self._left_out[name] += int((part.lengths["popular_negatives"] == 0).sum())

    def _check_values(self, part: _Part) -> None:
        """Raise `DataError` for lists of unequal length, ids of no item, and numbers out of range."""
        n_items, low, high = part.lengths["items"], self._item_ids[0], self._item_ids[-1]
        for name, values in part.values.items():
            if name in format.LISTS:
                lengths = part.lengths[name]
                part.refuse(lengths != n_items, "{} has {} elements, not {}", name, lengths, n_items)
            if name in ("items", "target", *format.NEGATIVES):
                part.refuse((values < low) | (values > high), f"items have ids from {low} to {high}", column=name)
            if name == "ratings":
                part.refuse(~np.isfinite(values), "must be finite", column=name)
            if name == "times" and self._split == "time":
                instant = self._metadata["split_instant"]
                part.refuse(values >= instant, "must be before {}", instant, column=name)

    def _check_windows(self, train: _Part, first: int, n_users: int) -> tuple[Ints, dict[str, Array]]:
        """Return the length of each training history [n_users], and its lists end to end.

        Raises `DataError` for a window that is not where it must be, or differs from the one that it overlaps.
        """
        users, n_items, step = train.ids - first, train.lengths["items"], self._step
        n_windows = np.bincount(users, minlength=n_users)
        number = np.arange(len(users)) - (np.cumsum(n_windows) - n_windows)[users]  # of a window among its user's
        head = np.zeros(n_users, np.int64)  # items of each user's first window
        head[users[number == 0]] = n_items[number == 0]
        lengths, ends = head + np.maximum(n_windows - 1, 0) * step, head[users] + number * step
        is_needless = (n_windows[users] > 1) & (head[users] + step <= self._max_len)
        wrong = (n_items < 1) | is_needless | (n_items != np.minimum(ends, self._max_len))
        sizes = f"max_len is {self._max_len} and sliding_step {step}"
        train.refuse(wrong, "window {} has {} items; {}", number, n_items, sizes)
        starts = np.cumsum(lengths) - lengths
        at = _positions(starts[users] + ends - n_items, n_items)  # in the histories, of each element
        history = {}
        for name, values in train.values.items():
            if name in format.LISTS:
                history[name] = whole = np.empty(lengths.sum(), values.dtype)
                whole[at[::-1]] = values[::-1]  # the last one first: an earlier window wins
                train.refuse(whole[at] != values, "the window before has {}", whole[at], column=name)
        if "times" in history:
            is_earlier = np.diff(history["times"], prepend=history["times"][:1]) < 0
            is_earlier[starts[lengths > 0]] = False
            train.refuse(is_earlier[at], "earlier than the one before it", column="times")
        return lengths, history

    def _check_evaluated(
        self, part: _Part, lengths: Ints, history: Mapping[str, Array], first: int, before: _Part | None
    ) -> None:
        """Raise `DataError` for a row that is not the training history, then the target of the part `before`."""
        users, n_items = part.ids - first, part.lengths["items"]
        trained, starts = lengths[users], (np.cumsum(lengths) - lengths)[users]
        is_validated = np.zeros(len(users), bool) if before is None else np.isin(part.ids, before.ids)
        part.refuse(trained == 0, "this user has no training window")
        wrong = n_items != trained + is_validated
        part.refuse(wrong, "has {} items before the target, train {} positions of this user", n_items, trained)
        last = np.cumsum(n_items) - 1
        is_trained = np.ones(len(part.values["items"]), bool)
        is_trained[last[is_validated]] = False
        for name, whole in history.items():
            expected = part.values[name].copy()
            expected[is_trained] = whole[_positions(starts, trained)]
            target = {"items": "target", "times": "target_time"}.get(name)
            if before is not None and target:
                expected[~is_trained] = before.values[target][np.isin(before.ids, part.ids)]
            part.refuse(part.values[name] != expected, "train and validation say {}", expected, column=name)
        if "target_time" in part.values:
            times, last_times = part.values["target_time"], part.values["times"][last]
            part.refuse(times < last_times, "earlier than the last of times, {}", last_times, column="target_time")
            if self._split == "time":
                wrong = (times < self._metadata["split_instant"]) == (before is not None)
                part.refuse(wrong, "on the wrong side of split_instant", column="target_time")

    def _check_negatives(
        self, evaluated: Iterable[_Part], lengths: Ints, items: Array, n_hidden: Ints, first: int
    ) -> None:
        """Raise `DataError` for negatives that are missing, twice there or taken by their user.

        `n_hidden` [N]: interactions of each user that are in no split; each may be another item that was taken.
        """
        n, size = self._n_negatives, self._item_ids.stop
        targets = [(part.ids - first) * size + part.values["target"] for part in evaluated]
        taken = np.unique(np.concatenate([np.repeat(np.arange(len(lengths)), lengths) * size + items, *targets]))
        n_unseen = self._metadata["items"] - np.bincount(taken // size, minlength=len(lengths)) - n_hidden
        has_negatives: Ints | None = None  # of each user in validation; -1: no row there
        for part in evaluated:
            users = part.ids - first
            is_drawn = np.any([part.lengths[name] > 0 for name in format.NEGATIVES], axis=0)
            for name in format.NEGATIVES:
                found = part.lengths[name]
                part.refuse(found != is_drawn * n, "{} has {} elements, not {}", name, found, is_drawn * n)
                keys = np.repeat(users, found) * size + part.values[name]
                is_taken = taken[np.minimum(np.searchsorted(taken, keys), len(taken) - 1)] == keys
                part.refuse(is_taken, "which this user has taken", column=name)
                ordered = np.sort(keys.reshape(-1, n), axis=1)
                is_repeated = np.zeros(len(users), bool)
                is_repeated[is_drawn] = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
                part.refuse(is_repeated, "{} has an item twice", name)
            unseen = n_unseen[users]
            part.refuse(~is_drawn & (unseen >= n), "has no negatives, though {} items are unseen", unseen)
            if has_negatives is None:
                has_negatives = np.full(len(lengths), -1)
                has_negatives[users] = is_drawn
            else:
                wrong = (has_negatives[users] >= 0) & (has_negatives[users] != is_drawn)
                part.refuse(wrong, "has negatives in one of validation and test only")

    def check_items(self) -> None:
        """Raise `DataError` for the first row of `items.parquet` with other counts than the splits have."""
        ids, total, path = self._item_ids, 0, self._folder / format.ITEMS
        stops = [*range(ids.start + ROWS_AT_ONCE, ids.stop, ROWS_AT_ONCE), ids.stop]
        least = not self._metadata["extends"] and self._metadata["source"] != "random"
        for part in _table_parts(path, ("item", "count", "train_count"), ids, stops, len(ids)):
            here, counts = part.ids - format.FIRST_ITEM_ID, part.values["count"]
            trained = self._train_counts[here].astype(np.int64)
            stored = trained + self._target_counts[here]
            part.refuse(part.values["train_count"] != trained, "train has {}", trained, column="train_count")
            # No split holds what comes after the target of a test by time.
            wrong = (counts < least) | (counts < stored if self._split == "time" else counts != stored)
            part.refuse(wrong, "the splits hold {}", stored, column="count")
            total += int(counts.sum())
        if total != (rows := self._metadata["rows"]):
            raise DataError(f"{path}: count is {total} in all, metadata.json says rows = {rows}; {REMAKE}")

    def check_counts(self) -> None:
        """Raise `DataError` where `metadata.json` has another count than was found."""
        wanted, counts = self._metadata["preprocessing"]["validation_users"], self._counts
        eligible = counts["eligible"] if self._split != "none" else 0
        expected = eligible if wanted == "all" else min(eligible, wanted)
        if (n := counts["validation_users"]) != expected:
            place = self._folder / "validation"
            raise DataError(f"{place}: has {n} users, preprocessing.validation_users makes {expected}; {REMAKE}")
        found: dict[str, Any] = {name: counts[name] for name in COUNTS}
        for name, users in (("repeated_targets", self._repeated), ("left_out", self._left_out)):
            found[name] = {split: {"users": users[split], "of": counts[f"{split}_users"]} for split in users}
        for name, value in found.items():
            if (said := self._metadata.get(name)) != value:
                raise DataError(f"{self._folder / format.METADATA}: {name} = {said}, found {value}; {REMAKE}")


def _count(counts: Array, items: Array) -> None:
    # With an index or a number of another type this is 30 times slower.
    np.add.at(counts, items.astype(np.intp) - format.FIRST_ITEM_ID, counts.dtype.type(1))


def _positions(starts: Ints, lengths: Ints) -> Ints:
    """Return the positions `start` … `start + length - 1` of each list, end to end."""
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what Arrow finds wrong with the file at `path` into a `DataError` of one line."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read ({in_one_line(error)}); {REMAKE}") from None


def _split_batches(folder: Path, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a split one by one: a mapped file would count as memory of the process."""
    state = folder / format.STATE
    try:
        names = [str(entry["filename"]) for entry in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{state}: does not list the files of the split ({error!r}); {REMAKE}") from None
    if sorted(names) != (found := sorted(file.name for file in folder.glob("*.arrow"))):
        raise DataError(f"{state}: lists the files {names}, the folder holds {found}; {REMAKE}")
    for path in (folder / name for name in names):
        with _readable(path), pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            fields = [(field.name, field.type) for field in stream.schema]
            if sorted(fields, key=str) != sorted(types.items(), key=str):
                shown, expected = (", ".join(f"{name} {kind}" for name, kind in of) for of in (fields, types.items()))
                raise DataError(f"{path}: has the columns {shown}; must be {expected}; {REMAKE}")
            for batch in stream:
                batch.validate(full=True)  # offsets that point outside would be followed
                yield batch.select([*types])


def _table_parts(path: Path, names: Sequence[str], ids: range, stops: Iterable[int], n_rows: int) -> Iterator[_Part]:
    types = dict.fromkeys(names, pa.int64())
    return _parts(path, _table_batches(path, names, n_rows), types, ids, stops)


def _table_batches(path: Path, names: Sequence[str], n_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a Parquet table; all but the original ids as int64."""
    with _readable(path), pq.ParquetFile(path) as file:
        if (found := file.metadata.num_rows) != n_rows:
            raise DataError(f"{path}: has {found} rows, metadata.json says {n_rows}; {REMAKE}")
        for name in names:
            kinds = [field.type for field in file.schema_arrow if field.name == name]
            if len(kinds) != 1 or not (name == "original" or pa.types.is_integer(kinds[0])):
                raise DataError(f"{path}: must have a column {name}, of integers if not original; {REMAKE}")
        first = 0
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=[*names]):
            _check_nulls(path, first, batch)
            arrays = [batch[name] if name == "original" else batch[name].cast(pa.int64()) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, [*names])
            first += len(batch)


def _check_nulls(place: Path, first: int, batch: pa.RecordBatch) -> None:
    for name in batch.schema.names:
        column = batch[name]
        if column.null_count or (pa.types.is_list(column.type) and column.flatten().null_count):
            values = column.to_pylist()
            row = next(i for i, value in enumerate(values) if value is None or (type(value) is list and None in value))
            raise DataError(f"{place}: row {first + row}: {name} is null; {REMAKE}")


def _parts(
    place: Path, batches: Iterable[pa.RecordBatch], types: Mapping[str, pa.DataType], ids: range,
    stops: Iterable[int], *, may_repeat: bool = False,
) -> Iterator[_Part]:  # fmt: skip
    """Yield for each of `stops`, which ascend, the next rows with ids below it.

    Raises `DataError` for a null, and for an id, in the first column, outside `ids` or out of order.
    """
    id_name, waiting, first = next(iter(types)), pa.RecordBatch.from_pylist([], pa.schema([*types.items()])), 0
    ordered = _ordered(place, batches, ids, may_repeat=may_repeat)
    for stop in stops:
        taken = []
        while True:
            cut = int(np.searchsorted(waiting.column(0).to_numpy(), stop))
            taken.append(waiting.slice(0, cut))
            waiting = waiting.slice(cut)
            if len(waiting) or (batch := next(ordered, None)) is None:
                break
            waiting = batch
        columns = {name: pa.concat_arrays([batch[name] for batch in taken]) for name in types}
        lists = {name: column for name, column in columns.items() if pa.types.is_list(column.type)}
        values = {name: column.flatten() if name in lists else column for name, column in columns.items()}
        numbers = {name: column.to_numpy() for name, column in values.items()}
        lengths = {name: pc.list_value_length(column).to_numpy().astype(np.int64) for name, column in lists.items()}
        ids_now = numbers[id_name].astype(np.int64)
        yield _Part(place, first, id_name, ids_now, numbers, lengths)
        first += len(ids_now)


def _ordered(
    place: Path, batches: Iterable[pa.RecordBatch], ids: range, *, may_repeat: bool
) -> Iterator[pa.RecordBatch]:
    first, last = 0, ids.start - 1
    for batch in filter(len, batches):
        _check_nulls(place, first, batch)
        found = batch.column(0).to_numpy().astype(np.int64)
        steps = np.diff(found, prepend=last)
        part = _Part(place, first, batch.schema.names[0], found, {}, {})
        part.refuse((found < ids.start) | (found >= ids.stop), f"ids are from {ids[0]} to {ids[-1]}")
        part.refuse(steps < (0 if may_repeat else 1), "out of order after {}", found - steps)
        first, last = first + len(batch), int(found[-1])
        yield batch


def _check_originals(path: Path, n_rows: int) -> None:
    """Raise `DataError` where two rows of the table at `path` have the same `original` id, or one has none."""

    def hashes() -> Iterator[tuple[int, list[Any], Ints]]:
        first = 0
        for batch in _table_batches(path, ["original"], n_rows):
            originals = batch["original"].to_pylist()
            yield first, originals, np.fromiter(map(hash, originals), np.int64, len(originals))
            first += len(originals)

    n_passes = 1 + n_rows // KEYS_AT_ONCE
    for number in range(n_passes):
        keys = np.sort(np.concatenate([found[found % n_passes == number] for _, _, found in hashes()]))
        repeated = np.unique(keys[1:][keys[1:] == keys[:-1]])
        rows: dict[Any, int] = {}  # different ids may have the same hash
        for first, originals, found in hashes() if len(repeated) else ():
            for row in np.flatnonzero(np.isin(found, repeated)).tolist():
                if (other := rows.setdefault(originals[row], first + row)) != first + row:
                    what = f"original {originals[row]!r} is that of row {other} too"
                    raise DataError(f"{path}: row {first + row}: {what}; {REMAKE}")
