"""Dataset folders as plain Python: read, made from histories by the rules as they are written down, damaged, sealed."""

import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec.__main__ import main
from bert4rec.dataset import check as module
from bert4rec.dataset.format import columns

TYPES = columns("test", has_times=True, has_ratings=True)

Row = dict[str, Any]
LISTS = ("items", "times", "ratings")
SPLITS = ("train", "validation", "test")


class Event(NamedTuple):
    """An interaction."""

    item: int
    time: int
    rating: float


@dataclass
class Folder:
    """The content of a dataset folder. What `types` names is written with that type."""

    metadata: dict[str, Any]
    splits: dict[str, list[Row]]
    tables: dict[str, list[Row]]
    types: dict[str, pa.DataType]

    def rows(self, split: str, user: int) -> list[Row]:
        """The rows of `user`, themselves."""
        return [row for row in self.splits[split] if row["user"] == user]

    def history(self, user: int) -> Row:
        """The training history of `user`, from its windows."""
        windows, step = self.rows("train", user), self._step
        lists = {
            name: [*windows[0][name], *(value for window in windows[1:] for value in window[name][-step:])]
            for name in LISTS
            if name in windows[0]
        }
        return {"user": user, **lists}

    def cut_again(self, history: Row) -> None:
        """Put the windows of `history` in place of those of its user."""
        self.put_windows(history["user"], cut(history, self.metadata["max_len"], self._step))

    def put_windows(self, user: int, windows: Sequence[Row]) -> None:
        """Put `windows` in place of those of `user`."""
        others = [row for row in self.splits["train"] if row["user"] != user]
        new = [{"user": user} | window for window in windows]
        self.splits["train"] = sorted([*others, *new], key=lambda row: row["user"])

    @property
    def _step(self) -> int:
        return int(self.metadata["preprocessing"]["sliding_step"] or self.metadata["max_len"])

    def save(self, path: Path, rows_per_batch: int = 7) -> Path:
        """Write the folder with checksums of what it holds now."""
        shutil.rmtree(path, ignore_errors=True)
        for name, rows in self.splits.items():
            self._save_split(path / name, rows, rows_per_batch)
        for name, rows in self.tables.items():
            pq.write_table(pa.Table.from_pylist(rows), path / f"{name}.parquet")
        (path / "README.md").write_text("A dataset.\n")
        seal(path, self.metadata)
        return path

    def _save_split(self, path: Path, rows: Sequence[Row], rows_per_batch: int) -> None:
        path.mkdir(parents=True)
        names = self._columns(path.name)
        schema = pa.schema([(name, self.types.get(f"{path.name}.{name}", TYPES.get(name))) for name in names])
        shards = [f"data-{i:05}-of-00002.arrow" for i in range(2)]
        half = len(rows) // 2
        for shard, part in zip(shards, (rows[:half], rows[half:]), strict=True):
            with pa.OSFile(str(path / shard), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
                for first in range(0, len(part), rows_per_batch):
                    batch = part[first : first + rows_per_batch]
                    stream.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": shard} for shard in shards]}))

    def _columns(self, split: str) -> list[str]:
        if self.splits[split]:
            return list(self.splits[split][0])
        lists = ["items", *(name for name in LISTS[1:] if self.metadata[f"has_{name}"])]
        target = ["target", *(["target_time"] if self.metadata["has_times"] else [])]
        return ["user", *lists, *([] if split == "train" else [*target, "popular_negatives", "uniform_negatives"])]


def seal(path: Path, metadata: dict[str, Any] | None = None) -> None:
    """Write `metadata.json` (by default what it says) with the sizes and checksums of the files that are there."""
    where = path / "metadata.json"
    content = json.loads(where.read_text()) if metadata is None else metadata
    files = {
        file.relative_to(path).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in sorted(path.rglob("*"))
        if file.is_file() and file != where
    }
    fingerprint = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    where.write_text(json.dumps(content | {"files": files, "fingerprint": fingerprint}))


def load(path: Path) -> Folder:
    """The content of the folder at `path`."""
    metadata = json.loads((path / "metadata.json").read_text())
    splits = {}
    for name in SPLITS:
        parts = []
        for entry in json.loads((path / name / "state.json").read_text())["_data_files"]:
            with pa.OSFile(str(path / name / entry["filename"])) as file:
                parts.append(pa.ipc.open_stream(file).read_all())
        splits[name] = pa.concat_tables(parts).to_pylist()
    tables = {file.stem: pq.read_table(file).to_pylist() for file in path.glob("*.parquet")}
    return Folder(metadata, splits, tables, {})


def check(path: Path) -> tuple[int, str, str]:
    """The exit status, the output and the errors of the command."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["check", str(path)])
    return status, out.getvalue(), err.getvalue()


@contextmanager
def small_parts() -> Iterator[None]:
    """Parts of a few rows, so that small folders take many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "USERS_AT_ONCE", 5)
        patch.setattr(module, "ROWS_AT_ONCE", 4)
        patch.setattr(module, "KEYS_AT_ONCE", 16)
        yield


def accepted(path: Path) -> str:
    """The output for a folder that must be accepted, in one part and in many."""
    status, out, err = check(path)
    assert (status, err) == (0, "")
    with small_parts():
        status, again, err = check(path)
    assert (status, err) == (0, "")
    assert again.splitlines()[:-1] == out.splitlines()[:-1]
    return out


def refused(path: Path, place: str = "") -> None:
    """The folder at `path` is refused in one line that names the `place`: file, row and column."""
    status, out, err = check(path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert place in err


def cut(history: Row, max_len: int, step: int) -> list[Row]:
    """The windows of `history`, the earliest first: back from its end, until one reaches its beginning."""
    length = len(history["items"])
    ends = [length]
    while ends[0] > max_len:
        ends.insert(0, ends[0] - step)
    return [
        history | {name: history[name][max(0, end - max_len) : end] for name in LISTS if name in history}
        for end in ends
    ]


def share(rows: Sequence[Row], rule: Callable[[Row], bool]) -> dict[str, int]:
    """Of how many of the rows the rule is true."""
    return {"users": sum(map(rule, rows)), "of": len(rows)}


def is_repeated(row: Row) -> bool:
    return row["target"] in row["items"]


def is_left_out(row: Row) -> bool:
    return row["popular_negatives"] == row["uniform_negatives"] == []


class Maker:
    """Makes a folder of histories by the rules, with everything at random that the rules leave open."""

    def __init__(
        self,
        histories: Sequence[Sequence[Event]],
        *,
        split: str = "leave_one_out",
        max_len: int = 6,
        step: int = 4,
        wanted: int | str = 5,
        n_negatives: int = 3,
        n_items: int = 60,
        parallel: Sequence[str] = ("times", "ratings"),
        extends: bool = False,
        seed: int = 1,
    ) -> None:
        self.histories, self.split, self.max_len, self.step = histories, split, max_len, step
        self.wanted, self.n_negatives, self.n_items = wanted, n_negatives, n_items
        self.parallel, self.extends, self.random = parallel, extends, random.Random(seed)
        times = sorted(event.time for history in histories for event in history)
        self.instant = times[int(len(times) * 0.7)]

    def make(self) -> Folder:
        """The folder."""
        known = [self._known(history) for history in self.histories]
        validated = self._validated(known)
        splits: dict[str, list[Row]] = {name: [] for name in SPLITS}
        for user, (history, n_known) in enumerate(zip(self.histories, known, strict=True)):
            n_trained = n_known - (user in validated)
            if n_trained:
                splits["train"] += cut(self._history(user, history[:n_trained]), self.max_len, self.step)
            if user in validated:
                splits["validation"].append(self._evaluated(user, history, n_trained))
            if 0 < n_known < len(history):
                splits["test"].append(self._evaluated(user, history, n_known))
        tables = self._tables([n - (user in validated) for user, n in enumerate(known)])
        return Folder(self._metadata(splits, tables), splits, tables, {})

    def _known(self, history: Sequence[Event]) -> int:
        """How many interactions stand before the test."""
        if self.split == "time":
            return sum(event.time < self.instant for event in history)
        return len(history) - (self.split == "leave_one_out" and len(history) >= 3)

    def _validated(self, known: Sequence[int]) -> set[int]:
        if self.split == "none":
            return set()
        able = [user for user, n in enumerate(known) if n >= 2 and (self.split == "time" or n < self._length(user))]
        return set(able if self.wanted == "all" else self.random.sample(able, min(int(self.wanted), len(able))))

    def _length(self, user: int) -> int:
        return len(self.histories[user])

    def _history(self, user: int, events: Sequence[Event]) -> Row:
        columns = {"items": [event.item for event in events], "times": [event.time for event in events]}
        columns |= {"ratings": [event.rating for event in events]}
        return {"user": user} | {name: columns[name] for name in LISTS if name == "items" or name in self.parallel}

    def _evaluated(self, user: int, history: Sequence[Event], n_before: int) -> Row:
        unseen = sorted({*range(2, 2 + self.n_items)} - {event.item for event in history})
        n = self.n_negatives if len(unseen) >= self.n_negatives else 0
        negatives = {f"{name}_negatives": self.random.sample(unseen, n) for name in ("popular", "uniform")}
        target = {"target": history[n_before].item}
        target |= {"target_time": history[n_before].time} if "times" in self.parallel else {}
        return self._history(user, history[:n_before]) | target | negatives

    def _tables(self, trained: Sequence[int]) -> dict[str, list[Row]]:
        counts = Counter(event.item for history in self.histories for event in history)
        in_train = Counter(
            event.item for history, n in zip(self.histories, trained, strict=True) for event in history[:n]
        )
        return {
            "users": [
                {"user": user, "original": f"u{user}", "count": len(history)}
                for user, history in enumerate(self.histories)
            ],
            "items": [
                {"item": item, "original": item * 7 % 1009, "count": counts[item], "train_count": in_train[item]}
                for item in range(2, 2 + self.n_items)
            ],
        }

    def _metadata(self, splits: dict[str, list[Row]], tables: dict[str, list[Row]]) -> dict[str, Any]:
        preprocessing = {
            "split": self.split,
            "sliding_step": self.step if self.step < self.max_len else 0,
            "validation_users": self.wanted,
            "n_eval_negatives": self.n_negatives,
        }
        return {
            "format_version": 1,
            "source": "table",
            "max_len": self.max_len,
            "preprocessing": preprocessing,
            "users": len(self.histories),
            "items": self.n_items,
            "rows": sum(map(len, self.histories)),
            "train_windows": len(splits["train"]),
            "train_positions": sum(row["train_count"] for row in tables["items"]),
            "validation_users": len(splits["validation"]),
            "test_users": len(splits["test"]),
            "has_times": "times" in self.parallel,
            "has_ratings": "ratings" in self.parallel,
            "extends": self.extends,
            "repeated_targets": {name: share(splits[name], is_repeated) for name in ("validation", "test")},
            "left_out": {name: share(splits[name], is_left_out) for name in ("validation", "test")},
            **({"split_instant": self.instant} if self.split == "time" else {}),
        }
