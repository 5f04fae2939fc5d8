"""`bert4rec doctor`: a line a check and a status, on this machine and on broken ones."""

import os
import resource
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from bert4rec.__main__ import main
from bert4rec.commands import doctor
from bert4rec.commands.doctor import Finding
from tests.conftest import SMALL
from tests.fixture_types import Capture, Patch

OPTIONS = [f"--{key}={value}" for key, value in SMALL.items()]


@pytest.fixture
def met(monkeypatch: Patch, tmp_path: Path) -> None:
    """Two processes reach each other at once; an empty folder without a settings file."""
    monkeypatch.setattr(doctor, "all_reduce", lambda backend: Finding(backend, "met"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("met")
def test_all_is_good_on_this_machine(small_folder: Path, capsys: Capture) -> None:
    assert main(["doctor", "--processes=2", *OPTIONS, f"--data.dataset_dir={small_folder}", "--mode=ddp"]) == 0
    *lines, plan, _ = capsys.readouterr().out.splitlines()
    names = [line.partition(": ")[0] for line in lines]
    checks = ("packages", "torch, torchrec, fbgemm", "devices", "load", "shared memory", "open files", "gloo")
    assert names == [f"good  {name}" for name in checks]
    assert plan.startswith("good  plan: ")
    assert "130 x 20" in plan


@pytest.mark.usefixtures("met")
def test_a_dataset_that_is_missing_and_a_table_that_does_not_fit(
    small_folder: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    assert main(["doctor", *OPTIONS]) == 1
    assert "BAD   plan: data/synthetic: " in capsys.readouterr().out
    monkeypatch.setattr("bert4rec.runtime.memory.host_memory", lambda: 10**6)
    monkeypatch.setattr("bert4rec.runtime.memory.proportional_set_size", lambda: 10**6)
    assert main(["doctor", *OPTIONS, f"--data.dataset_dir={small_folder}"]) == 1
    assert "BAD   plan: " in capsys.readouterr().out
    assert main(["doctor", "--processes=0"]) == 2
    assert "--processes=0" in capsys.readouterr().err


@pytest.mark.usefixtures("met")
def test_checks_that_need_a_bad_one_are_left_out(monkeypatch: Patch, capsys: Capture) -> None:
    """Two processes that may open few files fail as on a broken network."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert main(["doctor"]) == 1
    _, bad, following = capsys.readouterr().out.partition("BAD   open files: ")
    assert (bad != "", "gloo" in following) == (True, False)
    monkeypatch.setattr(doctor, "matching", lambda: Finding("torch", "broken", "make setup"))
    assert main(["doctor"]) == 1
    assert "BAD   torch: broken; make setup" in capsys.readouterr().out.splitlines()[-2]


def test_another_version_and_a_missing_package_are_named(monkeypatch: Patch) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == "polars":
            raise metadata.PackageNotFoundError
        return "2.0.0+cpu" if name == "torch" else installed(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    found = doctor.packages()
    named = ["torch 2.0.0" in found.text, "polars" in found.text, "torchrec" in found.text]
    assert (named, found.advice != "") == ([True, True, False], True)


@pytest.mark.parametrize("error", [OSError("undefined symbol: _ZN3c10\nat x"), AttributeError()])
def test_an_fbgemm_that_was_built_for_another_torch(monkeypatch: Patch, error: Exception) -> None:
    found = {"torch": torch, "torchrec": torch, "fbgemm_gpu": error}
    monkeypatch.setattr(doctor, "import_module", Mock(side_effect=found.values()))
    problem = (str(error) or "AttributeError").splitlines()[0]
    assert doctor.matching()[1:] == (f"fbgemm_gpu does not load: {problem}", doctor.SETUP)


@pytest.mark.parametrize(
    ("cuda", "driver", "needed"),
    [("13.0", None, "580"), ("13.0", "535.129.03", "580"), ("13.0", "580.65.06", ""), ("12.6", "535.129.03", "")],
)
def test_why_torch_finds_no_gpu(monkeypatch: Patch, tmp_path: Path, cuda: str, driver: str | None, needed: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / "version")
    if driver:
        doctor.DRIVER.write_text(f"{driver}\n")
    found = doctor.devices()
    assert ("--parallelism.device=cpu" in found.advice, (needed or "nvidia-smi") in str(found)) == (True, True), found


@pytest.fixture
def gpus(monkeypatch: Patch) -> SimpleNamespace:
    """The properties of three equal GPUs."""
    gpu = SimpleNamespace(name="GPU", total_memory=80e9, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: gpu)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: True)
    return gpu


def test_gpus_that_do_not_reach_each_other(monkeypatch: Patch, gpus: SimpleNamespace) -> None:
    assert doctor.devices() == ("devices", "GPU (80 GB), GPU (80 GB), GPU (80 GB)", "")
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a, b) != (1, 2))
    assert "GPUs 1 and 2" in doctor.devices().text
    assert "NCCL_P2P_DISABLE=1" in doctor.devices().advice


def test_the_gpus_for_which_fbgemm_has_kernels(gpus: SimpleNamespace) -> None:
    lacking = set()
    for version in ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0"):
        gpus.major, gpus.minor = map(int, version.split("."))
        if "--parallelism.device=cpu" in doctor.devices().advice:
            lacking.add(version)
    assert lacking == {"7.5", "10.3", "12.0"}


@pytest.mark.parametrize(("load", "is_slow"), [(0.3, False), (2.5, True)])
def test_the_load_of_other_programs_is_named(monkeypatch: Patch, load: float, is_slow: bool) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
    assert not doctor.load().advice  # it passes
    assert ("several times" in doctor.load().text) == is_slow


def test_no_shared_memory(monkeypatch: Patch) -> None:
    for usage, text in (({"side_effect": FileNotFoundError}, "0 MiB"), ({"return_value": Mock(free=2**20)}, "1 MiB")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", Mock(**usage))
        found = doctor.shared_memory()
        assert (text in found.text, found.advice != "") == (True, True)


def test_few_open_files(monkeypatch: Patch) -> None:
    for hard, n_processes, is_enough in (
        (1024, 309, True), (1024, 310, False), (4096, 512, True), (resource.RLIM_INFINITY, 10**6, True),
    ):  # fmt: skip
        limits = (1024, hard)  # to which a training raises the soft one
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        found = doctor.open_files(n_processes)
        assert (found.advice == "", "1,027" in found.text) == (is_enough, n_processes == 310)


def test_two_processes_never_meet_or_report_their_fastest_round(monkeypatch: Patch) -> None:
    done = subprocess.CompletedProcess("torchrun", 0, f"{doctor.FASTEST}0.5\n", "")
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=[subprocess.TimeoutExpired("python", 120), done]))
    never, met = doctor.all_reduce("nccl"), doctor.all_reduce("gloo")
    assert ("120 s" in never.text, "NCCL_P2P_DISABLE=1" in never.advice) == (True, True)
    assert ("16 MiB in " in met.text, met.advice) == (True, "")


@pytest.mark.long
def test_two_processes_meet() -> None:
    found = doctor.all_reduce("gloo")
    assert ("16 MiB in " in found.text, found.advice) == (True, "")


@pytest.mark.long
def test_an_interface_that_is_not_there(monkeypatch: Patch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    assert "GLOO_SOCKET_IFNAME" in doctor.all_reduce("gloo").advice
