"""Tables in shards: lookups, ids in messages, gradients on their way back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from bert4rec.config.tables import Config
from bert4rec.feed.batch import Lookup
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import DenseShard, GradientRoute, Table
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.parallelize import unwrap
from tests.conftest import FACTORS, long
from tests.models.networks import N_ITEMS, POSITIONS, SEQUENCES, WIDTH, WithGroups, batch, hidden_of, model
from tests.processes import jobs


def lookups() -> dict[str, Lookup]:
    return {"b": Lookup.of(torch.tensor([0, 4, 1])), "a": Lookup.of(torch.tensor([4]))}


def table_of_rows() -> Table:
    table = Table("thing", n_rows=5, width=4, features=["a", "b"], device="cpu")
    torch.nn.init.normal_(table.weight)
    return table


def train_waiting_for_ids(config: Config, folder: Path) -> dict[str, Any]:
    """`train_part` where no lookup begins before its turn."""
    with mock.patch.object(RankingModel, "begin_lookups"):
        return jobs.train_part(config, folder)


def open_exchanges_after(config: Config, *, n_begun: int) -> tuple[int, int]:
    """How many lookups of a model's tables are open when `n_begun` were begun, and when they are discarded."""
    model: RankingModel = unwrap(jobs.set_up(config)[2])
    for first in range(n_begun):
        ids = Lookup.of(torch.arange(first, first + 5))
        model.item_table.begin({"item": ids})
    exchange = model.item_table.exchange
    n_open = len(exchange._open)
    model.discard_lookups()
    return n_open, len(exchange._open)


def send_gradients_back(ids: list[list[int]]) -> list[list[float]]:
    """What arrives at this rank's shard of 7 rows when every rank's loss is the sum of id × vector."""
    partition = Partition(dist.get_rank(), dist.get_world_size())
    rows_per_process = -(-7 // partition.n_processes)
    first = partition.rank * rows_per_process
    n_rows = max(0, min(rows_per_process, 7 - first))
    shard = DenseShard(torch.zeros(n_rows, 1), first=first, partition=partition)
    mine = torch.tensor(ids[partition.rank], dtype=torch.int64)
    order = (mine // rows_per_process).argsort(stable=True)
    sent = torch.bincount(mine // rows_per_process, minlength=partition.n_processes).tolist()
    received = partition.exchange(torch.tensor(sent), [1] * partition.n_processes).tolist()
    rows = partition.exchange(mine[order], sent) - first
    route = GradientRoute(rows, order.argsort() if partition.n_processes > 1 else None, sent, received)
    (shard.connect(torch.zeros(len(mine), 1), route) * mine[:, None]).sum().backward()
    return shard.weight.grad.tolist()


def test_each_feature_has_the_rows_of_its_ids() -> None:
    table = table_of_rows()
    found = table.look_up(lookups())
    assert torch.equal(found["a"], table.weight[[4]])
    assert torch.equal(found["b"], table.weight[[0, 4, 1]])
    found = table.look_up({"b": lookups()["b"]})
    assert (found["a"].shape, found["b"].shape) == ((0, 4), (3, 4))


def test_a_model_knows_all_its_tables() -> None:
    assert [table.config.name for table in model(WithGroups).tables] == ["item", "group"]


@pytest.mark.parametrize("head", ["tied", "linear"])
def test_candidates_give_the_scores_that_training_used(head: str) -> None:
    network = model(head=head)
    asked = batch(SEQUENCES, POSITIONS)
    vectors = network.item_table.candidates(Lookup.of(torch.arange(N_ITEMS)))
    assert vectors.shape == (N_ITEMS, WIDTH + {"tied": 4, "linear": 1}[head])
    scores = hidden_of(network, asked) @ vectors.T
    torch.testing.assert_close(F.cross_entropy(scores, asked.targets, reduction="sum"), network(asked))


ADAM = {"parallelism.sparse_optimizer": "adam"}  # rows are trained as parameters: gradients go the ids' way back
COMMON = {"parallelism.mode": "dmp", "training.n_epochs": 1, "training.n_train_negatives": 20}
SETTINGS: list[Any] = [
    {"training.loss": "sampled_softmax"},
    {"training.loss": "sampled_softmax"} | ADAM,
    long({"training.loss": "softmax"}),
    long(FACTORS | {"training.loss": "sampled_softmax"} | ADAM),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_training_is_the_same_to_the_bit_as_without(
    pools: Any, small_config: Callable[..., Config], settings: dict[str, Any], tmp_path: Path
) -> None:
    config = small_config(**COMMON | settings)
    found = pools(2).run(jobs.train_part, config, tmp_path / "early")
    expected = pools(2).run(train_waiting_for_ids, config, tmp_path / "late")
    assert len(found[0]["losses"]) > 1
    for mine, other in zip(found, expected, strict=True):
        assert mine["losses"] == other["losses"]
        assert mine["metrics"] == other["metrics"]
        for kind in ("weights", "moments"):
            np.testing.assert_equal(mine[kind], other[kind])


def test_what_was_begun_and_does_not_come_is_ended(pools: Any, small_config: Callable[..., Config]) -> None:
    config = small_config(**COMMON | {"training.loss": "sampled_softmax"})
    assert pools(2).run(open_exchanges_after, config, n_begun=2) == [(2, 0)] * 2
    with pytest.raises(AssertionError, match="a lookup that was begun has not come"):
        pools(2).run(open_exchanges_after, config, n_begun=3)


IDS = [[0, 6, 3, 3], [], [6, 1, 3]]  # of three ranks: repeated, none, and some of all shards


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_gradients_go_to_the_owner_of_the_row(pools: Any, n_processes: int) -> None:
    ids = IDS[:n_processes]
    counts = [sum(some.count(row) for some in ids) for row in range(7)]
    expected = [[count * row / n_processes] for row, count in enumerate(counts)]  # the mean over the processes
    found = [row for shard in pools(n_processes).run(send_gradients_back, ids) for row in shard]
    assert [value for (value,) in found] == pytest.approx([value for (value,) in expected])


def test_a_shard_is_a_parameter_in_the_memory_of_the_table_and_its_gradients_add_up() -> None:
    """Rows 4, 5 and 6; two lookups, the second with a row twice."""
    table = torch.zeros(3, 2)
    shard = DenseShard(table, first=4, partition=Partition())
    for ids, factors in (([4, 6], [1.0, 2.0]), ([6, 5, 6], [10.0, 20.0, 30.0])):
        vectors = shard.connect(torch.zeros(len(ids), 2), GradientRoute(torch.tensor(ids) - 4))
        (vectors * torch.tensor(factors)[:, None]).sum().backward()
    assert shard.weight.grad.tolist() == [[1, 1], [20, 20], [42, 42]]
    with torch.no_grad():
        shard.weight.fill_(8)
    assert table.tolist() == [[8, 8]] * 3
