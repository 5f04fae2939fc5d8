"""Fixtures and builders of the tests of bert4rec/sources and bert4rec/prepare."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import polars as pl
import pytest

import preprocessing
from bert4rec.dataset.format import part_starts
from bert4rec.prepare import catalogue, rows, runs, writer
from bert4rec.sources import interactions, tables, text_blocks
from tests.folders import id_table
from tests.sources.storage import Storage, serving

Prepare = Callable[..., Path]


def prepared(place: Path, *options: str, table: pl.DataFrame | None = None, name: str = "dataset") -> Path:
    """The folder that a preparation of `table`, or by `options` alone, makes, or would make if it did not refuse."""
    target = place / name
    source = []
    if table is not None:
        table.write_csv(place / f"{name}.csv")
        source = ["--data.source=table", f"--data.path={place / name}.csv"]
    command = ["--config=/dev/null", f"--data.dataset_dir={target}", "--preprocessing.n_eval_negatives=1"]
    preprocessing.main([*command, *source, *options])
    return target


@contextmanager
def small_tasks(n_rows: int = 7, *, block_bytes: int = 5000) -> Iterator[None]:
    """Pieces of 4 blocks or 1,000 rows; runs, and ranges of users, of about `n_rows`; more ranges of items."""
    with (
        patch.object(text_blocks, "TEXT_PIECE", 4 * block_bytes),
        patch.object(interactions, "BLOCK_BYTES", block_bytes),
        patch.object(tables, "ROWS_PER_PIECE", 1000), patch.object(runs, "ROWS_PER_RUN", n_rows),
        patch.object(rows, "ROWS_PER_RANGE", n_rows), patch.object(catalogue, "ITEMS_PER_RANGE", n_rows // 2),
    ):  # fmt: skip
        yield


def small_parts(most_rows: int = 300) -> Any:
    """Parts of at most `most_rows` interactions, so that there are several."""
    return patch.object(writer, "part_starts", partial(part_starts, most_rows=most_rows))


def stored(folder: Path) -> list[dict[str, Any]]:
    """The rows of `histories`, with the original ids."""
    users, items = (id_table(folder, name) for name in ("users", "items"))
    user = dict(users.select("user", "original").iter_rows())
    item = dict(items.select("item", "original").iter_rows())
    rows = datasets.load_from_disk(str(folder / "histories")).to_list()
    return [row | {"user": user[row["user"]], "items": [item[i] for i in row["items"]]} for row in rows]


def metadata_of(folder: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads((folder / "metadata.json").read_text())
    return metadata


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
