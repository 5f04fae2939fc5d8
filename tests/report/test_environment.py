"""What a run stood on."""

import platform
import sys

import pytest
import torch

from bert4rec.report.environment import environment


def test_versions_processes_and_the_command_are_named() -> None:
    found = environment(torch.device("cpu"), 3)
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert (found["python"], found["world_size"], found["command"]) == (platform.python_version(), 3, sys.argv)
    assert {"torchrec", "datasets", "polars", "numpy", "pyarrow", "system", "threads_per_process"} <= found.keys()


def test_the_command_is_named_without_the_secrets_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--data.path=https://ann:pw@host/log.csv?sig=5ec2e7", "--mode=ddp"])
    assert environment(torch.device("cpu"), 1)["command"] == [
        "train.py", "--data.path=https://host/log.csv", "--mode=ddp",
    ]  # fmt: skip
