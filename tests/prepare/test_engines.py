"""The same bytes from each engine with any number of workers, whoever is killed on the way."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

import preprocessing
from bert4rec.prepare import engine
from bert4rec.prepare.executors import TaskExecutor
from bert4rec.prepare.stages import RESULT, Timed, run_task
from tests.folders import contents
from tests.preparation import small_parts, small_tasks

ROOT = Path(preprocessing.__file__).parent
N = 6000


@pytest.fixture(autouse=True)
def several_parts() -> Iterator[None]:
    with small_parts(1500):
        yield


def log(*, first_text: int = N) -> pl.DataFrame:
    """Scattered rows of 200 users; from row `first_text` on some ids are text."""
    rng = np.random.default_rng(5)
    users, items = rng.integers(0, 200, N), (90 * rng.random(N) ** 2).astype(int)
    place = np.arange(N)
    columns = {
        "user": [f"u{u}" if at > first_text and u % 3 else f"{u}" for at, u in zip(place, users, strict=True)],
        "item": [f"i{i}" if at > first_text and i % 3 else f"{i}" for at, i in zip(place, items, strict=True)],
        "at": 10**9 + rng.integers(0, 8000, N) / 4, "stars": rng.integers(1, 11, N) / 2,
        "kind": np.where(rng.random(N) < 0.4, "buy", "view"), "name": [f'The "{i}", {i % 3}' for i in items],
    }  # fmt: skip
    return pl.DataFrame(columns)


def write_inputs(place: Path) -> dict[str, list[str]]:
    """Seven inputs and their options."""
    plain, time = log(), "--data.time_column=at"
    numbers = plain.cast({"user": pl.Int64, "item": pl.Int64})
    plain.select("user", "item", "at").write_csv(place / "text.csv")
    plain.write_csv(place / "quotes.csv")
    numbers.write_parquet(place / "rows.parquet", row_group_size=1000)
    plain.select("user", "item").write_csv(place / "untimed.csv")
    log(first_text=N // 2).select("user", "item", "at").write_csv(place / "late.csv")
    items = numbers.select("item").unique().sort("item").with_columns(brand=pl.format("b{}", pl.col("item") % 7))
    items.write_parquet(place / "items.parquet")
    paths = {path.name: f"--data.path={path}" for path in place.iterdir()}
    return {
        "text": [paths["text.csv"], time, "--preprocessing.split=time"],
        "parquet": [paths["rows.parquet"], time, "--data.rating_column=stars", "--preprocessing.min_rating=2"],
        "kinds": [
            paths["quotes.csv"], time, "--data.event_column=kind", '--preprocessing.target_events=["buy"]',
            "--preprocessing.hide_before_target=2",
        ],
        "features": [
            paths["quotes.csv"], time, "--title=name", f"--items={place / 'items.parquet'}",
            "--preprocessing.ties=shuffle",
        ],
        "k-core": [
            paths["text.csv"], time, "--preprocessing.min_item_interactions=40",
            "--preprocessing.min_user_interactions=18",
        ],
        "no times": [paths["untimed.csv"], "--preprocessing.test_users=90", "--preprocessing.validation_users=50"],
        "late": [paths["late.csv"], time, "--preprocessing.split=leave_last_basket"],
    }  # fmt: skip


def prepared(place: Path, name: str, *options: str) -> dict[str, Any]:
    """The files of the dataset."""
    folder = place / name
    shared = ["--config=/dev/null", "--data.source=table", f"--data.dataset_dir={folder}"]
    assert preprocessing.main([*shared, "--preprocessing.n_eval_negatives=20", *options]) == 0
    assert [path.name for path in place.glob(f".{name}*")] == []
    return contents(folder)


class Twice(TaskExecutor):
    """Each task runs twice, and the second time it writes the same bytes."""

    n_tasks = 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        assert isinstance(function, Timed)
        folder, values = arguments
        again = folder.with_name(f"again-{folder.name}")
        results = [run_task(function.task, one, values) for one in (folder, again)]
        assert results[0] == results[1]
        files = [{path.relative_to(one): path.read_bytes() for path in one.rglob("*") if path.is_file()}
                 for one in (folder, again)]  # fmt: skip
        assert files[0] == files[1]
        Twice.n_tasks += 1
        future = Future[Any]()
        future.set_result((0.0, results[0]))
        return future


def test_each_task_writes_the_same_bytes_again_and_small_tasks_make_the_same_dataset(tmp_path: Path) -> None:
    for name, options in write_inputs(tmp_path).items():
        expected = prepared(tmp_path, f"{name}-whole", *options)
        with small_tasks(1000), patch.object(engine, "open_executor", lambda *_, **__: _Open(Twice())):
            assert prepared(tmp_path, f"{name}-small", *options) == expected, name
    assert Twice.n_tasks > 200


class _Open:
    def __init__(self, executor: TaskExecutor) -> None:
        self._executor = executor

    def __enter__(self) -> TaskExecutor:
        return self._executor

    def __exit__(self, *_: object) -> None:
        pass


def test_two_processes_make_the_same_dataset(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path)
    for name in ("kinds", "late"):
        with small_tasks(1000):
            expected = prepared(tmp_path, f"{name}-1", *inputs[name])
            assert prepared(tmp_path, f"{name}-2", *inputs[name], "--preprocessing.workers=2") == expected


@pytest.mark.long
@pytest.mark.parametrize("n_workers", [2, 4])
def test_any_number_of_processes_makes_the_same_dataset(tmp_path: Path, n_workers: int) -> None:
    for name, options in write_inputs(tmp_path).items():
        with small_tasks(1000):
            expected = prepared(tmp_path, f"{name}-1", *options)
            several = [*options, f"--preprocessing.workers={n_workers}"]
            assert prepared(tmp_path, f"{name}-{n_workers}", *several) == expected, name


DRIVER = """
import sys
import preprocessing
from tests.preparation import small_parts, small_tasks
with small_tasks(1000), small_parts(1500):
    sys.exit(preprocessing.main(sys.argv[1:]))
"""


def done_tasks(place: Path) -> dict[str, int]:
    """The tasks that are done, by the time at which they were."""
    return {path.parent.name: path.stat().st_mtime_ns for path in place.glob(f".killed.work-*/*/{RESULT}")}


@pytest.mark.parametrize("n_kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_after_kills_of_the_driver_finished_tasks_are_not_done_again(tmp_path: Path, n_kills: int) -> None:
    options = write_inputs(tmp_path)["k-core"]
    with small_tasks(1000):
        expected = prepared(tmp_path, "whole", *options)
    folder, rng, before = tmp_path / "killed", random.Random(n_kills), dict[str, int]()
    arguments = [
        "--config=/dev/null", "--data.source=table", f"--data.dataset_dir={folder}",
        "--preprocessing.n_eval_negatives=20", *options,
    ]  # fmt: skip
    command = [sys.executable, "-c", DRIVER, *arguments]
    n_done = 0
    for kill in range(n_kills + 1):
        with subprocess.Popen(
            [*command, f"--preprocessing.workers={1 + kill % 2}"], cwd=ROOT, stdout=subprocess.DEVNULL
        ) as process:
            if kill == n_kills:
                assert process.wait() == 0
                break
            target = n_done + rng.randint(1, 6)
            while process.poll() is None and len(done_tasks(tmp_path)) < target:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            if process.wait() == 0:  # it was finished before
                break
        after = done_tasks(tmp_path)
        assert before.items() <= after.items()
        before, n_done = after, len(after)
    assert contents(folder) == expected
    assert [path.name for path in tmp_path.glob(".killed*")] == []


DIES = """
import os, signal, sys
import preprocessing
from bert4rec.prepare import stages

def dying(task, folder, arguments, run_task=stages.run_task):
    return os.kill(os.getpid(), signal.SIGKILL) if folder.name == "order-000000" else run_task(task, folder, arguments)

stages.run_task = dying
preprocessing.main(sys.argv[1:])
"""


def test_another_setting_does_not_take_what_a_killed_run_has_left(tmp_path: Path) -> None:
    options = write_inputs(tmp_path)["text"]
    arguments = ["--config=/dev/null", "--data.source=table", f"--data.dataset_dir={tmp_path / 'killed'}", *options]
    died = subprocess.run([sys.executable, "-c", DIES, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert done_tasks(tmp_path)
    expected = prepared(tmp_path, "whole", *options, "--preprocessing.seed=7")
    assert prepared(tmp_path, "killed", *options, "--preprocessing.seed=7") == expected
