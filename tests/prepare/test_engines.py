"""This process and several write the same bytes, also after kills; test_ray.py has the same on Ray."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest

from bert4rec.dataset.reader import open_dataset
from bert4rec.prepare import engine
from bert4rec.prepare.executors import TaskExecutor
from bert4rec.prepare.stages import Timed, run_task
from tests.conftest import long
from tests.engines import (
    Kill,
    done_tasks,
    end_driver,
    end_local_worker,
    kill_on_the_way,
    prepared,
    start_driver,
    write_inputs,
)
from tests.folders import contents
from tests.preparation import small_parts, small_tasks


@pytest.fixture(autouse=True)
def several_parts() -> Iterator[None]:
    with small_parts(1500):
        yield


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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("n_workers", [2, 4])
def test_any_number_of_processes_makes_the_same_dataset(tmp_path: Path, n_workers: int) -> None:
    for name, options in write_inputs(tmp_path).items():
        expected = prepared(tmp_path, f"{name}-1", *options)
        with small_tasks(1000):
            several = [*options, f"--preprocessing.workers={n_workers}"]
            assert prepared(tmp_path, f"{name}-{n_workers}", *several) == expected, name


def check_kills(place: Path, kill: Kill, n_kills: int, n_workers: int) -> None:
    """After `n_kills`, in one preparation after another, each dataset is that of a preparation without any."""
    options = write_inputs(place)["k-core"]
    expected = prepared(place, "whole", *options)
    folder, n_done = place / "killed", 0
    while n_done < n_kills:
        kills = [kill] * min(5, n_kills - n_done)
        n_done += kill_on_the_way(folder, [*options, f"--preprocessing.workers={n_workers}"], kills, seed=n_done)
        assert contents(folder) == expected


@pytest.mark.parametrize(("n_kills", "n_workers"), [long(25, 1), long(25, 2)])
def test_after_kills_of_the_driver_finished_tasks_are_not_done_again(
    tmp_path: Path, n_kills: int, n_workers: int
) -> None:
    check_kills(tmp_path, end_driver, n_kills, n_workers)


@pytest.mark.parametrize("n_kills", [1, long(50)])
def test_after_kills_of_workers_finished_tasks_are_not_done_again(tmp_path: Path, n_kills: int) -> None:
    check_kills(tmp_path, end_local_worker, n_kills, n_workers=2)


DIES = """
import os, signal, sys
import preprocessing
from bert4rec.prepare import stages

def dying(task, folder, arguments, run_task=stages.run_task):
    return os.kill(os.getpid(), signal.SIGKILL) if folder.name == "order-000000" else run_task(task, folder, arguments)

stages.run_task = dying
preprocessing.main(sys.argv[1:])
"""


@pytest.mark.long
def test_other_settings_and_other_items_do_not_take_what_a_killed_run_has_left(tmp_path: Path) -> None:
    options, folder = write_inputs(tmp_path)["features"], tmp_path / "killed"
    items = pl.read_parquet(tmp_path / "items.parquet")
    for changed in ([], ["--preprocessing.seed=7"]):
        assert start_driver(folder, *options, code=DIES).wait(60) == -signal.SIGKILL
        assert done_tasks(folder)
        if not changed:  # then the file of the items does
            more = items.with_columns(pl.col("item") + 1000)
            pl.concat([items, more]).write_parquet(tmp_path / "items.parquet")
        expected = prepared(tmp_path, f"whole-{len(changed)}", *options, *changed)
        assert prepared(tmp_path, "killed", *options, *changed) == expected


DIES_WHILE_IT_REMOVES = """
import os, shutil, signal, sys
import preprocessing

def dying(folder, *_, remove=shutil.rmtree, **options):
    if ".work-" not in folder.name:
        return remove(folder, **options)
    for path in folder.glob("*/*.*"):
        if path.suffix != ".json":
            path.unlink()
    os.kill(os.getpid(), signal.SIGKILL)

shutil.rmtree = dying
preprocessing.main(sys.argv[1:])
"""


def test_what_was_being_removed_is_not_used(tmp_path: Path) -> None:
    options, folder = write_inputs(tmp_path)["text"], tmp_path / "killed"
    expected = prepared(tmp_path, "whole", *options)
    assert start_driver(folder, *options, code=DIES_WHILE_IT_REMOVES).wait(60) == -signal.SIGKILL
    assert prepared(tmp_path, "killed", *options) == expected


@pytest.mark.long
def test_two_at_once_make_the_same_dataset(tmp_path: Path) -> None:
    options, folder = write_inputs(tmp_path)["text"], tmp_path / "shared"
    expected = prepared(tmp_path, "whole", *options)
    both = [start_driver(folder, *options) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert contents(folder) == expected
    assert [path.name for path in tmp_path.glob(".shared*")] == []


def test_a_process_that_extends_another_dataset_of_the_same_name_reads_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = write_inputs(tmp_path)["text"]
    for place, changed in (("a", "1"), ("b", "2")):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        prepared(Path(), "old", *options, f"--preprocessing.seed={changed}")
        prepared(Path(), "new", *options[:2], f"--preprocessing.seed={changed}", "--data.extends=old")
        assert open_dataset(Path("new")).originals(9) == open_dataset(Path("old")).originals(9)
