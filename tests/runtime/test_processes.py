"""Devices and processes."""

import random
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bert4rec.runtime.errors import RunInterruptedError, SettingsError
from bert4rec.runtime.processes import (
    choose_device,
    group_of_one,
    has_own_gpu,
    process_seed,
    rendezvous,
    seed_everything,
    this_process,
)
from tests.fixture_types import Capture, Patch


@pytest.mark.parametrize(
    ("wanted", "n_gpus", "local_rank", "local_world_size", "expected"),
    [("auto", 0, 1, 2, "cpu"), ("auto", 2, 1, 2, "cuda:1"), ("cpu", 2, 1, 2, "cpu"), ("cuda", 4, 3, 4, "cuda:3")],
)
def test_each_process_of_a_host_has_its_own_gpu(
    monkeypatch: Patch, wanted: str, n_gpus: int, local_rank: int, local_world_size: int, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    assert choose_device(wanted, local_rank=local_rank, local_world_size=local_world_size) == torch.device(expected)


def as_process(monkeypatch: Patch, rank: int, world_size: int, **variables: object) -> None:
    """Set the variables of a launcher, for a process of one host."""
    sizes = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    for name, value in (sizes | variables).items():
        monkeypatch.setenv(name, str(value))


def test_more_processes_than_gpus_are_refused_and_auto_goes_to_cpu_aloud(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SettingsError, match=r"parallelism\.device"):
        choose_device("cuda", local_rank=0, local_world_size=2)
    for rank in (0, 1):
        as_process(monkeypatch, rank, 2)
        world = this_process("auto")
        assert (world.rank, world.world_size, world.device.type) == (rank, 2, "cpu")
    (line,) = capsys.readouterr().out.splitlines()
    assert "2 processes" in line
    monkeypatch.delenv("RANK")  # some platforms set WORLD_SIZE for every program: a lone process does not wait
    assert this_process("cpu").world_size == 1


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ("ABC", ["cuda:0"] * 3),  # each task has its own, which it calls 0
        ("AAA", ["cpu"] * 3),
        ("ABB", ["cpu"] * 3),
        ("AB-", ["cpu"] * 3),  # one of them has lost its own
    ],
)
def test_one_gpu_that_a_process_sees_is_its_own_where_no_other_sees_it(
    monkeypatch: Patch, seen: str, expected: list[str]
) -> None:
    """Three processes of one host, by what they publish in one store."""
    variables: Any = threading.local()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(seen[variables.rank] != "-"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=seen[variables.rank]))
    store = dist.HashStore()

    def decide(rank: int) -> bool:
        variables.rank = rank
        return has_own_gpu(store, len(seen))

    with ThreadPoolExecutor(len(seen)) as threads:
        answers = list(threads.map(decide, range(len(seen))))
    assert answers == [device != "cpu" for device in expected]
    monkeypatch.setattr("bert4rec.runtime.processes.has_own_gpu", lambda *_: answers[0])
    for rank, device in enumerate(expected):
        variables.rank = rank
        as_process(monkeypatch, rank, 3)
        assert str(this_process("auto", store).device) == device


def test_a_process_that_does_not_say_which_gpu_it_sees_is_missed(monkeypatch: Patch) -> None:
    monkeypatch.setattr("bert4rec.runtime.processes.SECONDS_TO_COME", 0.1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RunInterruptedError, match="2 processes"):
        has_own_gpu(dist.HashStore(), 2)


def test_a_process_may_open_as_many_files_as_the_system_lets_it() -> None:
    program = (
        "import resource, sys; _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, min(hard, 1024)))\n"
        "from bert4rec.runtime.processes import allow_open_files\n"
        "allow_open_files(309); print(resource.getrlimit(resource.RLIMIT_NOFILE)); allow_open_files(512)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "(1024, 1024)\n"
    assert "1,633" in done.stderr.splitlines()[-1]


def test_no_two_processes_of_any_two_runs_draw_the_same() -> None:
    def draws(seed: int, rank: int) -> tuple[float, float, float]:
        seed_everything(seed, rank)
        return float(torch.rand(1)), float(np.random.random()), random.random()

    assert len({process_seed(seed, rank) for seed in range(200) for rank in range(200)}) == 200 * 200
    every = [draws(seed, rank) for seed in range(3) for rank in range(3)]
    assert len({draw for three in every for draw in three}) == 3 * 9
    assert draws(2, 2) == every[-1]


@pytest.fixture
def port() -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def test_processes_that_cannot_meet_are_one_line_after_one_that_says_so(
    monkeypatch: Patch, capsys: Capture, port: int
) -> None:
    monkeypatch.setattr("bert4rec.runtime.processes.SECONDS_OF_SILENCE", 0.2)
    monkeypatch.setattr("bert4rec.runtime.processes.SECONDS_TO_COME", 3.0)
    as_process(monkeypatch, 1, 2, MASTER_ADDR="localhost", MASTER_PORT=port)
    with pytest.raises(RunInterruptedError, match=rf"localhost:{port} .*--master-addr"):
        rendezvous()
    (line,) = capsys.readouterr().out.splitlines()
    assert f"localhost:{port}" in line


def test_the_first_process_waits_for_nobody(monkeypatch: Patch, port: int) -> None:
    """It is asked later who has come."""
    as_process(monkeypatch, 0, 2, MASTER_ADDR="localhost", MASTER_PORT=port)
    store, rank, world_size = rendezvous()
    assert (rank, world_size) == (0, 2)
    store.set("here", "1")
    assert store.get("here") == b"1"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2", "MASTER_PORT": ""}, "MASTER_ADDR, MASTER_PORT"),
        ({"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}, "--max_restarts"),
    ],
)
def test_a_launcher_that_cannot_do_it_is_one_line(monkeypatch: Patch, variables: dict[str, str], message: str) -> None:
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"RANK": "0", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message):
        rendezvous()


def test_a_group_of_one_ends_with_its_block_and_with_an_error() -> None:
    with pytest.raises(SettingsError, match="no"), group_of_one():  # noqa: PT012
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        raise SettingsError("no")
    assert not dist.is_initialized()
