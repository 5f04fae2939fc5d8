"""Free memory, the peak memory of a process, and settings of the allocators.

torch is imported where it is needed: a preparation does without.
"""

import ctypes
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bert4rec.runtime.startup import CGROUPS, group_folders

if TYPE_CHECKING:
    import torch

SECONDS_BETWEEN_LOOKS = 2.0
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_KEPT = 1 << 25  # bytes: twice the scores of a tile of the softmax on CPU
GROUP_FILES = {  # version of control groups → files of the limit and the usage, name of the reclaimable part
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@dataclass(frozen=True)
class Memory:
    """The bytes that each process may use on its host and on its GPU; None if unknown, so without a limit."""

    host: int | None
    device: int | None = None


def available(device: "torch.device", local_world_size: int) -> Memory:
    """Return the memory for this process: its GPU, and a share of the host's free memory plus its present PSS."""
    import torch

    gpu = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None
    return Memory(host=host_memory() // local_world_size + proportional_set_size(), device=gpu)


def host_memory() -> int:
    """Return the available bytes of this host, by Linux and by the limits of control groups."""
    return min([psutil.virtual_memory().available, *_free_of_group()])


class PeakMemory:
    """Measures the peak proportional set size (PSS) of this process, which divides shared pages among the processes.

    Linux records no peak of the PSS, so a thread reads it every two seconds while the context is open. On CUDA, the
    peak of the allocator is measured instead.
    """

    def __init__(self, device: "torch.device") -> None:
        self._device, self._peak, self._is_closed = device, 0, threading.Event()

    def __enter__(self) -> "PeakMemory":
        if self._device.type == "cpu":
            threading.Thread(target=self._watch, name="peak memory", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()

    def read(self) -> int:
        """Return the peak so far, in bytes."""
        if self._device.type == "cuda":
            import torch

            return torch.cuda.max_memory_allocated(self._device)
        self._peak = max(self._peak, proportional_set_size())
        return self._peak

    def _watch(self) -> None:
        while not self._is_closed.wait(SECONDS_BETWEEN_LOOKS):
            self.read()


def use_memory_again() -> None:
    """Keep the memory that a step frees for the next step. Call it when the model is built.

    Tensors above `LARGEST_KEPT` are still mapped anew, in large pages (`bert4rec/__init__.py`): tensors as large as a
    table would leave too large gaps in the heap.
    """
    release_free_memory()
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def compile_few_kernels(*, precision: str) -> None:
    """Keep oneDNN from compiling kernels for every new number of positions.

    It caches a thousand of them, which fragments the heap. With `precision` "fp32", oneDNN would only compute GELU,
    which torch's own kernel computes equally well; bf16 products need oneDNN.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    import torch

    torch.backends.mkldnn.enabled = precision != "fp32"  # type: ignore[assignment]


def release_free_memory() -> None:
    """Return freed memory to the system, such as that of a validation, which a step does not need."""
    ctypes.CDLL(None).malloc_trim(0)


def proportional_set_size() -> int:
    """Return the PSS of this process in bytes."""
    return int(psutil.Process().memory_full_info().pss)


def _free_of_group(groups: str | None = None, root: Path = CGROUPS) -> Iterator[int]:
    """Yield the free bytes in each control group of this process: limit - (usage - inactive file pages).

    `groups` is the text of /proc/self/cgroup. Inactive file pages count as free, since Linux can reclaim them.
    """
    for version, folder in group_folders("memory", groups, root):
        limit_file, usage_file, inactive = GROUP_FILES[version]
        if not (folder / limit_file).is_file():
            continue
        limit = (folder / limit_file).read_text().strip()
        if limit != "max":
            reclaimable = re.search(rf"^{inactive} (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE)
            usage = int((folder / usage_file).read_text()) - int(reclaimable[1] if reclaimable else 0)
            yield max(0, int(limit) - usage)
