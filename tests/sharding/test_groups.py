"""Tables in shards within groups of processes, real ones: the same training as on as many without groups."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bert4rec.config.tables import Config
from bert4rec.runtime.collectives import gather_objects
from bert4rec.sharding.groups import make_groups
from bert4rec.sharding.parallelize import unwrap
from tests.conftest import long
from tests.fixture_types import Settings
from tests.processes import jobs
from tests.sharding.jobs import make_step, plan_and_build, refusal, train_few_items
from tests.training.loop.test_trainer import assemble

STEPS = 6
TABLES = ["item_table.embeddings.item.weight", "group_table.embeddings.group.weight"]
SETTINGS = {
    "training.n_epochs": STEPS, "training.eval_every_n_epochs": 1, "training.per_device_train_batch_size": 30,
    "training.learning_rate": 0.003, "model.dropout": 0.0, "model.kind": "sasrec",
}  # fmt: skip
SAMPLED = {"training.loss": "sampled_softmax", "training.n_train_negatives": 20}
IN_TWO = {"parallelism.sharding_group_size": 2}
COLUMN_WISE, TABLE_WISE = ({"parallelism.sharding_type": name} for name in ("column_wise", "table_wise"))

Results = list[dict[str, Any]]
Train = Callable[..., Results]


@pytest.fixture(scope="module")
def trained() -> dict[tuple[Any, ...], Any]:
    """Trainings by what was asked of them: each is compared with several others."""
    return {}


@pytest.fixture
def train(pools: Any, small_config: Settings, tmp_path: Path, trained: dict[Any, Any]) -> Train:
    """Epochs of one step each on four processes, without dropout; of a model of two tables."""

    def run(optimizer: str, **changes: Any) -> Results:
        key = (optimizer, *sorted(changes.items()))
        if key not in trained:
            rate = {"parallelism.sparse_learning_rate": 2.0 if optimizer == "sgd" else 0.05}
            config = small_config(**SETTINGS | rate | {"parallelism.sparse_optimizer": optimizer} | changes)
            trained[key] = pools(4).run(jobs.with_groups, jobs.train, config, tmp_path)
        return trained[key]

    return run


def copies(results: Results, size: int, table: str, moment: str = "final") -> list[np.ndarray]:
    """The whole table that each group of so many processes holds."""
    groups = [results[first : first + size] for first in range(0, len(results), size)]
    return [assemble([rank[moment][table] for rank in group]) for group in groups]


def difference(ones: Results, others: Results, size: int) -> float:
    """The largest between the tables of four processes and those of groups, which all have the same, bit by bit."""
    found = 0.0
    for table in TABLES:
        (expected,), (start,) = copies(ones, 4, table), copies(ones, 4, table, "initial")
        first, *rest = copies(others, size, table)
        assert all(np.array_equal(first, copy) for copy in rest)
        assert np.abs(expected - start).max() > 0.005
        found = max(found, float(np.abs(first - expected).max()))
    return found


def copies_after(config: Config, n_steps: int) -> tuple[bool, bool]:
    """Whether the processes that hold the same shard have the same rows after so many steps, and the same state."""
    _, model, optimizers, batches = plan_and_build(config)
    for step in range(n_steps):
        make_step(model, optimizers, batches[step])
    found = [jobs.weights(model), jobs.moments_of(optimizers)]
    tables = [{name: parts for name, parts in rank.items() if name.startswith("item_table")} for rank in found]
    copies = unwrap(model).item_table.replicas
    every = gather_objects(tables, copies.group)
    first, second = (
        all(_are_equal(every[0][kind][name], theirs[kind][name]) for theirs in every for name in every[0][kind])
        for kind in (0, 1)
    )
    return first, second


def _are_equal(mine: jobs.Parts, theirs: jobs.Parts) -> bool:
    return all(np.array_equal(one[2], other[2]) for one, other in zip(mine, theirs, strict=True))


def sums_in_groups() -> tuple[float, float, float, list[list[float]], range]:
    """Of the ranks of 4 processes in groups of 2: over a group, over copies; their mean; a stack; and 2 of 8 things."""
    groups = make_groups(2, timedelta(minutes=5))
    rank = torch.tensor([float(dist.get_rank())])
    totals = [float(partition.sum(rank.clone())) for partition in (groups.shards, groups.replicas)]
    mean, stacked = float(groups.replicas.mean(rank.clone())), groups.shards.stack(rank).tolist()
    return *totals, mean, stacked, groups.world.of(8)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("optimizer", "size", "changes"),
    [
        ("rowwise_adagrad", 2, SAMPLED),
        ("adam", 2, {}),  # trained as a parameter
        long("adagrad", 1, SAMPLED | COLUMN_WISE),
        long("rowwise_adagrad", 1, TABLE_WISE),
        long("adam", 1, SAMPLED),
        long("adagrad", 2, SAMPLED | TABLE_WISE),
        long("adagrad", 2, {"model.head": "linear"}),
        long("sgd", 1, SAMPLED | {"training.loss": "gbce"}),
        long("sgd", 2, COLUMN_WISE),
    ],
)
def test_steps_by_the_gradients_of_all_groups_are_those_without_groups(
    train: Train, optimizer: str, size: int, changes: dict[str, Any]
) -> None:
    alone = train(optimizer, **changes)
    together = train(optimizer, **changes, **{"parallelism.sharding_group_size": size})
    np.testing.assert_allclose(together[0]["losses"], alone[0]["losses"], rtol=0, atol=1e-5)
    assert together[0]["metrics"] == pytest.approx(alone[0]["metrics"], abs=0.02)
    limit = 1e-4 if optimizer == "adam" else 1e-5  # it divides by moments that are next to nothing after a few steps
    assert difference(alone, together, size) < limit


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_copies_and_their_optimizer_states_are_the_same(pools: Any, small_config: Settings, optimizer: str) -> None:
    changes = {"parallelism.sparse_optimizer": optimizer, "training.per_device_train_batch_size": 4, **IN_TWO}
    assert pools(4).run(copies_after, small_config(**changes), 3) == [(True, True)] * 4


def test_ranks_are_those_without_groups(pools: Any, small_config: Settings) -> None:
    """Users and tiles are dealt to all processes; each looks items up in its own group."""
    (alone, *_), every = (pools(4).run(jobs.rank_with_model, small_config(**how), "test") for how in ({}, IN_TWO))
    for ranks, protocol in itertools.product(every, alone):
        np.testing.assert_array_equal(ranks[protocol], alone[protocol])


@pytest.mark.parametrize("loss", ["softmax", long("sampled_softmax")])
def test_few_items_are_trained_as_without_groups(pools: Any, loss: str) -> None:
    """Of the 3 rows of one item 2 and 1; the same losses as of four processes, of which some hold none."""
    cases = [(n_items, {"training.loss": loss} | IN_TWO) for n_items in ((1, 2, 7) if loss == "softmax" else (2, 7))]
    expected, *_ = pools(4).run(train_few_items, [(n_items, {"training.loss": loss}) for n_items, _ in cases])
    for answers in pools(4).run(train_few_items, cases):
        for answer, one in zip(answers, expected, strict=True):
            assert answer["losses"] == pytest.approx(one["losses"], abs=1e-5)


def test_groups_of_another_size_than_divides_the_processes_are_refused_on_all(
    pools: Any, small_config: Settings
) -> None:
    first, *others = pools(4).run(refusal, small_config(**{"parallelism.sharding_group_size": 3}), 20)
    assert "parallelism.sharding_group_size = 3" in first
    assert others == [first] * 3


def test_each_group_and_each_shard_has_its_own_messages(pools: Any) -> None:
    """Processes 0, 1 and 2, 3 are groups; 0, 2 and 1, 3 hold the same. Evaluation deals each what its shard has."""
    assert pools(4).run(sums_in_groups) == [
        (1.0, 2.0, 1.0, [[0.0], [1.0]], range(2)),
        (1.0, 4.0, 2.0, [[0.0], [1.0]], range(4, 6)),
        (5.0, 2.0, 1.0, [[2.0], [3.0]], range(2, 4)),
        (5.0, 4.0, 2.0, [[2.0], [3.0]], range(6, 8)),
    ]
