"""The memory for a process, the peak memory of a process, and settings of the allocators."""

import ctypes
import os
import threading
from dataclasses import dataclass

import psutil
import torch

from bert4rec.runtime.host import host_memory

SECONDS_BETWEEN_LOOKS = 2.0
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_KEPT = 1 << 25  # bytes: twice the scores of a tile of the softmax on CPU


@dataclass(frozen=True)
class Memory:
    """The bytes that each process may use on its host and on its GPU; None if unknown, so without a limit."""

    host: int | None
    device: int | None = None


def available(device: torch.device, local_world_size: int) -> Memory:
    """Return the memory for this process: its GPU, and a share of the host's free memory plus its present PSS."""
    gpu = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None
    return Memory(host=host_memory() // local_world_size + proportional_set_size(), device=gpu)


class PeakMemory:
    """Measures the peak proportional set size (PSS) of this process, which divides shared pages among the processes.

    Linux records no peak of the PSS, so a thread reads it every two seconds while the context is open. On CUDA, the
    peak of the allocator is measured instead.
    """

    def __init__(self, device: torch.device) -> None:
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
    torch.backends.mkldnn.enabled = precision != "fp32"  # type: ignore[assignment]


def release_free_memory() -> None:
    """Return freed memory to the system, such as that of a validation, which a step does not need."""
    ctypes.CDLL(None).malloc_trim(0)


def proportional_set_size() -> int:
    """Return the PSS of this process in bytes."""
    return int(psutil.Process().memory_full_info().pss)
