"""The stand-in for a GPU refuses what a GPU refuses, and sees what a GPU does not show."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bert4rec.commands.doctor import devices
from bert4rec.runtime.processes import this_process
from tests.launch import ROOT

pytestmark = pytest.mark.cuda


@pytest.fixture
def device() -> Any:
    """The compiled module."""
    if "tests.stand_in.cuda" not in sys.modules:
        pytest.skip("runs with `-p tests.stand_in.plugin`")
    return sys.modules["tests.stand_in.cuda"].device


@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_tensors_of_two_devices_do_not_mix(device: Any, other: str) -> None:
    device.set_device_count(2)
    try:
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.ones(3, device="cuda:0") + torch.ones(3, device=other)
    finally:
        device.set_device_count(1)
    assert (torch.ones(3, device="cuda") + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a number may mix


def test_gradients_and_views_are_on_the_device(device: Any) -> None:
    weights = torch.arange(6.0, device="cuda").view(2, 3).requires_grad_()
    (weights.T[1:] ** 2).sum().backward()
    assert weights.grad is not None
    assert weights.grad.is_cuda
    assert weights.grad.tolist() == [[0, 2, 4], [0, 8, 10]]
    rows = torch.zeros(2, 2, device="cuda")
    rows[1].fill_(3)
    assert rows.tolist() == [[0, 0], [3, 3]]


def test_sparse_products_are_those_of_the_cpu(device: Any) -> None:
    matrix = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 2]), torch.tensor([1.0, 2.0]), (2, 3))
    dense = torch.arange(6.0).view(3, 2)
    assert torch.equal(torch.sparse.mm(matrix.to("cuda"), dense.to("cuda")).cpu(), torch.sparse.mm(matrix, dense))


def test_pinned_memory_is_told_from_other_memory(device: Any) -> None:
    pinned = torch.ones(4).pin_memory()
    assert pinned.is_pinned()
    assert pinned[2:].is_pinned()
    assert not torch.ones(4).is_pinned()


def test_a_stream_that_does_not_wait_for_the_writer_is_found(device: Any) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        values = torch.ones(4, device="cuda")
    values.add(1)
    assert "without waiting for it" in device.take_faults()[0]
    torch.cuda.current_stream().wait_stream(side)
    values.add(1)
    values.record_stream(torch.cuda.current_stream())
    del values
    assert not device.take_faults()


def test_a_missing_record_stream_is_found(device: Any) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        values = torch.ones(4, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    values.add(1)
    del values
    assert "record_stream is missing" in device.take_faults()[0]


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
        if waits:
            with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
                operation(values)
        else:
            operation(values)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_tf32_rounds_products(device: Any) -> None:
    values = torch.full((2, 2), 1 + 2**-12, device="cuda")
    exact = (values @ values).tolist()
    torch.set_float32_matmul_precision("high")
    try:
        assert (values @ values).tolist() == [[2, 2], [2, 2]] != exact
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_doctor_names_the_gpus(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = "a GPU of host memory (80 GB)"
    assert devices() == ("devices", one, "")
    device.set_device_count(2)
    try:
        assert devices() == ("devices", f"{one}, {one}", "")
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: False)
        assert "GPUs 0 and 1 cannot reach" in devices().text
    finally:
        device.set_device_count(1)


@pytest.mark.usefixtures("device")
def test_processes_that_share_a_gpu_use_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert this_process("auto").device.type == "cpu"


def skipped(folder: Path, cuda: str, **variables: str) -> str:
    """Return what `make test-stand-in` prints beside a torch of this version of CUDA."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "version.py").write_text(f"from typing import Optional\ncuda: Optional[str] = {cuda}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.stand_in.plugin", "-m", "cuda", __file__], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"} | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_compiler_the_tests_are_skipped(tmp_path: Path) -> None:
    assert "needs g++" in skipped(tmp_path, "None", CXX="no-such-compiler")


def test_beside_a_torch_of_cuda_the_tests_are_skipped(tmp_path: Path) -> None:
    assert "built for CUDA" in skipped(tmp_path, "'13.0'")
