"""Check that a dataset folder is complete and leaks no targets, without the code that writes, reads or trains."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert4rec.config.recognition import what_is
from bert4rec.dataset import format
from bert4rec.dataset.check_ids import REMAKE, check_ids, parquet_files
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.dataset.item_features import ARRAYS, FEATURES_FOLDER
from bert4rec.dataset.segments import Segments
from bert4rec.runtime.arrays import Array, Int64s
from bert4rec.runtime.console import NO_BAR, ProgressBar
from bert4rec.runtime.errors import DataError, in_one_line

CHECKED_USERS_AT_ONCE = 1 << 12  # many more would not fit into the CPU cache
TABLE_ROWS_AT_ONCE = 1 << 16  # of a Parquet table
MOST_ROUNDING = 1e-3  # of the length of the weights of an item, and of its vectors

COUNTS = ("rows", "train_positions", "validation_users", "test_users")
NON_NEGATIVE, POSITIVE = range(2**63), range(1, format.MOST_IDS + 1)

Types: TypeAlias = Mapping[str, pa.DataType]


def check_dataset(folder: Path) -> dict[str, Any]:
    """Return `metadata.json` of `folder` after comparing every byte, row and count with it.

    Raises `DataError` for the first file, row or count that is wrong.
    """
    metadata = _read_metadata(folder)
    _check_files(folder, metadata["files"])
    content = _Content(folder, metadata)
    content.check_users()
    content.check_items()
    content.check_counts()
    for name in (format.USERS, format.ITEMS):
        check_ids(folder / name, Segments.of(metadata, name), n_forgotten=format.n_forgotten(metadata, name))
    if "item_features" in metadata:
        _check_features(folder / FEATURES_FOLDER, metadata["item_features"], metadata["items"])
    return metadata


def _check_features(folder: Path, about: Mapping[str, Mapping[str, Any]], n_items: int) -> None:
    """Raise `DataError` unless every item has unit vectors, and values of each feature with weights of length 1."""
    offsets, values, weights, vectors = (np.load(folder / f"{name}.npy") for name in ARRAYS)
    lengths = np.diff(offsets)
    if len(lengths) != n_items or offsets[0] != 0 or (lengths < 0).any() or offsets[-1] != len(values):
        raise DataError(f"{folder}: does not have the features of {n_items:,} items; {REMAKE}")
    items = np.repeat(np.arange(n_items), lengths)
    for name, feature in about.items():
        if feature["kind"] == "vector":
            continue
        is_own = (values >= feature["first"]) & (values < feature["first"] + feature["n_values"])
        norms = np.sqrt(np.bincount(items[is_own], np.square(weights[is_own]), minlength=n_items))
        if (wrong := np.flatnonzero(np.abs(norms - 1) > MOST_ROUNDING)).size:
            raise DataError(
                f"{folder}: item {wrong[0]}: the weights of {name} have length {norms[wrong[0]]:g}; {REMAKE}"
            )
    widths = [feature["width"] for feature in about.values() if feature["kind"] == "vector"]
    for part in np.split(vectors, np.cumsum(widths)[:-1], axis=1) if widths else ():
        norms = np.linalg.norm(part, axis=1)
        if (wrong := np.flatnonzero((norms > 0) & (np.abs(norms - 1) > MOST_ROUNDING))).size:
            raise DataError(f"{folder}: item {wrong[0]}: its vector has the length {norms[wrong[0]]:g}; {REMAKE}")


def _read_metadata(folder: Path) -> dict[str, Any]:
    path = folder / format.METADATA
    try:
        metadata: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder}: expected a dataset; {what_is(folder)}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REMAKE}") from None
    _check_keys(path, metadata, format_version=(format.DATASET_FORMAT,), source=str, fingerprint=str)
    _check_keys(path, metadata, users=POSITIVE, items=POSITIVE, **dict.fromkeys(COUNTS, NON_NEGATIVE))
    _check_keys(path, metadata, has_times=bool, has_ratings=bool, extends=bool, preprocessing=dict, files=dict)
    _check_segments(path, metadata)
    settings, files = metadata["preprocessing"], metadata["files"]
    _check_keys(
        path, settings, split=("leave_one_out", "leave_last_basket", "time", "none"), n_eval_negatives=NON_NEGATIVE
    )
    for name in ("validation_users", *({"test_users"} & settings.keys())):
        if settings.get(name) != "all":
            _check_keys(path, settings, **{name: NON_NEGATIVE})
    if settings["split"] == "time":
        _check_keys(path, metadata, split_instant=int, has_times=(True,))
    for name, entry in files.items():
        _check_keys(f"{path}: files: {name}", entry, bytes=NON_NEGATIVE, sha256=str)
    if hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() != metadata["fingerprint"]:
        raise DataError(f"{path}: the fingerprint does not match the files; {REMAKE}")
    return metadata


def _check_keys(place: Path | str, table: Any, **kinds: type | range | tuple[Any, ...]) -> None:
    """Raise `DataError` for the first key whose value does not have the given type, or is not in the range or tuple."""
    for name, kind in kinds.items():
        value = table.get(name) if isinstance(table, dict) else None
        if isinstance(kind, type):
            is_valid, expected = type(value) is kind, f"of type {kind.__name__}"
        else:
            is_valid = type(value) is type(kind[0]) and value in kind
            is_range = isinstance(kind, range)
            expected = f"an integer from {kind[0]} to {kind[-1]}" if is_range else " or ".join(map(json.dumps, kind))
        if not is_valid:
            raise DataError(f"{place}: {name} = {json.dumps(value)[:40]}: must be {expected}; {REMAKE}")


def _check_segments(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise `DataError` unless the segments of users and items are positive numbers of rows, those of all."""
    segments: Any = metadata.get("segments")
    try:
        sizes = {format.USERS: segments[format.USERS], format.ITEMS: [n for n, _ in segments[format.ITEMS]]}
        seeds = [seed for _, seed in segments[format.ITEMS]]
        is_valid = all(type(n) is int and n > 0 for n in chain.from_iterable(sizes.values()))
        is_valid &= all(type(seed) is int and seed >= 0 for seed in seeds)
        is_valid = is_valid and all(sum(counts) == metadata[name] for name, counts in sizes.items())
    except (LookupError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise DataError(f"{path}: segments = {json.dumps(segments)[:40]}: must list all users and items; {REMAKE}")


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `DataError` for the first file that is missing, not listed, or changed."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    for name in sorted({*files, *format.NEEDED} - present):
        raise DataError(f"{folder / name}: is missing; {REMAKE}")
    for name in sorted(present - {*files, format.METADATA}):
        raise DataError(f"{folder / name}: is not listed in metadata.json; move it out of the folder")
    for name, entry in files.items():
        if (size := (folder / name).stat().st_size) != entry["bytes"]:
            raise DataError(f"{folder / name}: has {size} bytes, metadata.json says {entry['bytes']}; {REMAKE}")
    done, total = 0, sum(entry["bytes"] for entry in files.values())
    with ProgressBar(total, form=NO_BAR) as bar:
        for name, entry in files.items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                    raise DataError(f"{folder / name}: its checksum does not match metadata.json; {REMAKE}")
            done += entry["bytes"]
            if bar.is_due():
                bar.show(done, f"read {done:,} of {total:,} bytes for the checksums ({done / total:.0%})")


class _Rows:
    """Reads a folder or a table in order, and holds the rows of the last read.

    `ids` [B]: the first column. `values`: column → its numbers [B], or all elements of a column of lists, concatenated.
    `lengths`: column of lists → number of elements of each row [B].
    """

    def __init__(self, place: Path, types: Types) -> None:
        self._place, self._batches, self._id_name = place, _batches(place, types), next(iter(types))
        self._waiting, self._first = pa.schema([*types.items()]).empty_table(), 0
        self.ids: Int64s = np.zeros(0, np.int64)
        self.values: dict[str, Array] = {}
        self.lengths: dict[str, Int64s] = {}

    def read(self, ids: Int64s, which: str, *, is_last: bool) -> None:
        """Read the next rows; raise `DataError` unless there is one for each of `ids` and, if `is_last`, no more."""
        self._first += len(self.ids)
        while len(self._waiting) <= len(ids) and (batch := next(self._batches, None)) is not None:
            self._waiting = pa.concat_tables([self._waiting, pa.Table.from_batches([batch])])
        rows, self._waiting = self._waiting.slice(0, len(ids)), self._waiting.slice(len(ids))
        columns = {name: format.one_array(rows[name]) for name in rows.column_names}
        lists = {name: column for name, column in columns.items() if pa.types.is_list(column.type)}
        self.lengths = {name: pc.list_value_length(column).to_numpy() for name, column in lists.items()}
        numbers = columns | {name: column.flatten() for name, column in lists.items()}
        self.values = {name: column.to_numpy() for name, column in numbers.items()}
        self.ids = self.values[self._id_name].astype(np.int64)
        self.refuse(self.ids != ids[: len(self.ids)], f"must be {self._id_name} {{}}, the next {which}", ids)
        is_missing = len(self.ids) < len(ids)
        if is_missing or (is_last and len(self._waiting)):
            expected = f"{self._id_name} {ids[len(self.ids)]}, the next" if is_missing else "the end, after the last"
            raise DataError(f"{self._place}: row {self._first + len(self.ids)}: must be {expected} {which}; {REMAKE}")

    def rows(self, column: str) -> Int64s:
        """Return for each element of a column of lists the index of its row."""
        return np.repeat(np.arange(len(self.ids)), self.lengths[column])

    def refuse(self, wrong: Array, problem: str, *values: Any, column: str = "") -> None:
        """Raise `DataError` for the first `wrong` row, or element of `column`; its `values` replace each {}."""
        if not wrong.any():
            return
        row = index = int(wrong.argmax())
        shown = f"{column} is {self.values[column][index]}, " if column else ""
        if column in self.lengths:
            row = int(self.rows(column)[index])
            shown = f"{column}[{index - self.lengths[column][:row].sum()}] is {self.values[column][index]}, "
        text = problem.format(*(value[index] for value in values))
        raise DataError(
            f"{self._place}: row {self._first + row} ({self._id_name} {self.ids[row]}): {shown}{text}; {REMAKE}"
        )


class _Content:
    """Checks the folders and tables of a dataset, a few thousand users at a time, and counts their content."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        self._folder, self._metadata, self._split = folder, metadata, metadata["preprocessing"]["split"]
        self._item_ids = range(metadata["items"])
        kind = np.int32 if metadata["rows"] < 2**31 else np.int64
        self._item_counts = {name: np.zeros(metadata["items"], kind) for name in ("train_count", "count")}
        self._counts: Counter[Any] = Counter()
        self._kinds = format.kinds_of(metadata)
        self._targets = format.target_kinds(folder, metadata)
        self._n_tested = metadata["preprocessing"].get("test_users", "all")
        self._hidden = HiddenEvents.of(metadata["preprocessing"], self._kinds)
        self._event_counts = np.zeros(len(self._kinds), np.int64)

    def check_users(self) -> None:
        """Raise `DataError` for the first wrong row of a user, in the folders and in the tables of users."""
        folder, metadata, n_users = self._folder, self._metadata, self._metadata["users"]
        has = {f"has_{name}": metadata[f"has_{name}"] for name in (format.TIMES, format.RATINGS)}
        columns = format.history_columns(
            **has, has_events=bool(self._kinds), has_ties=metadata.get("has_ties", False) is True
        )
        users = _Rows(folder / format.USERS, dict.fromkeys(("user", "count"), pa.int64()))
        histories = _Rows(folder / format.HISTORIES, columns)
        negatives = _Rows(folder / format.NEGATIVE_ITEMS, format.negative_columns())
        oracle = _Rows(folder / format.ORACLE, {"user": pa.int64()}) if format.ORACLE in metadata["files"] else None
        with ProgressBar(n_users, form=NO_BAR) as bar:
            for first in range(0, n_users, CHECKED_USERS_AT_ONCE):
                stop = min(first + CHECKED_USERS_AT_ONCE, n_users)
                is_last = stop == n_users
                users.read(np.arange(first, stop), "by metadata.json", is_last=is_last)
                counts = users.values["count"]
                users.refuse(counts < (not metadata["extends"]), "must be at least 1", column="count")
                histories.read(users.ids[counts > 0], "with interactions", is_last=is_last)
                self._check_lists(histories, counts[counts > 0])
                self._check_offsets(histories)
                is_validated, is_tested = (histories.values[split] >= 0 for split in format.EVALUATED)
                negatives.read(histories.ids[is_validated | is_tested], "with a target", is_last=is_last)
                if oracle:
                    oracle.read(histories.ids[is_tested], "with a test target", is_last=is_last)
                self._count(histories, self._check_negatives(negatives, histories))
                if bar.is_due():
                    bar.show(stop, f"checked {stop:,} of {n_users:,} users ({stop / n_users:.0%})")

    def _check_lists(self, part: _Rows, counts: Int64s) -> None:
        """Raise `DataError` for lists of another length, and for invalid item ids, times, ratings or events."""
        for name, lengths in part.lengths.items():
            part.refuse(lengths != counts, f"{name} has {{}} elements, {format.USERS} counts {{}}", lengths, counts)
        self._check_item_ids(part, "items")
        if format.TIMES in part.values:
            times = part.values["times"]
            is_earlier = np.append(False, times[1:] < times[:-1])[: len(times)]
            is_earlier[np.cumsum(counts) - counts] = False
            part.refuse(is_earlier, "earlier than the one before it", column="times")
        if format.RATINGS in part.values:
            part.refuse(~np.isfinite(part.values["ratings"]), "must be finite", column="ratings")
        if self._kinds:
            values, n_kinds = part.values[format.EVENTS], len(self._kinds)
            problem = f"kinds of events have numbers from 0 to {n_kinds - 1}"
            part.refuse((values < 0) | (values >= n_kinds), problem, column=format.EVENTS)
            self._event_counts += np.bincount(values, minlength=n_kinds)

    def _check_item_ids(self, part: _Rows, column: str) -> None:
        values, low, high = part.values[column], self._item_ids[0], self._item_ids[-1]
        part.refuse((values < low) | (values > high), f"items have ids from {low} to {high}", column=column)

    def _check_offsets(self, part: _Rows) -> None:
        """Raise `DataError` if a target, or the end of the training part, has another position than by the split."""
        n_items, is_validated = part.lengths["items"], part.values["validation"] != format.NO_TARGET
        n_before = n_items
        if self._split == "time":
            is_before = part.values["times"] < self._metadata["split_instant"]
            n_before = np.bincount(part.rows("times")[is_before], minlength=len(n_items))
        test, validation = self._places_of_targets(part, n_before)
        if self._split == "leave_last_basket":
            test, validation = self._places_of_baskets(part, test)
        test, validation = (np.where(self._n_input(part, at) > 0, at, format.NO_TARGET) for at in (test, validation))
        self._counts["eligible_test"] += int((test >= 0).sum())
        if self._n_tested != "all":
            test = np.where(part.values["test"] == format.NO_TARGET, format.NO_TARGET, test)
        if self._split in ("leave_one_out", "leave_last_basket"):
            validation = np.where(test >= 0, validation, format.NO_TARGET)
            n_before = np.where(test >= 0, test, n_items)
        is_eligible = validation >= 0
        places = {
            "test": test,
            "validation": np.where(is_validated, validation, format.NO_TARGET),
            "n_train": np.where(is_validated & is_eligible, validation, n_before),
        }
        for name, expected in places.items():
            problem = f"must be {{}} with {{}} items and split = {self._split}"
            part.refuse(part.values[name] != expected, problem, expected, n_items, column=name)
        self._counts["eligible"] += int(is_eligible.sum())

    def _n_input(self, part: _Rows, places: Int64s) -> Int64s:
        """Return how many interactions of each history are input when that at `places` is predicted; 0 for none."""
        if self._hidden is None:
            return np.maximum(places, 0)
        lengths = part.lengths["items"]
        n_visible = self._hidden.n_visible(part.values[format.TIMES], part.values[format.EVENTS], lengths)
        return np.where(places >= 0, n_visible[np.cumsum(lengths) - lengths + np.maximum(places, 0)], 0)

    def _places_of_targets(self, part: _Rows, n_before: Int64s) -> tuple[Int64s, Int64s]:
        """Return the place of the test target of each history, and of what may be its validation target, or -1.

        `n_before` interactions come before the instant of a split by time.
        """
        n_items, rows = part.lengths["items"], part.rows("items")
        starts = np.cumsum(n_items) - n_items
        targets = np.arange(len(rows))
        if self._targets:
            targets = np.flatnonzero(np.isin(part.values[format.EVENTS], self._targets))
        rows, places = rows[targets], (targets - starts[rows[targets]]).astype(np.int64)
        counts = np.bincount(rows, minlength=len(n_items))
        is_by_time = self._split == "time"
        numbers = np.bincount(rows[places < n_before[rows]], minlength=len(n_items)) if is_by_time else counts - 1

        def place(numbers: Int64s, least: int) -> Int64s:
            is_there = (numbers >= 0) & (numbers < counts) & (self._split != "none")
            found = np.full(len(n_items), format.NO_TARGET, np.int64)
            found[is_there] = places[(np.cumsum(counts) - counts + numbers)[is_there]]
            return np.where(found >= least, found, format.NO_TARGET)

        test = place(numbers, 1 if is_by_time else format.MIN_EVALUATED - 1)
        test = np.where(n_before > 0, test, format.NO_TARGET)
        validation = place(numbers - 1, 1)
        return test, validation

    def _places_of_baskets(self, part: _Rows, last: Int64s) -> tuple[Int64s, Int64s]:
        """Return the place of the test basket of each history, and of what may be its validation basket, or -1.

        `last` is the place of the last target. With fractions of a second, `times` hold several baskets: a stored place
        is then right if it is among the rows of that time.
        """
        n_items, rows = part.lengths["items"], part.rows("items")
        starts = np.cumsum(n_items) - n_items
        times, index = part.values[format.TIMES], np.arange(len(rows))
        is_first = np.append(True, (np.diff(times) != 0) | (np.diff(rows) != 0))[: len(rows)]
        first = np.maximum.accumulate(np.where(is_first, index, 0)) - starts[rows]
        is_target = np.isin(part.values[format.EVENTS], self._targets) if self._targets else np.ones(len(rows), bool)
        has_fractions = self._metadata.get("has_ties", False)
        found = []
        for name, least in (("test", format.MIN_EVALUATED - 1), ("validation", format.MIN_EVALUATED - 2)):
            place = np.where(last >= 0, first[np.maximum(starts + last, 0)], format.NO_TARGET)
            stored = part.values[name].astype(np.int64)
            if has_fractions:
                place = np.where((stored >= place) & (stored <= last), stored, place)
            found.append(np.where(place >= least, place, format.NO_TARGET))
            is_before = is_target & (index - starts[rows] < found[-1][rows])
            last = np.full(len(n_items), format.NO_TARGET, np.int64)
            np.maximum.at(last, rows[is_before], (index - starts[rows])[is_before])
            is_held_out = stored != format.NO_TARGET
            is_wrong = is_held_out & ~is_target[np.minimum(starts + np.maximum(stored, 0), len(rows) - 1)]
            part.refuse(is_wrong, "is not the place of a target event", column=name)
        return found[0], found[1]

    def _check_negatives(self, part: _Rows, histories: _Rows) -> Array:
        """Return which of `histories` leave enough unseen items for negatives.

        Raises `DataError` for negatives that are missing, repeated, or items of the user's history.
        """
        n, size = self._metadata["preprocessing"]["n_eval_negatives"], self._item_ids.stop
        taken = np.sort(histories.rows("items") * size + histories.values["items"])  # np.unique is 70 times slower
        is_new = np.diff(taken, prepend=-1) > 0
        n_unseen = self._metadata.get("negative_items", size) - np.bincount(
            taken[is_new] // size, minlength=len(histories.ids)
        )
        users = np.searchsorted(histories.ids, part.ids)
        n_drawn = np.where(n_unseen >= n, n, 0)[users]
        for name in format.NEGATIVES:
            self._check_item_ids(part, name)
            problem = f"{name} has {{}} elements, must have {{}} as {{}} items are unseen"
            part.refuse(part.lengths[name] != n_drawn, problem, part.lengths[name], n_drawn, n_unseen[users])
            keys = users[part.rows(name)] * size + part.values[name]
            is_taken = taken[np.minimum(np.searchsorted(taken, keys), len(taken) - 1)] == keys
            part.refuse(is_taken, "an item of this user's history", column=name)
            order, is_repeated = np.argsort(keys, kind="stable"), np.zeros(len(keys), bool)
            is_repeated[order[1:]] = np.diff(keys[order]) == 0
            part.refuse(is_repeated, "a repetition of an earlier item", column=name)
        return n_unseen >= n

    def _count(self, part: _Rows, has_negatives: Array) -> None:
        items, rows, n_train = part.values["items"], part.rows("items"), part.values["n_train"]
        starts = np.cumsum(part.lengths["items"]) - part.lengths["items"]
        places = np.arange(len(items)) - starts[rows]
        for name, counted_items in (("count", items), ("train_count", items[places < n_train[rows]])):
            counts = self._item_counts[name]
            # An index or a number of another dtype would make this 30 times slower.
            np.add.at(counts, counted_items.astype(np.intp), counts.dtype.type(1))
        self._counts.update(rows=len(items), train_positions=int(n_train.sum()))
        for split in format.EVALUATED:
            targets = part.values[split]
            is_repeat = (places < self._n_input(part, targets)[rows]) & (items == items[starts + targets][rows])
            self._counts["repeated_targets", split] += int(np.count_nonzero(np.bincount(rows[is_repeat])))
            self._counts["left_out", split] += int(((targets >= 0) & ~has_negatives).sum())
            self._counts[f"{split}_users"] += int((targets >= 0).sum())

    def check_items(self) -> None:
        """Raise `DataError` for the first row of the items whose number is wrong, or counts differ from the histories.

        Also raises it for other counts in the file that is memory-mapped.
        """
        table = _Rows(self._folder / format.ITEMS, dict.fromkeys(("item", *self._item_counts), pa.int64()))
        has_cold_items = self._metadata["source"] == "random" or "item_features" in self._metadata
        least = not self._metadata["extends"] and not has_cold_items
        segments, n_items = Segments.of(self._metadata, format.ITEMS), len(self._item_ids)
        for first in range(0, n_items, TABLE_ROWS_AT_ONCE):
            stop = min(first + TABLE_ROWS_AT_ONCE, n_items)
            ids = segments.numbers(np.arange(first, stop))
            table.read(ids, "by the seed", is_last=stop == n_items)
            for name, counts in self._item_counts.items():
                table.refuse(table.values[name] != counts[ids], "the histories have {}", counts[ids], column=name)
            table.refuse(table.values["count"] < least, "must be at least 1", column="count")
        np.save(expected := BytesIO(), self._item_counts["train_count"].astype(np.int32))
        if (path := self._folder / format.TRAIN_COUNTS).read_bytes() != expected.getvalue():
            raise DataError(f"{path}: differs from train_count in {format.ITEMS}; {REMAKE}")

    def check_counts(self) -> None:
        """Raise `DataError` if a count in `metadata.json` differs from that of the histories."""
        counts, n_validated = self._counts, self._metadata["preprocessing"]["validation_users"]
        for split, eligible, wanted in (
            ("validation", counts["eligible"], n_validated), ("test", counts["eligible_test"], self._n_tested)
        ):  # fmt: skip
            expected = eligible if wanted == "all" else min(eligible, wanted)
            if format.PREVIOUS in self._metadata:  # whose users stay what they were
                expected = min(eligible, counts[f"{split}_users"])
            if (n := counts[f"{split}_users"]) != expected:
                problem = f"{n} users have a {split} target, must be {expected} with {split}_users = {wanted}"
                raise DataError(f"{self._folder / format.HISTORIES}: {problem}; {REMAKE}")
        values: dict[str, Any] = {name: counts[name] for name in COUNTS}
        for name in ("repeated_targets", "left_out"):
            n_users = {split: counts[f"{split}_users"] for split in format.EVALUATED}
            values[name] = {split: {"users": counts[name, split], "of": n} for split, n in n_users.items()}
        if self._kinds:
            values[format.EVENTS] = dict(zip(self._kinds, self._event_counts.tolist(), strict=True))
        for name, value in values.items():
            if (stored := self._metadata.get(name)) != value:
                raise DataError(f"{self._folder / format.METADATA}: {name} = {stored}, must be {value}; {REMAKE}")


def _batches(place: Path, types: Types) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a folder with exactly the columns `types`, or those columns of a table in Parquet files.

    Raises `DataError` for a column of another type, except for other integer types in a table, and for a null.
    """
    n_read, is_table = 0, place.name in (format.USERS, format.ITEMS, format.ORACLE)
    for path, listed in [(path, []) for path in parquet_files(place)] if is_table else _arrow_files(place):
        found: list[list[int]] = []
        try:  # not memory-mapped: mapped pages would count as memory of the process
            with pa.OSFile(str(path)) as raw, pq.ParquetFile(raw) if is_table else pa.ipc.open_stream(raw) as file:
                _check_columns(path, file.schema_arrow if is_table else file.schema, types, is_table=is_table)
                for batch in file.iter_batches(TABLE_ROWS_AT_ONCE, columns=[*types]) if is_table else file:
                    batch.validate(full=True)  # else offsets outside the values would be followed
                    columns = {name: batch[name].cast(kind) for name, kind in types.items()}
                    for name, column in columns.items():
                        if column.null_count or (pa.types.is_list(column.type) and column.flatten().null_count):
                            values = (value if type(value) is list else [value] for value in column.to_pylist())
                            row = next(row for row, value in enumerate(values, n_read) if None in value)
                            raise DataError(f"{place}: row {row}: {name} is null; {REMAKE}")
                    n_read += len(batch)
                    found += [] if is_table else [[*batch["user"][:1].to_pylist(), len(batch)]]
                    yield pa.RecordBatch.from_pydict(columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: cannot be read ({in_one_line(error)}); {REMAKE}") from None
        if found != listed and not is_table:
            raise DataError(f"{place / format.STATE}: lists other batches of {path.name} than the file has; {REMAKE}")


def _check_columns(path: Path, schema: pa.Schema, types: Types, *, is_table: bool) -> None:
    kinds = [(field.name, field.type) for field in schema if field.name in types or not is_table]
    if is_table:  # all integer types are valid
        kinds = [(name, types[name] if pa.types.is_integer(kind) else kind) for name, kind in kinds]
    columns, expected = (sorted(f"{name} {kind}" for name, kind in fields) for fields in (kinds, types.items()))
    if columns != expected:
        raise DataError(f"{path}: has the columns {columns}; must be {expected}; {REMAKE}")


def _arrow_files(folder: Path) -> list[tuple[Path, list[list[int]]]]:
    """Return the files of a folder, and first user, if any, and number of rows of each of their record batches."""
    state = folder / format.STATE
    try:
        entries = json.loads(state.read_text(encoding="utf-8"))["_data_files"]
        batches = {str(file["filename"]): [[user, n] if n else [n] for user, n in file["batches"]] for file in entries}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{state}: does not list the files of the folder ({error!r}); {REMAKE}") from None
    if sorted(batches) != (present := sorted(file.name for file in folder.glob("*.arrow"))):
        raise DataError(f"{state}: lists the files {[*batches]}, the folder holds {present}; {REMAKE}")
    return [(folder / name, listed) for name, listed in batches.items()]
