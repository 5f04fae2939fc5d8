"""Fixtures of the tests of bert4rec/sources and bert4rec/prepare."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import preprocessing
from tests.sources.storage import Storage, serving

Prepare = Callable[..., Path]


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Run `preprocessing.main` with default settings but for the overrides, and return the dataset folder."""

    def run(*overrides: str, folder: str = "dataset") -> Path:
        settings = tmp_path / "empty.toml"
        settings.write_text("")
        dataset = tmp_path / folder
        assert preprocessing.main([f"--config={settings}", f"--data.dataset_dir={dataset}", *overrides]) == 0
        return dataset

    return run


@pytest.fixture
def small() -> list[str]:
    """Overrides for a synthetic dataset of a second or less."""
    return [
        "--data.n_users=120",
        "--data.n_items=150",
        "--data.n_rows=2400",
        "--preprocessing.n_eval_negatives=20",
        "--preprocessing.validation_users=40",
    ]


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """One server for all tests, and the variables that name it: Polars keeps what it knows of a bucket.

    They are set once: threads of Polars read them, which must not be while they change.
    """
    with serving(tmp_path_factory.mktemp("storage")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.variables().items():
            patch.setenv(name, value)
        yield server
