"""Tables in shards: lookups, ids in messages, gradients on their way back."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from bert4rec.config.tables import Config
from bert4rec.feed.batch import Lookup
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.tables import DenseShard, GradientRoute, Table
from bert4rec.runtime.collectives import Partition
from bert4rec.sharding.parallelize import unwrap
from bert4rec.training.run import run
from tests.conftest import FACTORS, long
from tests.processes import jobs
from tests.runs import Make


def train_waiting_for_ids(config: Config, folder: Path) -> dict[str, Any]:
    with mock.patch.object(RankingModel, "begin_lookups"):
        return jobs.train_part(config, folder)


def open_exchanges_after(config: Config, *, n_begun: int) -> tuple[int, int]:
    model: RankingModel = unwrap(jobs.set_up(config)[2])
    for first in range(n_begun):
        ids = Lookup.of(torch.arange(first, first + 5))
        model.item_table.begin({"item": ids})
    exchange = model.item_table.exchange
    n_open = len(exchange._open)
    model.discard_lookups()
    return n_open, len(exchange._open)


def test_each_feature_has_the_rows_of_its_ids() -> None:
    table = Table("thing", n_rows=5, width=4, features=["a", "b"], device="cpu")
    torch.nn.init.normal_(table.weight)
    ids = {"b": Lookup.of(torch.tensor([0, 4, 1])), "a": Lookup.of(torch.tensor([4]))}
    found = table.look_up(ids)
    assert torch.equal(found["a"], table.weight[[4]])
    assert torch.equal(found["b"], table.weight[[0, 4, 1]])
    assert table.look_up({"b": ids["b"]})["a"].shape == (0, 4)


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
    with pytest.raises(AssertionError):
        pools(2).run(open_exchanges_after, config, n_begun=3)


@pytest.mark.usefixtures("alone")
def test_neither_padding_nor_the_mask_token_and_every_id_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[int]] = []
    find = Table._find

    def recorded(self: Table, lookups: Mapping[str, Lookup]) -> Any:
        found.extend(lookup.ids.tolist() for lookup in lookups.values())
        return find(self, lookups)

    monkeypatch.setattr(Table, "_find", recorded)
    run(make(**{"training.loss": "gbce", "training.n_epochs": 1, "training.n_train_negatives": 20}))
    assert sum(map(len, found)) > 1000
    assert min(map(min, filter(None, found))) == 0
    assert all(len(ids) == len({*ids}) for ids in found)


def test_a_shard_is_a_parameter_in_the_memory_of_the_table_and_its_gradients_add_up() -> None:
    table = torch.zeros(3, 2)
    shard = DenseShard(table, first=4, partition=Partition())
    for ids, factors in (([4, 6], [1.0, 2.0]), ([6, 5, 6], [10.0, 20.0, 30.0])):
        vectors = shard.connect(torch.zeros(len(ids), 2), GradientRoute(torch.tensor(ids) - 4))
        (vectors * torch.tensor(factors)[:, None]).sum().backward()
    assert shard.weight.grad.tolist() == [[1, 1], [20, 20], [42, 42]]
    with torch.no_grad():
        shard.weight.fill_(8)
    assert table.tolist() == [[8, 8]] * 3
