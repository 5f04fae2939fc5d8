"""A small real dataset folder for the tests right of the disk, and pools of processes for those that need them.

torch is imported where it is needed: the data tests run without it.
"""

import gc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import preprocessing
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.runtime.console import log_to_terminal
from tests.processes.pool import RESAMPLES, ProcessPool

SMALL = {
    "data.n_users": 60,
    "data.n_items": 150,
    "data.n_rows": 916,  # 97 windows: one more than 2 or 3 processes can share evenly
    "preprocessing.validation_users": 20,
    "preprocessing.n_eval_negatives": 10,
    "model.max_len": 12,
    "model.embed_dim": 16,
    "model.dropout": 0.1,
    "model.ffn_dim": 32,
    "training.n_epochs": 2,
    "training.per_device_train_batch_size": 16,
    "evaluation.per_device_eval_batch_size": 16,
    "run.trackers": [],
}

# A log worked out by hand: the items of each user in order of time. The last is the test target, the one before it the
# validation target. Of the eight items a, b and e leave five unseen, c six, d and f none.
LOG = {
    "a": [1, 2, 3, 1],
    "b": [4, 5, 4, 6],
    "c": [7, 8, 7, 7],
    "d": [1, 2, 3, 4, 5, 6, 7, 8],
    "e": [5, 6, 7],
    "f": [5] * 7 + [4] * 6 + [1] * 4 + [2] * 3 + [3] * 3 + [6] * 2 + [7, 8, 8],
}
BY_HAND = {"preprocessing.validation_users": "all", "preprocessing.n_eval_negatives": 5, "model.max_len": 12}


def pytest_configure(config: pytest.Config) -> None:
    """With pytest-xdist each worker has cores of its own: threads of two that share one mostly wait for each other.

    Of more workers than cores several share one, each with one thread.
    """
    worker = getattr(config, "workerinput", None)
    cores = sorted(os.sched_getaffinity(0))
    if worker:
        number, n_workers = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        own = cores[number::n_workers] if n_workers <= len(cores) else [cores[number % len(cores)]]
        os.sched_setaffinity(0, own)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The garbage collection never looks at the million objects that the imports make."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def terminal() -> None:
    """What is logged is shown, as by the scripts."""
    log_to_terminal()


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


def write_items(path: Path, draw: np.random.Generator, n: int = 28) -> None:
    """Features of the items 0, 1, …: a category, categories, a number and a vector each."""
    pl.DataFrame(
        {
            "item": range(n),
            "brand": [("a", "b", None)[i % 3] for i in range(n)],
            "tags": [[f"t{i % 4}", f"t{(i * 7) % 5}"] if i % 6 else [] for i in range(n)],
            "price": [i * 1.5 if i % 5 else None for i in range(n)],
            "image": draw.normal(size=(n, 3)).astype(np.float32).tolist(),
        }
    ).write_parquet(path)


def prepare_with_items(place: Path, rows: pl.DataFrame, draw: np.random.Generator, **changes: object) -> Path:
    """The dataset folder of the `rows`, with the features of `write_items`."""
    rows.write_csv(place / "log.csv")
    write_items(place / "items.parquet", draw)
    settings = {
        "data.path": place / "log.csv", "data.source": "table", "data.items_path": place / "items.parquet",
        "data.dataset_dir": place / "dataset", "preprocessing.n_eval_negatives": 10,
        "preprocessing.validation_users": 20,
    } | changes  # fmt: skip
    assert preprocessing.main([f"--{key}={value}" for key, value in settings.items()]) == 0
    return place / "dataset"


@pytest.fixture(scope="session")
def featured_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 25 items with a category, categories, a number and a vector each, and of three cold ones."""
    place, draw = tmp_path_factory.mktemp("features"), np.random.default_rng(3)
    rows = [(user, item) for user in range(60) for item in draw.permutation(25)[: draw.integers(6, 14)]]
    return prepare_with_items(place, pl.DataFrame(rows, schema=["user", "item"], orient="row"), draw)


@pytest.fixture(scope="session")
def event_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with all that there may be: times, item features, views, carts and the purchases to predict."""
    place, draw = tmp_path_factory.mktemp("events"), np.random.default_rng(5)
    kinds = ["view", "cart", "purchase", None]
    rows = [
        (user, int(draw.integers(25)), at, kinds[draw.choice(4, p=[0.5, 0.15, 0.3, 0.05])])
        for user in range(60)
        for at in range(draw.integers(4, 20))
    ]
    log = pl.DataFrame(rows, schema=["user", "item", "time", "event"], orient="row")
    changes = {"data.event_column": "event", "preprocessing.target_events": '["purchase"]'}
    return prepare_with_items(place, log, draw, **changes, **{"preprocessing.n_eval_negatives": 5})


# The same and more: the items 9 and 10, which a new user and an old one have.
GROWN_LOG = LOG | {"f": [*LOG["f"], 9, 1, 2, 3], "g": [1, 9, 2, 9, 3, 3, 3, 10, 4, 5]}


def prepare_log(place: Path, log: Mapping[str, Sequence[int]] = LOG, **changes: object) -> Path:
    """The dataset folder of `log`, read from a CSV file in `place`."""
    rows = [f"{user},{item},{1_600_000_000 + at}" for user, items in log.items() for at, item in enumerate(items)]
    (place / "log.csv").write_text("\n".join(["who,what,at", *rows]) + "\n")
    columns = {"data.user_column": "who", "data.item_column": "what", "data.time_column": "at"}
    source = {"data.source": "table", "data.path": place / "log.csv", "data.dataset_dir": place / "dataset"}
    arguments = [f"--{key}={value}" for key, value in (source | columns | BY_HAND | changes).items()]
    assert preprocessing.main(["--config=config.toml", *arguments]) == 0
    return place / "dataset"


@pytest.fixture(scope="session")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset folder of `LOG`."""
    return prepare_log(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="session")
def grown_folder(log_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset folder of `GROWN_LOG`, with the ids of that of `LOG`."""
    return prepare_log(tmp_path_factory.mktemp("grown"), GROWN_LOG, **{"data.extends": log_folder})


@pytest.fixture
def log_config(small_config: Callable[..., Config], log_folder: Path) -> Callable[..., Config]:
    """As `small_config`, for the dataset of `LOG`."""
    return lambda **changes: small_config(**{"data.dataset_dir": str(log_folder), **BY_HAND, **changes})


FACTORS = {"model.kind": "matrix_factorization"}
RATED = FACTORS | {
    "training.loss": "mse", "training.rating_range": [0.0, 5.5], "training.rating_validation": 0.1,
    "parallelism.sparse_optimizer": "adam", "parallelism.sparse_weight_decay": 0.1,
}  # fmt: skip


@pytest.fixture(scope="session")
def rated_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset folder of 1,007 ratings that users and items explain to about half a star; windows of 12."""
    place, draw = tmp_path_factory.mktemp("rated"), np.random.default_rng(7)
    users, items = draw.integers(0, 40, 1007), draw.integers(0, 70, 1007)
    taste = draw.normal(0, 0.8, 40)[users] + draw.normal(0, 0.8, 70)[items] + draw.normal(3, 0.5, 1007)
    stars = (2 * taste.clip(0.5, 5)).round() / 2
    rows = [
        f"{user},{item},{rating},{at}" for at, (user, item, rating) in enumerate(zip(users, items, stars, strict=True))
    ]
    (place / "rated.csv").write_text("\n".join(["user,item,rating,at", *rows]) + "\n")
    settings = {
        "data.source": "table", "data.path": place / "rated.csv", "data.dataset_dir": place / "dataset",
        "data.rating_column": "rating", "data.time_column": "at", **BY_HAND,
    }  # fmt: skip
    assert preprocessing.main(["--config=config.toml", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    return place / "dataset"


@pytest.fixture
def rated_config(small_config: Callable[..., Config], rated_folder: Path) -> Callable[..., Config]:
    """As `small_config`, for a matrix factorisation of these ratings."""
    return lambda **changes: small_config(**{"data.dataset_dir": str(rated_folder), **BY_HAND, **RATED, **changes})


@pytest.fixture
def small_dataset(small_folder: Path) -> Dataset:
    return open_dataset(small_folder)


def spare(patch: pytest.MonkeyPatch, *, pictures: bool = True) -> None:
    """Intervals of few draws, and no pictures of a report: a small run would be busy with them half of its time.

    tests/evaluation/test_metrics.py has all draws; tests/report, the run `made` and those of scripts have pictures.
    """
    patch.setattr("bert4rec.evaluation.intervals.RESAMPLES", RESAMPLES)
    if pictures:
        patch.setattr("bert4rec.report.pages.charts", lambda contents: ())
        patch.setattr("bert4rec.report.pages.learning_curve", lambda *_: None)
        patch.setattr("bert4rec.report.pages.to_png", lambda _: b"a picture")
        patch.setattr("bert4rec.report.models_page.update_charts", lambda updates: ())


# A program has no ids, and takes seconds; tests/update/test_versions.py and tests/serving/test_program.py have some.
WITHOUT_PROGRAM = "bert4rec.update.versions.USUAL_FORMATS", ("safetensors",)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs in this process: on the CPU, whatever this machine has, and without a trace in the tests that follow."""
    import torch

    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    # A signal that a busy machine answers late would end this process with all tests that are still to come.
    monkeypatch.setattr("bert4rec.training.run.PATIENCE", 250.0)
    monkeypatch.setattr("bert4rec.runtime.signals.Interruption.__init__.__defaults__", (250.0,))
    spare(monkeypatch)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    leave_group()


@pytest.fixture
def group_of_one(alone: None) -> None:
    """A process group that this process is all of; it ends with the test."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


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


def long(*values: Any) -> Any:
    """A case of a parametrised test for `make test-long` alone."""
    return pytest.param(*values, marks=pytest.mark.long)


SHORT = {"training.n_epochs": 3, "training.eval_every_n_epochs": 1, "checkpoint.keep": 9, "training.average_age": 0.0}


@pytest.fixture
def make(small_config: Callable[..., Config]) -> Callable[..., Config]:
    """Settings of short runs that are validated after every epoch."""

    def settings(**changes: Any) -> Config:
        return small_config(**SHORT | changes)

    return settings


def train_alone(dataset: Path, runs: Path, *, draws: bool = False, **changes: Any) -> Path:
    """A whole run for several tests: in this process, on the CPU; with pictures only if it `draws` them."""
    from bert4rec.training.run import run

    places = {"data.dataset_dir": str(dataset), "run.dir": str(runs)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.device_count", lambda: 0)
        spare(patch, pictures=not draws)
        folder = run(load_config(None, SMALL | places | changes))
    leave_group()
    return folder


@pytest.fixture(scope="session")
def made(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a break: 3 epochs of 7 steps."""
    return train_alone(small_folder, tmp_path_factory.mktemp("runs"), draws=True, **SHORT, **{"run.name": "whole"})


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be gone on with."""
    return Path(shutil.copytree(made, tmp_path / "runs" / "whole", symlinks=True))
