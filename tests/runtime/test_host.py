"""Memory and cores as the system and its control groups grant them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bert4rec.runtime import memory, startup
from bert4rec.runtime.host import _free_of_group, host_memory
from bert4rec.runtime.memory import Memory, available, proportional_set_size, release_free_memory
from bert4rec.runtime.startup import _limits, set_thread_defaults, threads_of_process, usable_cores
from tests.checks import Patch

MIB = 2**20

PROGRAM = """
import ctypes, resource, threading, torch, bert4rec
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(20_000_000)  # 80 MB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

from bert4rec.runtime.memory import PeakMemory
with PeakMemory(torch.device("cpu")) as peak:
    before = peak.read()
    block = bytearray(b"x" * 100 * 2**20)
    during = peak.read()
    del block
    print(during - before, peak.read() - during)
    (watch,) = (thread for thread in threading.enumerate() if thread.name == "peak memory")
watch.join(timeout=1100)
assert not watch.is_alive()

from bert4rec.runtime.memory import compile_few_kernels, use_memory_again
compile_few_kernels(precision="fp32")
use_memory_again()
class Heap(ctypes.Structure):  # malloc.h: struct mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in "arena b s h m u f used free k".split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
def step(n):
    values = torch.ones(n, 64, requires_grad=True)
    torch.nn.functional.gelu(values).sum().backward()
    torch.ones(6_000_000)  # 24 MB
step(999)
used, faults = libc.mallinfo2().used, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for n in range(100, 200):
    step(n)
print(libc.mallinfo2().used - used, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


def test_peak_memory_large_pages_and_memory_that_is_used_again() -> None:
    """A new process frees nothing else meanwhile."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    numbers = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    faults_of_80_mb, more_at_peak, later, kept_bytes, faults_of_steps = numbers
    assert more_at_peak > 90 * MIB
    assert later >= 0  # the peak is not forgotten
    assert kept_bytes < MIB  # oneDNN's kernels would be 6 MB
    assert faults_of_steps < 50_000  # a block may move once; 24 MB of new pages at each step would be 600,000
    has_large_pages = "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    assert faults_of_80_mb < 2_000 or not has_large_pages  # of 20,000 pages of 4 KiB


def test_freed_memory_between_what_is_still_used_goes_back() -> None:
    blocks = [bytearray(b"x" * 64 * 1024) for _ in range(3200)]
    full = proportional_set_size()
    del blocks[1::2], blocks[:-1]
    release_free_memory()
    assert full - proportional_set_size() > 150 * MIB


def test_a_process_may_take_its_share_of_the_free_memory_and_what_it_has(monkeypatch: Patch) -> None:
    assert host_memory() > 100 * MIB
    monkeypatch.setattr(memory, "host_memory", lambda: 4000)
    monkeypatch.setattr(memory, "proportional_set_size", lambda: 70)
    assert available(torch.device("cpu"), 4) == Memory(host=1070, device=None)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_memory_limits_of_control_groups_count(tmp_path: Path) -> None:
    """A limit holds for all below it; pages that were only read from files are free."""
    write(tmp_path / "job", memory__max="1000\n", memory__current="700\n", memory__stat="anon 5\ninactive_file 300\n")
    write(tmp_path / "job" / "step", memory__max="max\n")
    assert list(_free_of_group("0::/job/step\n", tmp_path)) == [600]
    assert list(_free_of_group("0::/\n", tmp_path)) == []
    files = {"memory__limit_in_bytes": "500\n", "memory__usage_in_bytes": "450\n"}  # version 1
    write(tmp_path / "memory" / "job", **files, memory__stat="cache 9\ntotal_inactive_file 50\n")
    assert list(_free_of_group("5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n", tmp_path)) == [100]
    write(tmp_path, memory__max="1000", memory__current="1200", memory__stat="")
    assert list(_free_of_group("0::/../..", tmp_path)) == [0]


def test_the_cpu_limits_of_control_groups_count(tmp_path: Path) -> None:
    write(tmp_path / "job", cpu__max="150000 100000\n")
    write(tmp_path / "job" / "step", cpu__max="max 100000\n")
    assert list(_limits("0::/job/step\n", tmp_path)) == [1.5]
    write(tmp_path / "cpu" / "old", cpu__cfs_quota_us="400000\n", cpu__cfs_period_us="100000\n")
    write(tmp_path / "cpu", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert list(_limits("5:cpu,cpuacct:/old\n4:memory:/old\n", tmp_path)) == [4.0]
    write(tmp_path / "job", cpu__max="something else")
    assert list(_limits("0::/job/step\n", tmp_path)) == []


@pytest.mark.parametrize(("limits", "expected"), [([], 8), ([1.5], 2), ([0.5], 1), ([16.0, 3.0], 3)])
def test_usable_cores(monkeypatch: Patch, limits: list[float], expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(startup, "_limits", lambda: iter(limits))
    assert usable_cores() == expected


@pytest.mark.parametrize(
    ("variables", "n_threads", "spin_count"),
    [
        ({}, 4, startup.SPIN_COUNT),
        ({"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "7"}, None, "7"),  # choices of the user
        ({"OMP_NUM_THREADS": "1", "RANK": "0", "OMP_WAIT_POLICY": "PASSIVE"}, 4, None),  # the default of torchrun
        ({"OMP_NUM_THREADS": "3", "RANK": "0"}, None, startup.SPIN_COUNT),
    ],
)
def test_threads_unless_the_user_says_otherwise(
    monkeypatch: Patch, variables: dict[str, str], n_threads: int | None, spin_count: str | None
) -> None:
    names = ("OMP_NUM_THREADS", "RANK", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "POLARS_MAX_THREADS")
    monkeypatch.setattr(os, "environ", {name: os.environ[name] for name in os.environ.keys() - names} | variables)
    monkeypatch.setattr(startup, "usable_cores", lambda: 8)
    assert threads_of_process(2) == n_threads
    assert threads_of_process(100) == (None if n_threads is None else 1)
    set_thread_defaults()
    assert os.environ.get("GOMP_SPINCOUNT") == spin_count
