"""Memory as the system counts it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bert4rec.runtime import memory
from bert4rec.runtime.memory import (
    Memory,
    _free_of_group,
    available,
    host_memory,
    proportional_set_size,
    release_free_memory,
)

MIB = 2**20


PEAK = """
import threading, torch
from bert4rec.runtime.memory import PeakMemory
with PeakMemory(torch.device("cpu")) as peak:
    before = peak.read()
    block = bytearray(b"x" * 100 * 2**20)
    during = peak.read()
    del block
    print(during - before, peak.read() - during)
    (watch,) = (thread for thread in threading.enumerate() if thread.name == "peak memory")
watch.join(timeout=200)
assert not watch.is_alive()
"""


def test_the_peak_is_not_forgotten() -> None:
    """Nor is there anybody left who looks for ever. In a process of its own, where nothing else is freed meanwhile."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PEAK], check=True, capture_output=True, text=True)
    more, later = map(int, done.stdout.split())
    assert more > 90 * MIB
    assert later >= 0


STEPS_OF_EVER_OTHER_SIZES = """
import ctypes, resource, torch
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


def test_steps_of_ever_other_sizes_leave_nothing_behind_and_find_their_memory_again() -> None:
    """oneDNN's kernels would be 6 MB; 24 MB of new pages at each step would be 600,000 faults."""
    command = [sys.executable, "-W", "ignore", "-c", STEPS_OF_EVER_OTHER_SIZES]
    n_bytes, n_faults = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert n_bytes < MIB
    assert n_faults < 50_000  # a block may move once


LARGE_TENSOR = """
import resource, torch, bert4rec
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(20_000_000)  # 80 MB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_large_tensors_take_large_pages() -> None:
    """80 MB are 20,000 pages of 4 KiB."""
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this system has no transparent huge pages")
    command = [sys.executable, "-W", "ignore", "-c", LARGE_TENSOR]
    assert int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 2_000


def test_freed_memory_between_what_is_still_used_goes_back() -> None:
    blocks = [bytearray(b"x" * 64 * 1024) for _ in range(3200)]
    full = proportional_set_size()
    del blocks[1::2], blocks[:-1]
    release_free_memory()
    assert full - proportional_set_size() > 150 * MIB


def test_a_process_may_take_its_share_of_what_its_host_has_left_and_what_it_has_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert host_memory() > 100 * MIB
    monkeypatch.setattr(memory, "host_memory", lambda: 4000)
    monkeypatch.setattr(memory, "proportional_set_size", lambda: 70)
    assert available(torch.device("cpu"), 4) == Memory(host=1070, device=None)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_limits_of_control_groups_count(tmp_path: Path) -> None:
    """A limit holds for all below it; pages that were only read from files can be had back."""
    write(tmp_path / "job", memory__max="1000\n", memory__current="700\n", memory__stat="anon 5\ninactive_file 300\n")
    write(tmp_path / "job" / "step", memory__max="max\n")
    assert list(_free_of_group("0::/job/step\n", tmp_path)) == [600]
    assert list(_free_of_group("0::/\n", tmp_path)) == []


def test_the_limits_of_version_1_count(tmp_path: Path) -> None:
    files = {"memory__limit_in_bytes": "500\n", "memory__usage_in_bytes": "450\n"}
    write(tmp_path / "memory" / "job", **files, memory__stat="cache 9\ntotal_inactive_file 50\n")
    groups = "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n"
    assert list(_free_of_group(groups, tmp_path)) == [100]


def test_a_group_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, memory__max="1000", memory__current="1200", memory__stat="")
    assert list(_free_of_group("0::/../..", tmp_path)) == [0]
