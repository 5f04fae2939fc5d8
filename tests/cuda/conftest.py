"""Trainings of ten steps on GPUs and on the CPU, in this process and in several; without a GPU all is skipped."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset
from tests.conftest import SMALL, leave_group
from tests.cuda import processes
from tests.cuda.processes import IS_STAND_IN, GpuProcesses

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


@pytest.fixture(scope="module")
def gpus() -> Iterator[GpuProcesses]:
    pool = GpuProcesses()
    yield pool
    pool.close()


@pytest.fixture
def train_together(gpus: GpuProcesses, small_folder: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """`train_together(n, device, one_each=…, counts_waits=…, **changes)`: what was seen of a run of `n` processes."""
    import torch

    def made(
        n: int, device: str = "cuda", *, one_each: bool = False, counts_waits: bool = False, **changes: Any
    ) -> list[dict[str, Any]]:
        if device == "cuda" and not IS_STAND_IN and (one_each or torch.cuda.device_count() < n):
            pytest.skip(f"needs {n} GPUs, or the stand-in")
        usual = SMALL | TEN_STEPS | {"data.dataset_dir": str(small_folder), "run.dir": str(tmp_path / "runs")}
        batch = {"training.per_device_train_batch_size": 60 // n, "parallelism.device": device}
        seen = gpus.run(n, processes.train, usual | batch | changes, one_each=one_each, counts_waits=counts_waits)
        assert [rank["faults"] for rank in seen] == [[]] * n
        return seen

    return made
