"""What a run stood on."""

import platform
import sys

import torch

from bert4rec.report.environment import environment


def test_versions_processes_and_the_command_are_named() -> None:
    found = environment(torch.device("cpu"), 3)
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert (found["python"], found["world_size"], found["command"]) == (platform.python_version(), 3, sys.argv)
    assert {"torchrec", "datasets", "polars", "numpy", "pyarrow", "system", "threads_per_process"} <= found.keys()
