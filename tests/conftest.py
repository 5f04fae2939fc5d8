"""A small real dataset folder for the tests right of the disk, and pools of processes for those that need them.

torch is imported where it is needed: the tests left of the disk run without it.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import preprocessing
from bert4rec.config import Config
from bert4rec.feed.dataset import Dataset, open_dataset
from bert4rec.settings import load_config
from tests.distributed.pool import ProcessPool

SMALL = {
    "data.n_users": 60,
    "data.n_items": 150,
    "data.n_rows": 916,  # 97 windows: one more than 2 or 3 processes can share evenly
    "preprocessing.validation_users": 20,
    "preprocessing.n_eval_negatives": 10,
    "model.max_len": 12,
    "model.embed_dim": 16,
    "model.ffn_dim": 32,
    "training.n_epochs": 2,
    "training.per_device_train_batch_size": 16,
    "evaluation.per_device_eval_batch_size": 16,
}


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets") / "small"
    arguments = [f"--{key}={value}" for key, value in SMALL.items()]
    assert preprocessing.main(["--config=config.toml", f"--data.dataset_dir={folder}", *arguments]) == 0
    return folder


@pytest.fixture
def small_config(small_folder: Path, tmp_path: Path) -> Callable[..., Config]:
    """Settings for the small dataset, with changes: `small_config(**{"model.dropout": 0.0})`."""

    def make(**changes: object) -> Config:
        places = {"data.dataset_dir": str(small_folder), "run.dir": str(tmp_path / "runs")}
        return load_config(None, SMALL | places | changes)

    return make


@pytest.fixture
def small_dataset(small_folder: Path) -> Dataset:
    metadata = json.loads((small_folder / "metadata.json").read_text())
    return open_dataset(small_folder, max_len=metadata["max_len"], preprocessing=metadata["preprocessing"])


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs in this process: on the CPU, whatever this machine has, and without a trace in the tests that follow."""
    import torch

    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    leave_group()


def leave_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():  # a run that failed leaves its group to the launcher
        dist.destroy_process_group()


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], ProcessPool]]:
    """`pools(n)`: the session's one pool of n processes that form a gloo group; importing TorchRec takes seconds."""
    started: dict[int, ProcessPool] = {}

    def get(n: int) -> ProcessPool:
        if n not in started:
            started[n] = ProcessPool(n)
        return started[n]

    yield get
    for pool in started.values():
        pool.close()
