"""Dataset folders as plain Python: made from histories by the rules as they are written down, read, saved, sealed."""

import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec.__main__ import main
from bert4rec.dataset import check as module
from tests.folders import write_state

Row = dict[str, Any]

INTS = pa.list_(pa.int32())
TYPES = {
    "user": pa.int32(),
    "items": INTS,
    "times": pa.list_(pa.int64()),
    "ratings": pa.list_(pa.float32()),
    **dict.fromkeys(("n_train", "validation", "test"), pa.int32()),
    **dict.fromkeys(("popular_negatives", "uniform_negatives"), INTS),
}


class Event(NamedTuple):
    """An interaction."""

    item: int
    time: int
    rating: float


@dataclass
class Folder:
    """The content of a dataset folder. What `types` names, as "folder.column", is written with that type."""

    metadata: dict[str, Any]
    histories: list[Row]
    negatives: list[Row]
    tables: dict[str, list[Row]]
    types: dict[str, pa.DataType]

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a folder or table, themselves."""
        return self.tables[name] if name in self.tables else getattr(self, name)

    def row(self, name: str, user: int) -> Row:
        """Return the row of `user`, itself."""
        return next(row for row in self.rows(name) if row["user"] == user)

    def save(self, path: Path, rows_per_batch: int = 7) -> Path:
        """Write the folder with checksums of what it holds now."""
        shutil.rmtree(path, ignore_errors=True)
        lists = ["items", *(name for name in ("times", "ratings") if self.metadata[f"has_{name}"])]
        self._save_rows(path / "histories", ["user", *lists, "n_train", "validation", "test"], rows_per_batch)
        self._save_rows(path / "negatives", ["user", "popular_negatives", "uniform_negatives"], rows_per_batch)
        for name, rows in self.tables.items():
            pq.write_table(pa.Table.from_pylist(rows), path / f"{name}.parquet")
        np.save(path / "train_counts.npy", np.array([row["train_count"] for row in self.tables["items"]], np.int32))
        (path / "README.md").write_text("A dataset.\n")
        seal(path, self.metadata)
        return path

    def _save_rows(self, path: Path, columns: Sequence[str], rows_per_batch: int) -> None:
        path.mkdir(parents=True)
        rows = self.rows(path.name)
        names = list(rows[0]) if rows else columns
        schema = pa.schema([(name, self.types.get(f"{path.name}.{name}", TYPES.get(name))) for name in names])
        files, half = [f"data-{i:05}-of-00002.arrow" for i in range(2)], len(rows) // 2
        for file, part in zip(files, (rows[:half], rows[half:]), strict=True):
            with pa.OSFile(str(path / file), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
                for first in range(0, len(part), rows_per_batch):
                    batch = part[first : first + rows_per_batch]
                    stream.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
        write_state(path)


def seal(path: Path, metadata: Mapping[str, Any] | None = None) -> None:
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
    where.write_text(json.dumps({**content, "files": files, "fingerprint": fingerprint}))


def load(path: Path) -> Folder:
    """Return the content of the folder at `path`."""

    def rows(name: str) -> list[Row]:
        entries = json.loads((path / name / "state.json").read_text())["_data_files"]
        streams = (pa.ipc.open_stream((path / name / entry["filename"]).read_bytes()) for entry in entries)
        return pa.concat_tables([stream.read_all() for stream in streams]).to_pylist()

    tables = {file.stem: pq.read_table(file).to_pylist() for file in path.glob("*.parquet")}
    metadata = json.loads((path / "metadata.json").read_text())
    return Folder(metadata, rows("histories"), rows("negatives"), tables, {})


def check(path: Path) -> tuple[int, str, str]:
    """Return the exit status, the output and the errors of the command."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["check", str(path)])
    return status, out.getvalue(), err.getvalue()


@contextmanager
def small_parts() -> Iterator[None]:
    """Make the check read a few rows at once, so that small folders take many parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHECKED_USERS_AT_ONCE", 5)
        patch.setattr(module, "TABLE_ROWS_AT_ONCE", 4)
        patch.setattr(module, "KEYS_AT_ONCE", 16)
        yield


def accepted(path: Path) -> str:
    """Return the output for a folder that must be accepted, in one part and in many."""
    status, out, err = check(path)
    assert (status, err) == (0, "")
    with small_parts():
        status, again, err = check(path)
    assert (status, err) == (0, "")
    assert again.splitlines()[:-1] == out.splitlines()[:-1]
    return out


def refused(path: Path, place: str = "") -> None:
    """Assert that the folder is refused, in one part and in many, in one line that names the `place`."""
    status, out, err = check(path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert place in err
    with small_parts():
        assert check(path)[0] == 2


def make(
    histories: Sequence[Sequence[Event]], *, split: str = "leave_one_out", wanted: int | str = 5, n_negatives: int = 3,
    n_items: int = 60, has_times: bool = True, has_ratings: bool = True, extends: bool = False, seed: int = 1,
) -> Folder:  # fmt: skip
    """Return a folder made of histories by the rules, with everything at random that the rules leave open."""
    rng, catalogue, times = random.Random(seed), range(n_items), [e.time for events in histories for e in events]
    instant = sorted(times)[int(len(times) * 0.7)]
    n_before, tested, eligible = (
        [],
        set(),
        [],
    )  # how much comes before the test; the users with one; who may be validated
    for user, events in enumerate(histories):
        n = len(events) if split == "none" else len(events) - (len(events) >= 3)
        n = sum(event.time < instant for event in events) if split == "time" else n
        tested |= {user} if 0 < n < len(events) else set()
        eligible += [user] if (n >= 2 if split == "time" else user in tested) else []
        n_before.append(n)
    validated = set(eligible if wanted == "all" else rng.sample(eligible, min(int(wanted), len(eligible))))

    rows, negatives, trained = [], [], Counter[int]()
    repeated, left_out = Counter(validation=0, test=0), Counter(validation=0, test=0)
    for user, events in enumerate(histories):
        items, n_train = [event.item for event in events], n_before[user] - (user in validated)
        targets = {"validation": n_train if user in validated else -1, "test": n_before[user] if user in tested else -1}
        lists = {"items": items} | ({"times": [event.time for event in events]} if has_times else {})
        lists |= {"ratings": [event.rating for event in events]} if has_ratings else {}
        rows += [{"user": user} | lists | {"n_train": n_train} | targets] if events else []
        trained.update(items[:n_train])
        unseen = sorted({*catalogue} - {*items})
        n = n_negatives if len(unseen) >= n_negatives else 0
        drawn = {f"{name}_negatives": rng.sample(unseen, n) for name in ("popular", "uniform")}
        negatives += [{"user": user} | drawn] if user in validated | tested else []
        for name, place in targets.items():
            repeated[name] += place >= 0 and items[place] in items[:place]
            left_out[name] += place >= 0 and not n

    counts = Counter(event.item for events in histories for event in events)
    n_users = {"validation": len(validated), "test": len(tested)}
    metadata = {
        "format_version": 3,
        "source": "table",
        "preprocessing": {"split": split, "validation_users": wanted, "n_eval_negatives": n_negatives},
        "users": len(histories),
        "items": n_items,
        "rows": len(times),
        "train_positions": trained.total(),
        "validation_users": len(validated),
        "test_users": len(tested),
        "has_times": has_times,
        "has_ratings": has_ratings,
        "extends": extends,
        "repeated_targets": {name: {"users": repeated[name], "of": n} for name, n in n_users.items()},
        "left_out": {name: {"users": left_out[name], "of": n} for name, n in n_users.items()},
        **({"split_instant": instant} if split == "time" else {}),
    }
    tables = {
        "users": [{"user": i, "original": f"u{i}", "count": len(events)} for i, events in enumerate(histories)],
        "items": [
            {"item": i, "original": (i + 2) * 7 % 1009, "count": counts[i], "train_count": trained[i]}
            for i in catalogue
        ],
    }
    return Folder(metadata, rows, negatives, tables, {})
