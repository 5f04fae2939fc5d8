"""The host as it is, and as it is where something is broken."""

import os
import resource
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bert4rec.doctor import host


def test_this_host_can_train(tmp_path: Path) -> None:
    found = {finding.name: finding for finding in host.host(tmp_path / "runs" / "not there yet")}
    assert list(found) == ["devices", "load", "shared memory", "open files", "host name", "disk", "clock"]
    assert all(finding.is_good for finding in found.values()), found
    assert found["disk"].text.endswith(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no GPU, though torch is built for CUDA" in host.devices().text
    assert not host.devices().is_good
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    gpu = SimpleNamespace(name="GPU", total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: gpu)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: True)
    assert str(host.devices()) == "good  devices: GPU (80 GB), GPU (80 GB), GPU (80 GB)"
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a, b) != (1, 2))
    assert "GPUs 1 and 2 cannot reach each other's memory; where NCCL hangs, NCCL_P2P_DISABLE=1" in str(host.devices())


@pytest.mark.parametrize(("load", "is_slow"), [(0.3, False), (2.5, True)])
def test_the_load_of_other_programs_is_named(monkeypatch: pytest.MonkeyPatch, load: float, is_slow: bool) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
    assert host.load().is_good  # it passes
    assert ("several times as long" in host.load().text) == is_slow


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(host, "SharedMemory", refuse)
        assert str(host.shared_memory()).startswith(
            "BAD   shared memory: no 64 MiB: No space left on device; start the"
        )
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    assert "1 MiB free in /dev/shm, less than 64" in host.shared_memory().text


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"soft": 1024, "hard": 1024}
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits.values()))
    assert str(host.open_files(309)) == "good  open files: 1,024 a process, enough for 309 processes"
    assert str(host.open_files(310)) == (
        "BAD   open files: at most 1,024 a process, less than the 1,027 of a training on 310 processes; raise the hard "
        "limit: `ulimit -Hn`, LimitNOFILE= of a service, or /etc/security/limits.conf"
    )
    limits["hard"] = 4096  # to which a training raises the soft one
    assert host.open_files(512).is_good
    limits["hard"] = resource.RLIM_INFINITY
    assert str(host.open_files(10**6)) == "good  open files: no limit"


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "nowhere.invalid")
    found = host.host_name()
    assert found.text.startswith("nowhere.invalid does not resolve: ")
    assert found.advice.startswith('add "127.0.0.1 nowhere.invalid" to /etc/hosts')


def test_a_full_disk_and_one_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(host.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**7))
        assert host.disk(tmp_path).text == f"0.01 GB free at {tmp_path}"
        assert not host.disk(tmp_path).is_good

    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(host.tempfile, "TemporaryFile", refuse)
    assert str(host.disk(tmp_path)) == (
        f"BAD   disk: {tmp_path}: cannot be written: Read-only file system; name another folder with --run.dir"
    )


def test_clocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 60)
    assert str(host.clock(tmp_path)) == "BAD   clock: differs by +60 s from that of the disk; synchronize both by NTP"
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert str(host.clock(tmp_path)).startswith("BAD   clock: 1970-01-01 00:00; set it: ")
    assert os.listdir(tmp_path) == []
