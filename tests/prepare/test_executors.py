"""Tasks that write files, on each executor: any order, killed workers, killed drivers, and errors as they were raised.

The tests on Ray are `make test-ray`: at most two workers of a CPU each.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from bert4rec.prepare import executors
from bert4rec.prepare.executors import WorkerDiedError, open_executor
from bert4rec.runtime.errors import ColumnUnknownError, DataError, SettingsError
from bert4rec.runtime.startup import usable_cores
from tests.conftest import long
from tests.launch import ROOT, Launched, start
from tests.prepare.tasks import (
    KILLED,
    MEMORY,
    SLEEPS,
    die,
    fail,
    fail_unpicklably,
    fail_until,
    sleep,
    wait_for,
    write,
    write_if_tried_before,
    write_with_more_memory,
)


# --- The executors ----------------------------------------------------------------------------------------------------
@contextmanager
def on_ray(n_workers: int, nodes: int = 0, planned: int = MEMORY, **settings: Any) -> Iterator[tuple[Executor, Any]]:
    """An executor on a Ray of this machine, or on a cluster of so many `nodes`, each a raylet with its own CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        if not nodes:
            with open_executor("ray", n_workers, memory=planned) as executor:
                yield executor, None
            return
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            for _ in range(nodes):
                cluster.add_node(
                    **{"num_cpus": 1, "object_store_memory": 75 << 20, "include_dashboard": False} | settings
                )
            patch.setenv("RAY_ADDRESS", cluster.address)
            with open_executor("ray", n_workers, memory=planned) as executor:
                yield executor, cluster
        finally:
            cluster.shutdown()


@contextmanager
def executor_of(engine: str, n_workers: int) -> Iterator[Executor]:
    if engine == "ray":
        with on_ray(n_workers) as (executor, _):
            yield executor
    else:
        with open_executor("local", n_workers, memory=MEMORY) as executor:
            yield executor


def of_ray(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.ray)


all_executors = pytest.mark.parametrize(
    ("engine", "n_workers"), [("local", 1), ("local", 2), of_ray("ray", 1), of_ray("ray", 2)]
)
other_processes = pytest.mark.parametrize(("engine", "n_workers"), [("local", 2), of_ray("ray", 2)])


def check_files(folder: Path, n: int) -> None:
    """There is a file of each number, and no temporary one."""
    written = {path.name: path.read_text() for path in folder.iterdir() if path.name.isdecimal()}
    assert written == {str(number): str(number) for number in range(n)}
    assert not [*folder.glob(".*")]


# --- What a caller sees -----------------------------------------------------------------------------------------------
@all_executors
def test_results_and_errors_are_those_of_the_tasks(engine: str, n_workers: int, tmp_path: Path) -> None:
    with executor_of(engine, n_workers) as executor:
        futures = {executor.submit(write, tmp_path, number): number for number in range(8)}
        done = {futures[future]: future.result() for future in as_completed(futures)}
        assert {number: result["number"] for number, result in done.items()} == {number: number for number in range(8)}
        assert len({result["pid"] for result in done.values()}) <= n_workers
        assert (os.getpid() in {result["pid"] for result in done.values()}) == ((engine, n_workers) == ("local", 1))
        check_files(tmp_path, 8)

        unknown = ColumnUnknownError("log.csv", "user", ["a", "b"], ["a"], ["--user=a"], "a has 3 values")
        for error in (DataError("log.csv: no rows"), unknown, KeyError("a")):
            raised = executor.submit(fail, error).exception()
            assert type(raised) is type(error)
            assert (str(raised), raised.args) == (str(error), error.args)
        assert executor.submit(fail, unknown).exception().with_command(["x"]) == unknown.with_command(["x"])  # type: ignore[union-attr]
        assert "no such bucket (7)" in str(executor.submit(fail_unpicklably).exception())

        assert executor.submit(fail_until, tmp_path, 4).result() == 4
        (tmp_path / "more").mkdir()
        assert isinstance(executor.submit(fail_until, tmp_path / "more", 5).exception(), TimeoutError)


@pytest.mark.parametrize(
    ("n_bytes", "free", "is_here"), [(0, 10**10, True), (10**9, 10**10, False), (10**9, 10**9, True)]
)
def test_a_large_log_has_a_worker_for_each_core_that_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int, free: int, is_here: bool
) -> None:
    monkeypatch.setattr(executors, "usable_cores", lambda: 2)
    monkeypatch.setattr(executors, "host_memory", lambda: free)
    with open_executor("local", "auto", n_bytes=n_bytes, memory=MEMORY) as executor:
        assert (executor.submit(write, tmp_path, 0).result()["pid"] == os.getpid()) == is_here


def test_workers_share_the_cores(tmp_path: Path) -> None:
    with executor_of("local", 2) as executor:
        assert executor.submit(write, tmp_path, 0).result()["threads"] == max(1, usable_cores() // 2)


@other_processes
def test_a_killed_worker_is_replaced(engine: str, n_workers: int, tmp_path: Path) -> None:
    with executor_of(engine, n_workers) as executor:
        futures = [executor.submit(write, tmp_path, number) for number in range(3)]
        futures += [executor.submit(write_if_tried_before, tmp_path, 3)]
        futures += [executor.submit(write, tmp_path, number) for number in range(4, 6)]
        os.kill(wait_for(tmp_path / KILLED.format(3)), signal.SIGKILL)
        assert [future.result()["number"] for future in futures] == [*range(6)]
    check_files(tmp_path, 6)


@other_processes
def test_a_task_that_always_kills_its_worker_ends_with_one_line(engine: str, n_workers: int, tmp_path: Path) -> None:
    with executor_of(engine, n_workers) as executor:
        dead, alive = executor.submit(die), executor.submit(write, tmp_path, 0)
        with pytest.raises(WorkerDiedError, match=r"worker of die .* memory; type --preprocessing.workers=1$") as error:
            dead.result()
        assert alive.result()["number"] == 0
    assert "\n" not in str(error.value)
    assert error.value.status == 1


@other_processes
def test_an_error_in_the_block_ends_running_and_waiting_tasks(engine: str, n_workers: int, tmp_path: Path) -> None:
    with suppress(DataError), executor_of(engine, n_workers) as executor:
        futures = [executor.submit(sleep, tmp_path, number) for number in range(4)]
        workers = [wait_for(tmp_path / SLEEPS.format(number)) for number in range(2)]
        raise DataError("no rows")
    assert all(future.done() for future in futures)
    wait_for_end(workers)


# --- Signals to the driver --------------------------------------------------------------------------------------------
DRIVER = """\
import sys
from concurrent.futures import wait
from pathlib import Path
from bert4rec.prepare.executors import open_executor
from tests.prepare.tasks import MEMORY, sleep

if __name__ == "__main__":
    try:
        with open_executor(sys.argv[1], 2, memory=MEMORY) as executor:
            wait([executor.submit(sleep, Path(sys.argv[2]), number) for number in range(3)])
    except KeyboardInterrupt:
        sys.exit(130)
"""


def wait_for_end(pids: list[int]) -> None:
    left = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=30)[1]
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [long(signal.SIGINT), long(signal.SIGTERM), signal.SIGKILL])
@pytest.mark.parametrize("engine", ["local", of_ray("ray")])
def test_workers_end_with_their_driver(engine: str, number: signal.Signals, tmp_path: Path) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="make test-long runs without it")
    (tmp_path / "driver.py").write_text(DRIVER)
    driver = Launched([sys.executable, str(tmp_path / "driver.py"), engine, str(tmp_path)], PYTHONPATH=str(ROOT))
    workers = [wait_for(tmp_path / SLEEPS.format(each)) for each in range(2)]
    if number == signal.SIGINT:  # Ctrl-C goes to the whole group
        os.killpg(driver.process.pid, number)
    else:
        driver.process.send_signal(number)
    is_handled = number == signal.SIGINT or (engine == "ray" and number == signal.SIGTERM)
    assert driver.end(30) == (128 + number if is_handled else -number)
    wait_for_end(workers)
    assert "Traceback" not in driver.output


@pytest.mark.ray
def test_a_program_that_is_ended_while_ray_starts_leaves_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    driver = Launched([sys.executable, str(tmp_path / "driver.py"), "ray", str(tmp_path)], PYTHONPATH=str(ROOT))
    while not (started := psutil.Process(driver.process.pid).children(recursive=True)):
        time.sleep(0.01)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.end(30) == 128 + signal.SIGTERM
    wait_for_end([process.pid for process in started])


# --- Ray --------------------------------------------------------------------------------------------------------------
def test_without_ray_one_line_says_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(name='ray')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = "from bert4rec.prepare.executors import open_executor; open_executor('ray', 1, memory=1).__enter__()"
    done = start([sys.executable, "-c", command], PYTHONPATH=path)
    assert done.stderr.splitlines()[-1].endswith(
        'ray": the package ray is not installed; type pip install "bert4rec-torchrec[ray]"'
    )


@pytest.mark.ray
@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        (
            "RAY_ADDRESS",
            "127.0.0.1:1",
            r"RAY_ADDRESS=127\.0\.0\.1:1: .*; start this version of Ray there, .* variable$",
        ),
        ("RAY_TMPDIR", "/dev/null", r"does not start on this machine: .*; .* --preprocessing.engine=local$"),
    ],
)
def test_a_ray_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, line: str) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=line) as error:
        open_executor("ray", 1, memory=MEMORY).__enter__()
    assert "\n" not in str(error.value)


@pytest.mark.ray
def test_a_node_that_is_killed_is_done_without(tmp_path: Path) -> None:
    with on_ray(2, nodes=2) as (executor, cluster):
        futures = [executor.submit(write_if_tried_before, tmp_path, number) for number in range(2)]
        workers = [wait_for(tmp_path / KILLED.format(number)) for number in range(2)]
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        while all(map(psutil.pid_exists, workers)):  # it ends without its node
            time.sleep(0.1)
        (other,) = filter(psutil.pid_exists, workers)
        os.kill(other, signal.SIGKILL)
        assert [future.result()["number"] for future in futures] == [0, 1]
    check_files(tmp_path, 2)


@pytest.mark.ray
def test_a_task_that_is_killed_for_memory_gets_twice_as_much(tmp_path: Path) -> None:
    """Ray's own monitor kills one of two tasks when both together use 3 GB."""
    planned, host = 500 << 20, psutil.virtual_memory()
    threshold = (host.total - host.available + (4 << 30)) / host.total  # Ray itself takes 1 GB
    system = {"memory_usage_threshold": threshold, "memory_monitor_refresh_ms": 50, "min_memory_free_bytes": -1}
    node = {"num_cpus": 2, "memory": 2 * planned, "_system_config": system}
    with on_ray(2, nodes=1, planned=planned, **node) as (executor, _):
        futures = [executor.submit(write_with_more_memory, tmp_path, number, planned) for number in range(2)]
        assert [future.result() for future in futures] == [None, None]
    check_files(tmp_path, 2)
    tries = {path.name for path in tmp_path.glob("try-*")}
    assert {f"try-{number}-{planned}" for number in range(2)} < tries
    assert tries & {f"try-{number}-{2 * planned}" for number in range(2)}
