"""The stand-in for a GPU refuses what a GPU refuses, and sees what a GPU does not show."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from bert4rec.commands.doctor import devices
from bert4rec.runtime.processes import this_process
from tests.launch import ROOT

pytestmark = pytest.mark.cuda


@pytest.fixture
def device() -> Iterator[Any]:
    """The compiled module."""
    if "tests.stand_in.cuda" not in sys.modules:
        pytest.skip("runs with `-p tests.stand_in.plugin`")
    module = sys.modules["tests.stand_in.cuda"].device
    yield module
    module.set_device_count(1)


@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_tensors_of_two_devices_do_not_mix(device: Any, other: str) -> None:
    device.set_device_count(2)
    with pytest.raises(RuntimeError):
        torch.ones(3, device="cuda:0") + torch.ones(3, device=other)
    assert (torch.ones(3, device="cuda") + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a number may mix


@pytest.mark.parametrize(
    ("waits", "records", "fault"),
    [(False, True, "without waiting for it"), (True, False, "record_stream is missing"), (True, True, "")],
)
def test_faults_of_streams_are_found(device: Any, waits: bool, records: bool, fault: str) -> None:
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(side):
        values = torch.ones(4, device="cuda")
    if waits:
        current.wait_stream(side)
    values.add(1)
    if records:
        values.record_stream(current)
    del values
    faults = device.take_faults()
    assert all(fault in text for text in faults)
    assert bool(faults) == bool(fault)


@pytest.mark.parametrize(
    ("waits", "operation"),
    [
        (True, lambda values: values.sum().item()),
        (True, lambda values: values[values > 1]),
        (True, lambda values: values.__setitem__(torch.tensor([1]), 2.0)),
        (True, lambda values: torch.tensor([1.0], device="cuda")),
        (True, lambda values: values.repeat_interleave(torch.ones(4, dtype=torch.int64, device="cuda"))),
        (False, lambda values: values.__setitem__(values > 1, 0.0)),
        (False, lambda values: torch.ones(4).pin_memory().to("cuda", non_blocking=True)),
        (False, lambda values: values.sort(stable=True)),
    ],
)
def test_waits_are_those_of_torch(device: Any, waits: bool, operation: Any) -> None:
    values = torch.ones(4, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError) if waits else nullcontext():
            operation(values)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_doctor_finds_gpus_that_cannot_reach_each_other(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device.set_device_count(2)
    assert not devices().advice
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: False)
    assert devices().advice


@pytest.mark.usefixtures("device")
def test_processes_that_share_a_gpu_use_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert this_process("auto").device.type == "cpu"


@pytest.mark.parametrize(("cuda", "compiler"), [("None", "no-such-compiler"), ("'13.0'", "g++")])
def test_without_a_compiler_or_beside_a_torch_of_cuda_the_tests_are_skipped(
    tmp_path: Path, cuda: str, compiler: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\ncuda: Optional[str] = {cuda}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.stand_in.plugin", "-m", "cuda", __file__], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "CXX": compiler}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped: ")
