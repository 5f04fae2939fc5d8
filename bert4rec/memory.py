"""How much memory a process took at its peak, and giving back what it no longer needs."""

import ctypes
import re
import threading
import time
from pathlib import Path

import torch

SECONDS_BETWEEN_LOOKS = 2.0


class PeakMemory:
    """Watches this process's proportional set size (PSS): pages that processes share count once among them.

    Linux keeps no peak of the PSS, so a thread looks every two seconds. On CUDA the allocator's own peak counts.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._peak = device, 0
        if device.type == "cpu":
            threading.Thread(target=self._watch, daemon=True).start()

    def read(self) -> int:
        """The peak so far, in bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        self._peak = max(self._peak, proportional_set_size())
        return self._peak

    def _watch(self) -> None:
        while True:
            self.read()
            time.sleep(SECONDS_BETWEEN_LOOKS)


def release_free_memory() -> None:
    """Give freed memory back to the system.

    Every batch has tensors of other sizes, which leave gaps between those still in use: without this the heap of a
    training on CPU grows for hours to several times what a step needs (glibc, which all of torch's wheels stand on).
    """
    ctypes.CDLL(None).malloc_trim(0)


def proportional_set_size() -> int:
    """This process's PSS in bytes."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None, "the kernel reports a Pss line"
    return int(found[1]) * 1024
