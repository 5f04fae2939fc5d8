"""Devices and processes."""

import random
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bert4rec.runtime import processes
from bert4rec.runtime.errors import RunInterruptedError, SettingsError
from bert4rec.runtime.processes import (
    allow_open_files,
    choose_device,
    has_own_gpu,
    process_seed,
    rendezvous,
    seed_everything,
    this_process,
)
from tests.checks import Capture, Patch, one_line


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
    with one_line("parallelism.device", error=SettingsError):
        choose_device("cuda", local_rank=0, local_world_size=2)
    for rank in (0, 1):
        as_process(monkeypatch, rank, 2)
        world = this_process("auto")
        assert (world.rank, world.world_size, world.device.type) == (rank, 2, "cpu")
    assert len(capsys.readouterr().out.splitlines()) == 1
    monkeypatch.delenv("RANK")  # some platforms set WORLD_SIZE for every program: a lone process does not wait
    assert this_process("cpu").world_size == 1


@pytest.mark.parametrize(("seen", "is_own"), [("ABC", True), ("AAA", False), ("ABB", False), ("AB-", False)])
def test_one_gpu_that_a_process_sees_is_its_own_where_no_other_sees_it(
    monkeypatch: Patch, seen: str, is_own: bool
) -> None:
    """Three processes of one host, by what they publish in one store; one of them may have lost its GPU."""
    variables: Any = threading.local()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(seen[variables.rank] != "-"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=seen[variables.rank]))
    store = dist.HashStore()

    def decide(rank: int) -> bool:
        variables.rank = rank
        return has_own_gpu(store, len(seen))

    with ThreadPoolExecutor(len(seen)) as threads:
        assert list(threads.map(decide, range(len(seen)))) == [is_own] * 3
    monkeypatch.setattr(processes, "has_own_gpu", lambda *_: is_own)
    for rank in range(3):
        variables.rank = rank
        as_process(monkeypatch, rank, 3)
        assert str(this_process("auto", store).device) == ("cuda:0" if is_own else "cpu")  # each calls its own 0


def test_a_process_that_does_not_say_which_gpu_it_sees_is_missed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(processes, "SECONDS_TO_COME", 0.1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RunInterruptedError):
        has_own_gpu(dist.HashStore(), 2)


def test_a_process_may_open_as_many_files_as_the_system_lets_it(monkeypatch: Patch) -> None:
    limits = [(200, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    allow_open_files(309)
    assert limits[-1] == (1024, 1024)
    with one_line("", "1,633", error=SettingsError):
        allow_open_files(512)


def test_no_two_processes_of_any_two_runs_draw_the_same() -> None:
    def draws(seed: int, rank: int) -> tuple[float, float, float]:
        seed_everything(seed, rank)
        return float(torch.rand(1)), float(np.random.random()), random.random()

    assert len({process_seed(seed, rank) for seed in range(100) for rank in range(100)}) == 100 * 100
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
    monkeypatch.setattr(processes, "SECONDS_OF_SILENCE", 0.1)
    monkeypatch.setattr(processes, "SECONDS_TO_COME", 0.4)
    as_process(monkeypatch, 1, 2, MASTER_ADDR="localhost", MASTER_PORT=port)
    with one_line("", f"localhost:{port}", "--master-addr", error=RunInterruptedError):
        rendezvous()
    (line,) = capsys.readouterr().out.splitlines()
    assert f"localhost:{port}" in line


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
    with one_line("", message, error=SettingsError):
        rendezvous()
