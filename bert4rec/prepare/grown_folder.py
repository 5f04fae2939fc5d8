"""Write the folder of a dataset that has got new rows, and that of the users who have them."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bert4rec.config.tables import Preprocessing
from bert4rec.dataset.format import (
    DATASET_CARD,
    EVENTS,
    FOLDERS,
    HISTORIES,
    ITEMS,
    NO_TARGET,
    ORACLE,
    PREVIOUS,
    STATE,
    TEST_TIED,
    TRAIN_COUNTS,
    USERS,
    dataset_card,
    fingerprints_of,
    lengths_of,
    part_starts,
)
from bert4rec.dataset.reader import read_metadata
from bert4rec.prepare.folder import write_metadata
from bert4rec.prepare.grown_parts import (
    ITEM_CHANGES,
    MERGED,
    TRAINED,
    Cut,
    columns_of,
    count_kept,
    merge_rows,
    write_grown,
    write_scored,
)
from bert4rec.prepare.grown_tables import GrownTables
from bert4rec.prepare.negatives import HeldOutCounts, held_out_metadata
from bert4rec.prepare.new_items import OF_THE_FOLDER
from bert4rec.prepare.ordering import ExistingIds
from bert4rec.prepare.stages import Done, Stages
from bert4rec.prepare.writer import write_state
from bert4rec.runtime.arrays import Bools, Int32s, Int64s
from bert4rec.runtime.files import link_or_copy
from bert4rec.sources.item_features import ItemFile
from bert4rec.sources.times import moment

APPENDED = "appended"  # key of `metadata.json`: the number of rows that were appended
N_TENTHS = 10
MOST_FINGERPRINTS = 400  # fingerprints of older datasets that the metadata names


class Day(NamedTuple):
    """The rows to append: `histories` by the numbers of users and items, which are also in the file `path`.

    `new_users` (`user`, `original`) and `new_items` (`item`, `original` and other columns); `table` has the features of
    the items. `bad` rows by kind of problem, and the numbers of rows without a user, `guests`, and of those in the
    `future`.
    """

    histories: pl.DataFrame
    path: Path
    new_users: pl.DataFrame
    new_items: pl.DataFrame
    table: ItemFile | None
    bad: Counter[str]
    guests: int
    future: int

    @property
    def times(self) -> Int64s:
        """Return the times of all rows."""
        return self.histories["times"].explode(empty_as_null=False).to_numpy()

    @property
    def n_items(self) -> int:
        """Return the number of items with rows."""
        return self.histories["items"].explode(empty_as_null=False).n_unique()


class OldPart(NamedTuple):
    """A part of the older dataset: its first user, the one after the last, and the name of its files."""

    first: int
    stop: int
    name: str


class GrownFolder:
    """The dataset `previous`, with its `metadata` and ids, that grows by tasks in `stages`.

    The last share `tail` of the rows that are later than it is held out.
    """

    def __init__(
        self, previous: Path, metadata: Mapping[str, Any], known: ExistingIds, settings: Preprocessing, stages: Stages,
        tail: float,
    ) -> None:  # fmt: skip
        self._previous, self._metadata, self._known, self._tail = previous, metadata, known, tail
        self._settings, self._stages = settings, stages
        self._last = int(metadata["time_span"][1])
        self._merged = list[Done]()
        self._has_ties = bool(metadata.get("has_ties"))

    @property
    def counts(self) -> dict[str, int]:
        """Return how many rows there were, how many of them are new, and how many of those late."""
        return {name: sum(result[name] for _, result in self._merged) for name in ("rows", "new", "late")}

    def instant(self, day: Day) -> int:
        """Return from when on rows are held out: the share `tail` of the later rows of the `day`, or a few more.

        Rows of the first time are not; so if all have one time, it is after them.
        """
        times = day.times
        later = np.sort(times[times > self._last])
        n = round(self._tail * len(later))
        after = later[later > later[0]] if n else later[:0]
        return int(max(later[-n], after[0])) if len(after) else 1 + int(max(self._last, times.max()))

    def shift(self, day: Day) -> float:
        """Return the `popularity_shift` of the rows of the `day`."""
        items, popularity = day.histories["items"].explode(empty_as_null=False).to_numpy(), self._popularity(day)
        return popularity_shift(np.bincount(items, minlength=len(popularity)), popularity)

    def write(self, day: Day, new: Path) -> None:
        """Write the grown dataset to the folder `new`."""
        lengths = np.append(self._known.users["count"].to_numpy(), np.zeros(len(day.new_users), np.int64))
        self._merged = self._merge(day, len(lengths))
        for folder, _ in self._merged:
            users, n = pl.read_ipc(folder / MERGED).select("user", pl.col("items").list.len())
            lengths[users.to_numpy()] = n.to_numpy()
        instant, about = self.instant(day), self._about(day, lengths)
        popularity, n_more = self._popularity(day), np.zeros(len(self._known.items) + len(day.new_items), np.int64)
        for folder, _ in self._merged:
            items, n = pl.read_ipc(folder / ITEM_CHANGES)
            n_more[items.to_numpy()] += n.to_numpy()
        done, kept = self._write_parts(lengths, instant)
        for folder, _ in done.values():
            items, n = pl.read_ipc(folder / TRAINED)
            popularity[items.to_numpy()] += n.to_numpy().astype(popularity.dtype)
        tables = GrownTables(self._previous, self._metadata, new)
        tables.write_users(lengths, day.new_users)
        tables.write_items(n_more, popularity, day.new_items)
        about |= tables.write_features(day.table, day.new_items)
        paths = [(self._previous / HISTORIES / part.name,) for part in kept]
        counted = [result for _, result in (*done.values(), *self._stages.run("kept", count_kept, paths))]
        about |= {"train_positions": int(popularity.sum()), **held_out_of(counted), **split_by_time(about, instant)}
        self._finish(new, about, done, kept)

    def write_scored(self, day: Day, grown: Path, scored: Path) -> None:
        """Write the dataset of the users of the `day` alone to `scored`; `grown` has the tables.

        All rows later than the older dataset are held out, but the first one of each new user; no user is validated.
        The popularity is that of the older dataset.
        """
        firsts = [int(pl.read_ipc(folder / MERGED, columns=["user"])["user"][0]) for folder, _ in self._merged]
        cut = Cut.at(self._last + 1, self._metadata, len(self._known.users))
        arguments = [
            (first, folder / MERGED, cut, self._has_ties)
            for first, (folder, _) in zip(firsts, self._merged, strict=True)
        ]
        done = self._stages.run("scored", write_scored, arguments)
        metadata, popularity = read_metadata(grown), self._popularity(day)
        np.save(scored / TRAIN_COUNTS, popularity)
        for name in metadata["files"]:
            if Path(name).parts[0] not in (*FOLDERS, TRAIN_COUNTS, DATASET_CARD):
                link_or_copy(grown / name, scored / name)
        about = {name: value for name, value in metadata.items() if name not in OF_THE_FOLDER}
        about |= {"train_positions": int(popularity.sum()), **held_out_of([result for _, result in done])}
        about |= {"rows": sum(result["rows"] for _, result in done), "split_instant": self._last + 1}
        self._finish(scored, about, dict(zip(firsts, done, strict=True)), [])

    def _popularity(self, day: Day) -> Int32s:
        """Return the training positions of each item in the older dataset, 0 for a new one."""
        popularity = np.load(self._previous / TRAIN_COUNTS)
        return np.append(popularity, np.zeros(len(day.new_items), popularity.dtype))

    @cached_property
    def _parts(self) -> list[OldPart]:
        """Return the parts of the older dataset."""
        return parts_of(self._previous, len(self._known.users))

    def _merge(self, day: Day, n_users: int) -> list[Done]:
        """Return the tasks that have written the histories of the users of the `day`, by ranges of users."""
        ranges = [(part.first, part.stop, self._previous / HISTORIES / part.name) for part in self._parts]
        arguments, sizes, users = [], [], day.histories["user"].to_numpy()
        for first, stop, path in [*ranges, (len(self._known.users), n_users, None)]:
            low, high = np.searchsorted(users, [first, stop]).tolist()
            if low < high:
                arguments.append(((first, stop), path, day.path, self._settings.repeats, self._last))
                sizes.append(high - low)
        return self._stages.run("merge", merge_rows, arguments, sizes=sizes, title="merge", reads=["*"])

    def _write_parts(self, lengths: Int64s, instant: int) -> tuple[dict[int, Done], list[OldPart]]:
        """Return the tasks that have written parts, by first user, and the older parts that stay."""
        n_known, wanted = len(self._known.users), self._settings.validation_users
        validated = 1.0 if wanted == "all" else min(1.0, wanted / len(lengths))
        cut = Cut.at(instant, self._metadata, n_known, validated=validated)
        has_changed = self._have_new_rows(len(lengths))
        for part in self._parts:
            if not has_changed[part.first : part.stop].any():
                has_changed[part.first : part.stop] = self._is_held_out(part)
        kept, renewed = kept_and_renewed(self._parts, lengths, has_changed)
        changed = [folder / MERGED for folder, _ in self._merged]
        arguments = [
            (users, [self._previous / HISTORIES / part.name for part in older], changed, cut, self._has_ties)
            for users, older in renewed
        ]
        sizes = [int(lengths[slice(*users)].sum()) for users, *_ in arguments]
        done = self._stages.run(
            "write", write_grown, arguments, sizes=sizes, title="write", are_small=True, reads=["*"]
        )
        return {users[0]: one for (users, *_), one in zip(arguments, done, strict=True)}, kept

    def _have_new_rows(self, n_users: int) -> Bools:
        has_new = np.zeros(n_users, bool)
        for folder, _ in self._merged:
            has_new[pl.read_ipc(folder / MERGED, columns=["user"])["user"].to_numpy()] = True
        return has_new

    def _is_held_out(self, part: OldPart) -> bool:
        """Return whether a part holds out rows that are for training now, or has negatives."""
        if APPENDED not in self._metadata:
            return True
        test = pl.read_ipc_stream(self._previous / HISTORIES / part.name, columns=["test"])["test"]
        return bool((test > NO_TARGET).any())

    def _about(self, day: Day, lengths: Int64s) -> dict[str, Any]:
        """Return the metadata of the grown dataset, but for its split, its features and its files."""
        before = {name: value for name, value in self._metadata.items() if name not in (*OF_THE_FOLDER, "log")}
        n_users, n_items, n_rows = len(lengths), len(self._known.items) + len(day.new_items), int(lengths.sum())
        segments = {name: [*before["segments"][name]] for name in (USERS, ITEMS)}
        segments[USERS] += [len(day.new_users)] if len(day.new_users) else []
        segments[ITEMS] += [[len(day.new_items), self._settings.seed]] if len(day.new_items) else []
        events = Counter(before.get(EVENTS, {}))
        for _, result in self._merged:
            events.update({self._known.kinds[kind]: n for kind, n in result["events"]})
        first, last = before["time_span"]
        return before | {
            "extends": True,
            APPENDED: before.get(APPENDED, 0) + self.counts["new"],
            PREVIOUS: {"fingerprints": fingerprints_of(self._metadata)[:MOST_FINGERPRINTS], "validation_users": 0},
            "segments": segments,
            "rows_read": before["rows_read"] + self.counts["rows"] + day.bad.total() + day.guests + day.future,
            "users_read": before["users_read"] + len(day.new_users),
            "items_read": before["items_read"] + len(day.new_items),
            "bad_rows": dict(sorted((Counter(before["bad_rows"]) + day.bad).items())),
            "guests": before.get("guests", 0) + day.guests,
            "rows": n_rows,
            "users": n_users,
            "items": n_items,
            "density": n_rows / (n_users * n_items),
            "lengths": lengths_of(lengths[lengths > 0]),
            "time_span": [min(first, int(day.times.min())), max(last, int(day.times.max()))],
            **({EVENTS: {kind: events[kind] for kind in before[EVENTS]}} if EVENTS in before else {}),
        }

    def _finish(self, new: Path, about: Mapping[str, Any], done: Mapping[int, Done], kept: Sequence[OldPart]) -> None:
        """Put the parts into both folders of `new`, and write the card and the metadata."""
        written: dict[str, dict[int, Any]] = {name: {} for name in FOLDERS}
        for first, (folder, result) in done.items():
            for name, file in result["files"].items():
                self._stages.deliver(folder, f"{name}/{file['filename']}", new)
                written[name][first] = file
        finish_folder(new, self._previous, about, written, kept)


def parts_of(dataset: Path, n_users: int) -> list[OldPart]:
    """Return the parts of a dataset of `n_users`."""
    names = [*_files_of(dataset / HISTORIES)]
    firsts = [int(re.sub(r"\D", "", Path(name).stem)) for name in names]
    return [OldPart(*part) for part in zip(firsts, [*firsts[1:], n_users], names, strict=True)]


def kept_and_renewed(
    older: Sequence[OldPart], lengths: Int64s, has_changed: Bools
) -> tuple[list[OldPart], list[tuple[tuple[int, int], list[OldPart]]]]:
    """Return which of the `older` parts stay, and the ranges of users (first, before the last) of all other parts.

    With each range are the older parts that have its users. A part stays if none of its users `has_changed`, and
    histories of these `lengths` are cut there as before.
    """
    kept, renewed = list[OldPart](), list[tuple[tuple[int, int], list[OldPart]]]()
    for first, stop in pairwise([*part_starts(lengths), len(lengths)]):
        parts = [part for part in older if part.first < stop and first < part.stop]
        if [part[:2] for part in parts] == [(first, stop)] and not has_changed[first:stop].any():
            kept += parts
        else:
            renewed.append(((first, stop), parts))
    return kept, renewed


def held_out_of(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries of the metadata about held-out users from the results for parts."""
    counts = HeldOutCounts()
    for result in results:
        counts.update({(kind, key): n for kind, key, n in result["held_out"]})
    return held_out_metadata(counts)


def split_by_time(about: Mapping[str, Any], instant: int) -> dict[str, Any]:
    """Return the entries of the metadata about a split of all users at an `instant`, without negatives."""
    recipe = {"split": "time", "split_at": moment(instant), "test_users": "all", "n_eval_negatives": 0}
    return {"preprocessing": about["preprocessing"] | recipe, "split_instant": instant}


def finish_folder(
    new: Path, previous: Path, about: Mapping[str, Any], written: Mapping[str, Mapping[int, Any]],
    kept: Sequence[OldPart],
) -> None:  # fmt: skip
    """Link the `kept` parts of the dataset `previous` in both folders of `new`, and write the card and the metadata.

    `about`: the metadata without the files; `written`: the entries of the other parts, by folder and first user.
    """
    has = {"ratings": about["has_ratings"], EVENTS: EVENTS in about, TEST_TIED: about.get("has_ties")}
    older = read_metadata(previous)["files"]
    checksums, rows = dict[str, Any](), dict[str, tuple[int, list[str]]]()
    for name, columns in columns_of(["times", *(name for name in has if has[name])]).items():
        (new / name).mkdir(exist_ok=True)
        files, entries = {**written[name]}, _files_of(previous / name)
        for part in kept:
            link_or_copy(previous / name / part.name, new / name / part.name)
            files[part.first] = entries[part.name] | {"checksums": older[f"{name}/{part.name}"]}
        in_order = [files[first] for first in sorted(files)]
        write_state(new / name, columns, in_order)
        checksums |= {f"{name}/{file['filename']}": file["checksums"] for file in in_order}
        rows[name] = sum(n for file in in_order for _, n in file["batches"]), [*columns]
    tables = {path.stem for path in new.glob("*.parquet") if path.name != ORACLE}
    (new / DATASET_CARD).write_text(dataset_card(about, rows, tables), encoding="utf-8")
    write_metadata(new, about, known=checksums)


def popularity_shift(counts: Int64s, popularity: Int32s) -> float:
    """Return the share of the rows that would have to be of other items for their usual popularity.

    Items are compared by tenths: the most popular ones that have a tenth of the training positions, the next ones, …,
    and those without any. `counts` and `popularity` are by item.

    >>> round(popularity_shift(np.array([5, 3, 0, 2]), np.array([50, 40, 10, 0])), 6)
    0.2
    """
    order = np.argsort(-popularity, kind="stable")
    ends = np.minimum(N_TENTHS - 1, (popularity[order].cumsum() - 1) * N_TENTHS // max(1, int(popularity.sum())))
    tenths = np.where(popularity[order] > 0, ends, N_TENTHS)
    now, usual = (np.bincount(tenths, values[order], N_TENTHS + 1) for values in (counts, popularity))
    return float(np.abs(now / max(1, now.sum()) - usual / max(1, usual.sum())).sum() / 2)


def _files_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entry of each file in the state of a folder, by name."""
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    return {file["filename"]: file for file in state["_data_files"]}
