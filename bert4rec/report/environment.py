"""The environment of a run."""

import platform
import sys
from importlib.metadata import version
from typing import Any

import torch

from bert4rec.config.recognition import without_secrets


def environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Return the versions, the machine, the processes, and the command without secrets."""
    packages = ("torch", "torchrec", "datasets", "polars", "numpy", "pyarrow")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads_per_process": torch.get_num_threads(),
        "world_size": world_size,
        "command": [without_secrets(word) for word in sys.argv],
    }
