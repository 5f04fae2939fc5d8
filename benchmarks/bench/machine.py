"""What a run of the benchmarks stood on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "torchrec", "polars", "numpy", "pyarrow", "pandas")


def machine(device: torch.device) -> dict[str, Any]:
    """What makes two runs comparable: the processor or GPU, the cores of this process, torch's threads."""
    found: dict[str, Any] = {
        "cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads(), "gpu": None,
    }  # fmt: skip
    return found | ({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})


def versions() -> dict[str, str]:
    """Of Python and of the packages that do the work."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def _cpu() -> str:
    """The model's name, as Linux knows it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
