"""Runs of logs that grow, and models folders made of them."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bert4rec.checkpoint.models_folder import read_aliases
from bert4rec.update.versions import make_first_version
from tests.conftest import BY_HAND, spare, train_alone
from tests.fixture_types import Patch
from tests.preparation import prepared

DAY, FIRST = 86_400, 1_700_006_400
N_USERS, N_ITEMS = 80, 30


@pytest.fixture(scope="session")
def run_to_update(log_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 2 epochs on eight items."""
    return train_alone(log_folder, tmp_path_factory.mktemp("runs"), **BY_HAND, **{"run.name": "log"})


@pytest.fixture(scope="session")
def first_models(run_to_update: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models folder of that run, with one version."""
    models = tmp_path_factory.mktemp("models") / "shop"
    make_first_version(models, run_to_update)
    return models


@pytest.fixture
def models(first_models: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(first_models, tmp_path / "models" / "shop", symlinks=True))


def day_of(number: int, *, n_rows: int = 200) -> pl.DataFrame:
    """The rows of a day: each user goes on from item to item; a few users and items are new each day."""
    rng = np.random.default_rng(number)
    users = rng.integers(0, N_USERS + 3 * number, n_rows)
    times = FIRST + number * DAY + np.sort(rng.choice(DAY, n_rows, replace=False))
    items = (users + np.arange(n_rows) // 20 + rng.integers(0, 2, n_rows)) % (N_ITEMS + number)
    return pl.DataFrame({"user": [f"u{user}" for user in users], "item": items, "time": times})


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the first three days."""
    place = tmp_path_factory.mktemp("shop")
    table = pl.concat([day_of(number, n_rows=300) for number in range(3)])
    data = prepared(place, "--user=user", "--item=item", "--time=time", table=table, name="log")
    settings = {"model.kind": "sasrec", "run.name": "first", "training.n_epochs": 3}
    settings |= {"preprocessing.validation_users": 1024, "preprocessing.n_eval_negatives": 1}  # those of the dataset
    return train_alone(data, place / "runs", **settings)


@pytest.fixture
def shop(first_run: Path, tmp_path: Path) -> Path:
    """A models folder that was made from the run."""
    return make_shop(tmp_path, first_run)


def make_shop(place: Path, run: Path) -> Path:
    """A models folder in `place` that was made from the run, beside the files of three days."""
    make_first_version(models := place / "models" / "shop", run)
    for number in range(3, 6):
        day_of(number).write_csv(place / f"day-{number}.csv")
    return models


@pytest.fixture
def quick(monkeypatch: Patch) -> None:
    hurry(monkeypatch)


def hurry(patch: Patch) -> None:
    """Updates of one epoch, without pictures and packages; tests/update/test_versions.py has whole ones."""
    spare(patch)
    patch.setattr("bert4rec.update.nightly.EPOCHS", 1)
    patch.setattr("bert4rec.update.versions.export", lambda _, folder, *__, **___: folder.mkdir())


def champion(shop: Path) -> Path:
    return shop / "versions" / read_aliases(shop)["champion"]
