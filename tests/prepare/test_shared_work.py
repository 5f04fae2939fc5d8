"""Tasks with their files in a bucket: each done once, on any host, with the bytes of tasks in a folder."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bert4rec.prepare.executors import ThisProcess
from bert4rec.prepare.folder import work_in_storage
from bert4rec.prepare.runs import number_items, read_batch, write_batches, write_run
from bert4rec.prepare.shared_work import SharedWork, fetched
from bert4rec.prepare.stages import Stages, saved
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.storage import StorageError, names
from bert4rec.sources.progress import Progress
from tests.sources.storage import Storage


@pytest.fixture
def url(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address in a new bucket."""
    bucket = re.sub(r"[^a-z0-9]", "-", tmp_path.name.lower())
    (storage.folder / bucket).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    return f"s3://{bucket}/shop"


def add(folder: Path, number: Path, log: Sequence[Path]) -> dict[str, Any]:
    """Write the number of the first file, the lines of the others, and the sum."""
    lines = [line for path in log for line in fetched(path).read_text().split()]
    total = int(np.load(fetched(number))[0]) + sum(map(int, lines))
    (folder / "deep").mkdir()
    (folder / "deep" / "total.txt").write_text(str(total))
    (folder / "rest.txt").write_text("\n".join(lines))
    if total < 0:
        raise DataError(f"{log[0]}: is negative")
    return {"total": total, "rows": 1}


def another_host(work: SharedWork, place: Path, monkeypatch: pytest.MonkeyPatch) -> SharedWork:
    """The same work, as a host sees it that has none of its files."""
    create, arguments = work.__reduce__()
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    return create(*arguments)  # type: ignore[no-any-return]


def test_a_task_finds_the_files_of_another_host(
    url: str, tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.txt").write_text("1 2")
    (tmp_path / "bad.txt").write_text("-9")
    work = SharedWork(url)
    work.add_input(tmp_path / "log.txt")
    work.add_input(tmp_path / "bad.txt")
    number = saved(work.root / "number.npy", np.array([4]))
    packed, refused = (work.pack((number, [tmp_path / name])) for name in ("log.txt", "bad.txt"))
    shutil.rmtree(tmp_path / "one")
    other = another_host(work, tmp_path / "two", monkeypatch)
    assert other.run(add, "add-000000", packed) == {"total": 7, "rows": 1}
    key = f"{url[5:]}/add-000000"
    assert (storage.folder / key / "deep" / "total.txt").read_text() == "7"
    puts = [line for line in storage.done if line.startswith(f"PUT {key}")]
    assert puts[-1] == f"PUT {key}/result.json"
    assert other.run(add, "add-000000", packed) == {"total": 7, "rows": 1}
    assert [line for line in storage.done if line.startswith(f"PUT {key}")] == puts
    with pytest.raises(DataError, match=f"^{tmp_path}/bad.txt: is negative$"):
        other.run(add, "add-000001", refused)
    assert names(f"{url}/add-000001") == {}
    assert [*(tmp_path / "two").rglob("task-*")] == []


def read_all(folder: Path, dataset: Path) -> dict[str, Any]:
    """Return the content of each file of a folder."""
    place = fetched(dataset)
    return {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}


def test_a_task_finds_the_named_files_of_a_folder(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("older/metadata.json", "older/users/part.parquet", "older/histories/part.arrow"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"{path}"')
    work = SharedWork(url)
    work.add_input(tmp_path / "older", ["metadata.json", "users/part.parquet"])
    packed = work.pack((tmp_path / "older",))
    other = another_host(work, tmp_path / "two", monkeypatch)
    expected = {name: f'"{tmp_path / "older" / name}"' for name in ("metadata.json", "users/part.parquet")}
    assert other.run(read_all, "read-000000", packed) == expected


def test_a_work_that_was_interrupted_goes_on(url: str, tmp_path: Path, storage: Storage) -> None:
    def totals(numbers: Sequence[int]) -> list[dict[str, Any]]:
        with work_in_storage(url, {"about": 1}, Progress()) as work:
            stages = Stages(work.root, ThisProcess(), Progress(), work)
            first = saved(work.root / "first.npy", np.array([10]))
            paths = [saved(work.root / f"{number}.npy", np.array([number])) for number in numbers]
            done = stages.run("add", add, [(path, []) for path in paths], reads=["rest.txt"])
            assert all((folder / "rest.txt").is_file() for folder, _ in done)
            again = stages.run("more", add, [(first, [folder / "rest.txt"]) for folder, _ in done])
            stages.remove("add", "deep/*")
            assert not any(name.startswith("add") and "/deep/" in name for name in names(work.url))
            storage.status = 400 if len(numbers) < 3 else 200  # 503 is tried again for seconds
            stages.run("end", add, [(first, [])])
        return [result for _, result in [*done, *again]]

    try:
        with pytest.raises(StorageError):
            totals([1, 2])
    finally:
        storage.status = 200
    assert [result["total"] for result in totals([1, 2, 3])] == [1, 2, 3, 10, 10, 10]
    results = [line for line in storage.done if url[5:] in line and line.endswith("result.json") and "PUT" in line]
    assert len({*results}) == len(results) == 7
    assert storage.keys(url[5:].partition("/")[0]) == []
    assert [path for path in (tmp_path / "one").rglob("*") if path.is_file()] == []


def test_only_what_a_range_needs_is_read(
    url: str, tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, n = SharedWork(url), 200_000
    place = work.root / "shuffle-000000"
    place.mkdir(parents=True)
    frame = pl.DataFrame({"user": np.random.default_rng(1).integers(0, 2**60, n), "item": np.arange(n)})
    write_batches(place / "rows.arrow", frame, np.linspace(0, n, 11).astype(int))
    expected = read_batch(place / "rows.arrow", 3)
    write_run(place, 0, {"new": [frame]})
    limits = (50_000, 60_000)
    arguments: tuple[Any, ...] = ([place / "items-000.parquet"], 1, None, pl.Int64(), limits, False)
    (tmp_path / "local").mkdir()
    counts = number_items(tmp_path / "local", *arguments)
    for path in place.iterdir():
        storage.write(f"{url[5:]}/shuffle-000000/{path.name}", path.read_bytes())
    size, n_items = (place / "rows.arrow").stat().st_size, (place / "items-000.parquet").stat().st_size
    other = another_host(work, tmp_path / "two", monkeypatch)
    n_before = len(storage.sent)
    assert read_batch(other.root / "shuffle-000000" / "rows.arrow", 3).equals(expected)
    assert sum(storage.sent[n_before:]) < 0.2 * size
    n_before = len(storage.sent)
    packed = work.pack(arguments)
    assert other.run(number_items, "items-000000", packed) == counts
    assert sum(storage.sent[n_before:]) < 0.5 * n_items
    for name in ("codes.arrow", "items.arrow"):
        stored = storage.folder / url[5:] / "items-000000" / name
        assert stored.read_bytes() == (tmp_path / "local" / name).read_bytes()
