"""Models with item features, events and times: sharded = replicated = one process, and a loss worked out by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import open_dataset
from tests.conftest import long
from tests.processes import jobs
from tests.sharding.jobs import planned_and_held
from tests.training.loop.test_trainer import assemble, assert_equal

ITEM_TABLE, USER_TABLE = "item_table.embeddings.item.weight", "user_table.embeddings.user.weight"


EVENTS = "encoder.events.weight"


Make = Callable[..., Config]


@pytest.fixture
def make(event_folder: Path, small_config: Make) -> Make:
    def config(n_processes: int, folder: Path = event_folder, **changes: Any) -> Config:
        recipe = open_dataset(folder).metadata["preprocessing"]
        usual = {f"preprocessing.{key}": value for key, value in recipe.items()} | {
            "data.dataset_dir": str(folder), "training.n_epochs": 5,
            "model.dropout": 0.0, "model.id_dropout": 0.3,
            "training.average_age": 0.0, "training.per_device_train_batch_size": 60 // n_processes,
            "training.n_train_negatives": 12, "training.learning_rate": 0.003,
            "parallelism.sparse_learning_rate": 0.05,
        }  # fmt: skip
        return small_config(**usual | changes)

    return config


EXACT = {"training.loss": "softmax", "parallelism.sparse_optimizer": "adam"}
SAMPLED = {"training.loss": "sampled_softmax", "parallelism.sparse_optimizer": "adagrad"}
TABLES = {"model.feature_tables_from": 4}  # those of brand and of tags
ADAGRAD, ROWWISE = ({"parallelism.sparse_optimizer": name} for name in ("adagrad", "rowwise_adagrad"))
WEIGHTS = {"training.event_weights": {"purchase": 1.0, "cart": 0.3}}
BEFORE, AT = {"model.times": "history"}, {"model.times": "target"}
GROUP_SIZE = "parallelism.sharding_group_size"
IN_GROUPS, IN_TWO = {GROUP_SIZE: 1}, {GROUP_SIZE: 2}


@pytest.mark.parametrize(
    ("kind", "changes", "way"),
    # Each pair of a kind, a loss, a number of processes and a sharding at least once.
    [
        ("sasrec", EXACT | TABLES | WEIGHTS | AT, (2, "dmp", "row_wise")),
        ("bert4rec", SAMPLED | WEIGHTS | BEFORE | {"model.feature_tables_from": 1}, (3, "dmp", "row_wise")),
        ("sasrec", EXACT | TABLES | IN_GROUPS, (2, "dmp", "row_wise")),
        ("matrix_factorization", SAMPLED | TABLES | IN_GROUPS, (2, "dmp", "row_wise")),
        (
            "sasrec",
            SAMPLED | TABLES | IN_TWO | {"parallelism.sparse_optimizer": "rowwise_adagrad"},
            (4, "dmp", "row_wise"),
        ),
        ("sasrec", EXACT | IN_TWO, (4, "dmp", "row_wise")),
        long("bert4rec", SAMPLED | TABLES | IN_GROUPS, (4, "dmp", "column_wise")),
        long("bert4rec", SAMPLED | IN_TWO, (4, "dmp", "table_wise")),
        ("bert4rec", SAMPLED, (3, "dmp", "column_wise")),
        ("matrix_factorization", EXACT, (3, "ddp", "row_wise")),
        long("sasrec", EXACT | TABLES | ADAGRAD, (2, "dmp", "auto")),
        long("sasrec", EXACT, (2, "dmp", "row_wise")),
        long("matrix_factorization", SAMPLED, (2, "dmp", "row_wise")),
        long("sasrec", EXACT | ADAGRAD | AT, (2, "dmp", "table_wise")),
        long("bert4rec", SAMPLED | TABLES, (1, "dmp", "row_wise")),
        long("bert4rec", SAMPLED | TABLES, (3, "dmp", "table_wise")),
        long("bert4rec", EXACT | TABLES | ADAGRAD | WEIGHTS, (2, "ddp", "row_wise")),
        long("sasrec", SAMPLED | TABLES, (3, "ddp", "row_wise")),
        long("sasrec", EXACT | TABLES | ADAGRAD, (1, "dmp", "column_wise")),
        long("matrix_factorization", SAMPLED | TABLES, (1, "dmp", "table_wise")),
        long("matrix_factorization", SAMPLED | TABLES, (2, "dmp", "column_wise")),
    ],
)
def test_every_way_trains_the_model_of_one_process(
    pools: Any, make: Make, tmp_path: Path, kind: str, changes: dict[str, Any], way: tuple[int, str, str]
) -> None:
    n_processes, mode, sharding_type = way

    def train(n: int, **parallel: Any) -> list[dict[str, Any]]:
        settings = {"model.kind": kind} | changes | {f"parallelism.{key}": value for key, value in parallel.items()}
        return list(pools(n).run(jobs.train, make(n, **settings), tmp_path))

    alone = train(1, mode="ddp", sharding_group_size=0)
    together = train(n_processes, mode=mode, sharding_type=sharding_type)
    np.testing.assert_allclose(together[0]["losses"], alone[0]["losses"], rtol=0, atol=1e-5)
    names = [name for name in alone[0]["final"] if name in (ITEM_TABLE, EVENTS) or name.startswith("features.")]
    n_tables = {None: 0, 4: 2, 1: 3}[changes.get("model.feature_tables_from")]  # type: ignore[index]
    assert len(names) == 3 + n_tables + (kind != "matrix_factorization")
    for name in names:
        size = (changes.get(GROUP_SIZE) or n_processes) if mode == "dmp" and ".embeddings." in name else 1
        groups = [together[first : first + size] for first in range(0, n_processes, size)]
        first, *copies = (assemble([rank["final"][name] for rank in group]) for group in groups)
        assert all(np.array_equal(first, copy) for copy in copies)
        expected = assemble([alone[0]["final"][name]])
        np.testing.assert_allclose(first, expected, rtol=0, atol=1e-4)
        initial = assemble([alone[0]["initial"][name]])
        assert not expected.size or np.abs(expected - initial).max() > (0.001 if name == EVENTS else 0.01)


def test_weights_count_by_their_ratio_alone(pools: Any, make: Make, tmp_path: Path) -> None:
    """One kind is predicted, so its weight cancels out of the mean."""
    losses = [
        pools(1).run(jobs.train, make(1, **EXACT, **changes), tmp_path)[0]["losses"]
        for changes in ({}, {"training.event_weights": {"purchase": 0.25}})
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


DMP, IN_ROWS = {"parallelism.mode": "dmp"}, {"parallelism.sharding_type": "row_wise"}


@pytest.mark.parametrize(
    ("changes", "writers", "readers"),
    [
        (SAMPLED | TABLES, 1, 2),  # all tables are updated inside backward
        (EXACT | TABLES | ADAGRAD | IN_ROWS, 2, 1),
        long(SAMPLED | TABLES, 2, 3),
        long(EXACT | TABLES | IN_ROWS, 2, 3),
    ],
)
def test_a_resumed_training_has_the_state_of_every_table(
    pools: Any, make: Make, tmp_path: Path, changes: dict[str, Any], writers: int, readers: int
) -> None:
    """Weights and moments arrive bit by bit, and so does the end of a training with as many processes."""

    def train(n: int, folder: str, **more: Any) -> list[dict[str, Any]]:
        config = make(n, **{"model.kind": "sasrec", "training.patience": 0} | DMP | AT | WEIGHTS | changes)
        return list(pools(n).run(jobs.train_part, config, tmp_path / folder, **more))

    saved, whole = train(writers, "broken", until=3), train(writers, "whole")
    checkpoint = found(tmp_path / "broken")[-1]
    tables = [name for name in saved[0]["weights"] if ".embeddings." in name]
    saved_tables = {name for name in saved[0]["moments"] if name.partition(".")[0].endswith("_table")}
    assert len(tables) == 3
    assert {name.rpartition(".")[0] for name in saved_tables} == {f"{name.split('.')[-2]}_table" for name in tables}
    for n in (writers, readers):
        resumed = train(n, f"on {n}", resume_from=checkpoint)
        for kind in ("weights", "moments"):
            assert resumed[0]["restored"][kind].keys() == saved[0][kind].keys()
            for name in saved[0][kind]:
                arrived = assemble([rank["restored"][kind][name] for rank in resumed])
                np.testing.assert_array_equal(arrived, assemble([rank[kind][name] for rank in saved]), name)
                end, expected = (assemble([rank[kind][name] for rank in ranks]) for ranks in (resumed, whole))
                np.testing.assert_allclose(end, expected, rtol=1e-3, atol=1e-5, err_msg=name)
        if n == writers:
            assert_equal(resumed, whole)


def test_the_loss_is_that_of_the_sums_worked_out_by_hand(
    pools: Any, make: Make, featured_folder: Path, tmp_path: Path
) -> None:
    """One step over all pairs of a matrix factorisation, whose scores are products of two vectors."""
    settings = EXACT | {"model.kind": "matrix_factorization", "model.form": "dot", "model.id_dropout": 0.0}
    batch = {"training.per_device_train_batch_size": 10_000, "training.n_epochs": 1, "parallelism.mode": "ddp"}
    folder = featured_folder
    (result,) = pools(1).run(jobs.train, make(1, folder, **settings, **batch), tmp_path)
    weights = {name: assemble([value]) for name, value in result["initial"].items()}

    dataset = open_dataset(folder)
    table = pl.read_parquet(folder / "items.parquet").sort("item")
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


@pytest.mark.parametrize(
    "changes", [EXACT | TABLES | AT, long(SAMPLED | TABLES), SAMPLED | TABLES | {"parallelism.mode": "ddp"}]
)
def test_a_plan_counts_the_bytes_of_every_table(pools: Any, make: Make, changes: dict[str, Any]) -> None:
    for planned, held in pools(2).run(planned_and_held, make(2, **{"model.kind": "sasrec"} | changes)):
        assert planned == held
