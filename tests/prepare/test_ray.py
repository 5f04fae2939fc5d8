"""Whole preparations on Ray make the datasets of a local one: on 1 to 4 workers, on two nodes, also after kills.

`make test-ray` runs them. Constants of this process that make its tasks small are others in the workers.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import preprocessing
from tests.checks import Capture
from tests.conftest import long
from tests.engines import (
    Kill,
    arguments_of,
    end_driver,
    kill_on_the_way,
    prepared,
    start_driver,
    work_of,
    write_inputs,
)
from tests.folders import contents
from tests.launch import ROOT
from tests.preparation import small_parts, small_tasks

pytestmark = pytest.mark.ray
NODE = {"num_cpus": 1, "object_store_memory": 75 << 20, "include_dashboard": False}
ON_RAY = "--preprocessing.engine=ray"
DRAWS = random.Random(1)


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with small_tasks(1000), small_parts(1500):
        yield


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def expected(inputs: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """`expected(name)`: the files that this process alone makes of an input."""
    place, known = tmp_path_factory.mktemp("expected"), dict[str, dict[str, Any]]()

    def files(name: str) -> dict[str, Any]:
        if name not in known:
            known[name] = prepared(place, name, *inputs[name])
        return known[name]

    return files


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of a CPU each; the second may be killed."""
    pytest.importorskip("ray", reason="make test-long runs without it")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        cluster = Cluster()
        try:
            cluster.add_node(**NODE)
            add_node(cluster)
            yield cluster
        finally:
            cluster.shutdown()


def add_node(cluster: Any) -> None:
    """Add the second node; Ray ends one that needs more than 15 seconds to start, as on a busy machine."""
    for _ in range(3):
        with suppress(Exception):
            cluster.add_node(**NODE)
            return
    cluster.add_node(**NODE)


def check_all(place: Path, inputs: dict[str, list[str]], expected: Callable[[str], dict[str, Any]], n: int) -> None:
    for name, options in inputs.items():
        several = [ON_RAY, f"--preprocessing.workers={n}"]
        assert prepared(place, name, *options, *several) == expected(name), name


@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_any_number_of_workers_makes_the_same_datasets(
    tmp_path: Path, inputs: dict[str, list[str]], expected: Callable[[str], dict[str, Any]], n_workers: int,
    monkeypatch: pytest.MonkeyPatch, capsys: Capture,
) -> None:  # fmt: skip
    import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray.init("local", **NODE | {"num_cpus": n_workers}, log_to_driver=False)
    try:
        check_all(tmp_path, inputs, expected, n_workers)
        if n_workers == 2:
            check_an_error_of_a_task(tmp_path, capsys)
    finally:
        ray.shutdown()


def check_an_error_of_a_task(place: Path, capsys: Capture) -> None:
    """An error of the input in a task ends the preparation with the same line as without Ray."""
    (place / "log.csv").write_text("user,item,time\n" + "u,i,yesterday\n" * 5000)
    command = [*arguments_of(place / "refused"), f"--data.path={place / 'log.csv'}", "--data.time_column=time"]
    lines = []
    for options in ([], ["--preprocessing.workers=2"], [ON_RAY, "--preprocessing.workers=2"]):
        capsys.readouterr()
        assert preprocessing.main([*command, *options]) == 2
        lines.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("error")])
        assert [path.name for path in place.glob("*refused*")] == []
    assert len(lines[0]) == 1
    assert lines[0] == lines[1] == lines[2]


def test_two_nodes_make_the_same_datasets(
    tmp_path: Path, inputs: dict[str, list[str]], expected: Callable[[str], dict[str, Any]], cluster: Any
) -> None:
    import ray

    ray.init(cluster.address, log_to_driver=False)
    try:
        assert len(ray.nodes()) == 2
        check_all(tmp_path, inputs, expected, 2)
    finally:
        ray.shutdown()


# --- Kills ------------------------------------------------------------------------------------------------------------
def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def end_raylet(cluster: Any, _: "subprocess.Popen[bytes]") -> bool:
    """Kill the raylet of the second node, and add a new node."""
    (node,) = cluster.worker_nodes
    os.kill(raylet_of(node), signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)
    add_node(cluster)
    return True


def end_ray_worker(cluster: Any, process: "subprocess.Popen[bytes]") -> bool:
    """Kill a worker in the middle of a task."""
    while process.poll() is None:
        for node in DRAWS.sample(cluster.list_all_nodes(), 2):
            for worker in psutil.Process(raylet_of(node)).children():
                try:
                    if worker.cmdline()[0].startswith("ray::_outcome"):
                        worker.kill()
                        return True
                except (psutil.NoSuchProcess, IndexError):
                    pass
        time.sleep(0.001)
    return False


def on_cluster(kill: Callable[[Any, "subprocess.Popen[bytes]"], bool], cluster: Any) -> Kill:
    return lambda process: kill(cluster, process)


@pytest.mark.parametrize("n_kills", [6, long(50)])
def test_after_kills_of_workers_nodes_and_drivers_finished_tasks_are_not_done_again(
    tmp_path: Path, inputs: dict[str, list[str]], expected: Callable[[str], dict[str, Any]], cluster: Any, n_kills: int
) -> None:
    kinds = [on_cluster(end_ray_worker, cluster), on_cluster(end_raylet, cluster), end_driver]
    options = [*inputs["k-core"], ON_RAY, "--preprocessing.workers=2"]
    folder, n_done = tmp_path / "killed", 0
    while n_done < n_kills:
        kills = (kinds * 2)[n_done % 3 :][: min(3, n_kills - n_done)]
        n_done += kill_on_the_way(folder, options, kills, seed=n_done, RAY_ADDRESS=cluster.address)
        assert contents(folder) == expected("k-core")


LATE = """
import sys, time
import preprocessing
from bert4rec.prepare import stages

class Late:
    def __init__(self, task, shared=None):
        self.task = task

    def __call__(self, folder, arguments):
        if folder.name.startswith("order"):
            (folder.parent.parent / "started").touch()
            time.sleep(0.3)
        return stages.Timed(self.task)(folder, arguments)  # that of the worker

stages.Timed = Late
preprocessing.main(sys.argv[1:])
"""


def test_late_tasks_of_a_killed_driver_leave_nothing_behind(
    tmp_path: Path, inputs: dict[str, list[str]], cluster: Any
) -> None:
    """A new driver with other settings removes the files of the killed one while tasks of that may still run."""
    folder, options = tmp_path / "killed", [*inputs["text"], ON_RAY]
    variables = {"RAY_ADDRESS": cluster.address}
    changed = [*inputs["text"], "--preprocessing.seed=7"]
    expected = prepared(tmp_path, "whole", *changed)
    process = start_driver(folder, *options, "--preprocessing.workers=2", code=LATE, **variables)
    while not (tmp_path / "started").exists():
        assert process.poll() is None
        time.sleep(0.01)
    assert end_driver(process)
    assert len(work_of(folder)) == 1
    assert prepared(tmp_path, "killed", *changed) == expected
    time.sleep(1)
    assert [path.name for path in tmp_path.glob(".killed*")] == []
