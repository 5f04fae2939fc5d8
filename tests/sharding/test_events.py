"""Models of kinds of events: sharded = replicated = one process, and the loss is the weighted mean."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert4rec.config.tables import Config
from bert4rec.dataset.reader import open_dataset
from tests.processes import jobs
from tests.sharding.test_item_features import EXACT, ITEM_TABLE, SAMPLED, Make
from tests.training.loop.test_trainer import assemble

EVENTS = "encoder.events.weight"


@pytest.fixture
def make(event_folder: Path, small_config: Make) -> Make:
    def config(n_processes: int, **changes: Any) -> Config:
        recipe = dict(open_dataset(event_folder).metadata["preprocessing"])
        usual = {f"preprocessing.{key}": value for key, value in recipe.items()} | {
            "data.dataset_dir": str(event_folder), "training.n_epochs": 3, "model.dropout": 0.0,
            "training.average_age": 0.0, "training.per_device_train_batch_size": 12 // n_processes,
            "training.n_train_negatives": 12, "parallelism.sparse_learning_rate": 0.05,
        }  # fmt: skip
        return small_config(**usual | changes)

    return config


WEIGHTS = {"training.event_weights": {"purchase": 0.3}}


@pytest.mark.parametrize(
    ("kind", "changes", "mode"),
    [("bert4rec", EXACT, "dmp"), ("sasrec", SAMPLED, "dmp"), ("sasrec", EXACT | WEIGHTS, "ddp")],
)
def test_two_processes_train_the_model_of_one(
    pools: Any, make: Make, tmp_path: Path, kind: str, changes: dict[str, Any], mode: str
) -> None:
    def train(n: int, mode: str) -> list[dict[str, Any]]:
        settings = {"model.kind": kind, "parallelism.mode": mode} | changes
        return list(pools(n).run(jobs.train, make(n, **settings), tmp_path))

    alone, together = train(1, "ddp"), train(2, mode)
    np.testing.assert_allclose(together[0]["losses"], alone[0]["losses"], rtol=0, atol=1e-5)
    for name in (ITEM_TABLE, EVENTS):
        is_sharded = mode == "dmp" and name == ITEM_TABLE
        found = assemble([rank["final"][name] for rank in (together if is_sharded else together[:1])])
        expected = assemble([alone[0]["final"][name]])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
        assert np.abs(expected - assemble([alone[0]["initial"][name]])).max() > 0.001


def test_weights_count_by_their_ratio_alone(pools: Any, event_folder: Path, make: Make, tmp_path: Path) -> None:
    """One kind is predicted, so its weight cancels out of the mean."""
    losses = [
        pools(1).run(jobs.train, make(1, **EXACT, **changes), tmp_path)[0]["losses"]
        for changes in ({}, {"training.event_weights": {"purchase": 0.25}})
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
