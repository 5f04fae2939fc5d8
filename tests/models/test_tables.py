"""Tables in shards: lookups, ids in messages, gradients on their way back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bert4rec.config.tables import Config
from bert4rec.feed.batch import Lookup
from bert4rec.models.tables import DenseShard, GradientRoute, Table
from bert4rec.runtime.collectives import Partition
from tests.conftest import FACTORS, long
from tests.models.networks import N_ITEMS, POSITIONS, SEQUENCES, WIDTH, WithGroups, batch, hidden_of, model
from tests.processes import jobs


def lookups() -> dict[str, Lookup]:
    return {"b": Lookup.of(torch.tensor([0, 4, 1])), "a": Lookup.of(torch.tensor([4]))}


def table_of_rows() -> Table:
    table = Table("thing", n_rows=5, width=4, features=["a", "b"], device="cpu")
    torch.nn.init.normal_(table.weight)
    return table


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
    FACTORS | {"training.loss": "sampled_softmax"} | ADAM,
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_training_is_the_same_to_the_bit_as_without(
    pools: Any, small_config: Callable[..., Config], settings: dict[str, Any], tmp_path: Path
) -> None:
    config = small_config(**COMMON | settings)
    found = pools(2).run(jobs.train_part, config, tmp_path / "early")
    expected = pools(2).run(jobs.train_waiting_for_ids, config, tmp_path / "late")
    assert len(found[0]["losses"]) > 1
    for mine, other in zip(found, expected, strict=True):
        assert mine["losses"] == other["losses"]
        assert mine["metrics"] == other["metrics"]
        for kind in ("weights", "moments"):
            np.testing.assert_equal(mine[kind], other[kind])


def test_what_was_begun_and_does_not_come_is_ended(pools: Any, small_config: Callable[..., Config]) -> None:
    config = small_config(**COMMON | {"training.loss": "sampled_softmax"})
    assert pools(2).run(jobs.open_exchanges_after, config, n_begun=2) == [(2, 0)] * 2
    with pytest.raises(AssertionError, match="a lookup that was begun has not come"):
        pools(2).run(jobs.open_exchanges_after, config, n_begun=3)


IDS = [[0, 6, 3, 3], [], [6, 1, 3]]  # of three ranks: repeated, none, and some of all shards


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_gradients_go_to_the_owner_of_the_row(pools: Any, n_processes: int) -> None:
    ids = IDS[:n_processes]
    counts = [sum(some.count(row) for some in ids) for row in range(7)]
    expected = [[count * row / n_processes] for row, count in enumerate(counts)]  # the mean over the processes
    found = [row for shard in pools(n_processes).run(jobs.send_gradients_back, ids) for row in shard]
    assert [value for (value,) in found] == pytest.approx([value for (value,) in expected])


def test_a_shard_is_a_parameter_in_the_memory_of_the_table_and_its_gradients_add_up() -> None:
    """Rows 4, 5 and 6; two lookups, the second with a row twice."""
    table = torch.zeros(3, 2)
    shard = DenseShard(table, first=4, partition=Partition())
    for ids, factors in (([4, 6], [1.0, 2.0]), ([6, 5, 6], [10.0, 20.0, 30.0])):
        vectors = shard.connect(torch.zeros(len(ids), 2), GradientRoute(torch.tensor(ids) - 4))
        (vectors * torch.tensor(factors)[:, None]).sum().backward()
    assert shard.weight.grad is not None
    assert shard.weight.grad.tolist() == [[1, 1], [20, 20], [42, 42]]
    with torch.no_grad():
        shard.weight.fill_(8)
    assert table.tolist() == [[8, 8]] * 3
