"""Trainings of ten steps in this process, on its first GPU and on its CPU; without a GPU all is skipped."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset
from tests.conftest import leave_group

TEN_STEPS = {  # one an epoch
    "training.n_epochs": 10,
    "training.eval_every_n_epochs": 10,
    "training.per_device_train_batch_size": 120,
    "training.learning_rate": 0.003,
    "parallelism.sparse_learning_rate": 0.05,
    "model.dropout": 0.0,
    "evaluation.baselines": [],
    "run.trackers": [],
}

Train = Callable[..., Path]


def losses(folder: Path) -> list[float]:
    """Of the steps of a run."""
    from bert4rec.report.log import read_records

    return [record["loss"] for record in read_records(folder, "train")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Here rather than by a mark or a fixture: one line for all tests."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch.cuda is not available: these tests need an NVIDIA GPU and the CUDA build of torch")


@pytest.fixture
def train(
    small_config: Callable[..., Config], small_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Train]:
    """`train(device, **changes)`: the folder of a run whose log has the loss of every step."""
    from bert4rec.runtime import console
    from bert4rec.runtime.processes import preserve_global_state
    from bert4rec.training.run import run

    monkeypatch.setattr("bert4rec.report.pages.charts", lambda contents: ())  # which take a second
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", -1.0)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")  # no network is needed for one process
    # Nearly all items are negatives: fbgemm's Adam leaves rows alone that a step does not look up, torch's does not.
    usual = TEN_STEPS | {"training.n_train_negatives": small_dataset.n_items - 1}

    def made(device: str = "cuda", **changes: Any) -> Path:
        with preserve_global_state():
            return run(small_config(**usual | {"parallelism.device": device} | changes))

    yield made
    leave_group()
