"""Gradients of looked-up vectors on their way back to the rows that are trained as ordinary parameters."""

from typing import Any

import pytest
import torch

from bert4rec.models.tables.dense_shard import DenseShard, Route
from bert4rec.runtime.collectives import Partition
from tests.processes import jobs

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
        vectors = shard.connect(torch.zeros(len(ids), 2), Route(torch.tensor(ids) - 4))
        (vectors * torch.tensor(factors)[:, None]).sum().backward()
    assert shard.weight.grad is not None
    assert shard.weight.grad.tolist() == [[1, 1], [20, 20], [42, 42]]
    with torch.no_grad():
        shard.weight.fill_(8)
    assert table.tolist() == [[8, 8]] * 3
