"""Dataset folders as plain Python: prepared, read, saved, sealed, checked."""

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import preprocessing
from bert4rec.__main__ import main
from bert4rec.dataset import check as module
from bert4rec.dataset import check_ids
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
        if "oracle" in self.tables:
            pq.write_table(pa.Table.from_pylist(self.tables["oracle"]), path / "oracle.parquet")
        for name in ("users", "items"):
            self._save_table(path / name)
        items = sorted(self.tables["items"], key=lambda row: row["item"])
        np.save(path / "train_counts.npy", np.array([row["train_count"] for row in items], np.int32))
        (path / "README.md").write_text("A dataset.\n")
        seal(path, self.metadata)
        return path

    def _save_table(self, path: Path) -> None:
        """Write the rows of users or items, a file for each segment of the metadata."""
        path.mkdir()
        rows, sizes = self.tables[path.name], [np.ravel(each)[0] for each in self.metadata["segments"][path.name]]
        for first, stop in itertools.pairwise([0, *np.cumsum(sizes)[:-1].tolist(), len(rows)]):
            pq.write_table(pa.Table.from_pylist(rows[first:stop]), path / f"part-{first:010d}.parquet")

    def _save_rows(self, path: Path, columns: Sequence[str], rows_per_batch: int) -> None:
        path.mkdir(parents=True)
        rows = self.rows(path.name)
        names = list(rows[0]) if rows else columns
        schema = pa.schema(
            [(name, self.types.get(f"{path.name}.{name}", TYPES.get(name, pa.int32()))) for name in names]
        )
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
        file.relative_to(path).as_posix(): {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for file, content in ((file, file.read_bytes()) for file in sorted(path.rglob("*")) if file.is_file())
        if file != where
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
    for name in ("users", "items"):
        files = sorted((path / name).glob("*.parquet"))
        tables[name] = [row for file in files for row in pq.read_table(file).to_pylist()]
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
        patch.setattr(check_ids, "KEYS_AT_ONCE", 4)
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


def prepared(place: Path, rows: Iterable[Sequence[object]], columns: Sequence[str], **chosen: Any) -> Path | None:
    """Return the folder that the preparation writes of `rows` of a user, an item and `columns`, None if it refuses."""
    lines = [["user", "item", *columns], *rows]
    (place / "log.csv").write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    named = {"at": "--data.time_column=at", "stars": "--data.rating_column=stars"}
    arguments = [
        "--config=/dev/null", "--data.source=table", f"--data.path={place / 'log.csv'}",
        f"--data.dataset_dir={place / 'dataset'}", *(named[name] for name in columns),
        *(f"--preprocessing.{key}={value}" for key, value in chosen.items()),
    ]  # fmt: skip
    with redirect_stdout(StringIO()):
        return place / "dataset" if preprocessing.main(arguments) == 0 else None
