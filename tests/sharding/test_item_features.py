"""Models with item features and events: a loss worked out by hand, and weights of kinds of events."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.reader import open_dataset
from tests.fixture_types import Settings
from tests.folders import id_table
from tests.processes import jobs
from tests.sharding.jobs import config_of
from tests.training.loop.test_trainer import assemble

ITEM_TABLE, USER_TABLE = "item_table.embeddings.item.weight", "user_table.embeddings.user.weight"
EXACT = {"training.loss": "softmax", "parallelism.sparse_optimizer": "adam", "model.dropout": 0.0}


def test_weights_count_by_their_ratio_alone(
    pools: Any, small_config: Settings, event_folder: Path, tmp_path: Path
) -> None:
    """One kind is predicted, so its weight cancels out of the mean."""
    losses = [
        pools(1).run(jobs.train, config_of(small_config, event_folder, **EXACT, **changes), tmp_path)[0]["losses"]
        for changes in ({}, {"training.event_weights": {"purchase": 0.25}})
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_the_loss_is_that_of_the_sums_worked_out_by_hand(
    pools: Any, small_config: Settings, featured_folder: Path, tmp_path: Path
) -> None:
    """One step over all pairs of a matrix factorisation, whose scores are products of two vectors."""
    settings = EXACT | {
        "model.kind": "matrix_factorization", "model.form": "dot", "model.id_dropout": 0.0, "parallelism.mode": "ddp",
        "training.per_device_train_batch_size": 10_000, "training.n_epochs": 1, "training.average_age": 0.0,
    }  # fmt: skip
    folder = featured_folder
    (result,) = pools(1).run(jobs.train, config_of(small_config, folder, **settings), tmp_path)
    weights = {name: assemble([value]) for name, value in result["initial"].items()}

    dataset = open_dataset(folder)
    table = id_table(folder, "items")
    vectors = weights[ITEM_TABLE][:, : weights["features.values"].shape[1]].astype(np.float64)
    is_warm = table["train_count"].to_numpy() > 0
    vectors *= is_warm[:, None]
    about, values = dataset.metadata["item_features"], weights["features.values"].astype(np.float64)
    names = pl.read_parquet(folder / "item_features" / "values.parquet")

    def sum_of(feature: str, wanted: list[str]) -> Any:
        numbers = names.filter((pl.col("feature") == feature) & pl.col("name").is_in(wanted))["number"].to_list()
        found = values[numbers or [about[feature]["first"]]]
        return found.sum(0) / np.sqrt(len(found))

    for row, (brand, tags, price, image) in enumerate(table.select("brand", "tags", "price", "image").rows()):
        edges, first = about["price"]["edges"], about["price"]["first"]
        vectors[row] += sum_of("brand", [brand]) + sum_of("tags", tags)
        vectors[row] += values[first + (0 if price is None else 1 + np.searchsorted(edges, price, side="right"))]
        vectors[row] += weights["features.projection.weight"] @ (np.array(image) / np.linalg.norm(image))

    users = weights[USER_TABLE].astype(np.float64)
    losses = []
    for user, items, n_train in pl.read_ipc_stream(
        next((folder / "histories").glob("*.arrow")), columns=["user", "items", "n_train"]
    ).rows():
        scores = vectors @ users[user]
        losses += [np.log(np.exp(scores[is_warm]).sum()) - scores[item] for item in items[:n_train]]
    assert result["losses"][0] == pytest.approx(np.mean(losses), abs=1e-5)
