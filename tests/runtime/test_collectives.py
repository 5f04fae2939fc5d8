"""Collectives of three processes, worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bert4rec.runtime.collectives import Partition, all_agree, all_reduce_min, gather_or_raise, on_rank_zero
from bert4rec.runtime.errors import SettingsError


def refuse() -> None:
    raise SettingsError("no room")


def error_of(function: Callable[[], object]) -> str:
    try:
        function()
    except SettingsError as error:
        return str(error) if error.is_on_all else "on one alone"
    return "nothing was raised"


def answers() -> tuple[object, ...]:
    rank, n = dist.get_rank(), dist.get_world_size()
    return (
        on_rank_zero(lambda: 7 + rank), error_of(lambda: on_rank_zero(refuse)),
        gather_or_raise(lambda: rank), error_of(lambda: gather_or_raise(refuse if rank == n - 1 else int)),
        all_reduce_min(10**12 - rank), all_agree(True), all_agree(rank == 0),
    )  # fmt: skip


def test_all_processes_hear_the_same(pools: Any) -> None:
    assert pools(3).run(answers) == [(7, "no room", [0, 1, 2], "no room", 10**12 - 2, True, False)] * 3


def share_rows(partition: Partition | None = None) -> tuple[list[Any], ...]:
    """Return the ragged rows of all ranks, the place of this rank's rows, a sum, stacked values, and received rows.

    Each process gives process r r rows, which say who gives and who gets.
    """
    partition = partition or Partition(dist.get_rank(), dist.get_world_size())
    mine = torch.full((2 * partition.rank, 2), partition.rank)  # the first rank has none
    rows, where = partition.concatenate(mine)
    total = partition.sum(torch.tensor([partition.rank, 1]))
    stacked = partition.stack(torch.tensor([partition.rank]))
    given = [[partition.rank, other] for other in range(partition.n_processes) for _ in range(other)]
    received = partition.exchange(torch.tensor(given).view(-1, 2), [*range(partition.n_processes)])
    return rows.tolist(), [where.start, where.stop], total.tolist(), stacked.tolist(), received.tolist()


@pytest.mark.parametrize("n", [1, 3])
def test_rows_of_all_ranks_stand_one_after_another_or_are_exchanged(pools: Any, n: int) -> None:
    rows, starts = [[rank, rank] for rank in range(n) for _ in range(2 * rank)], [0, 0, 2, 6]
    total, stacked = [sum(range(n)), n], [[other] for other in range(n)]
    received = [[[other, rank] for other in range(n) for _ in range(rank)] for rank in range(n)]
    found = [share_rows(Partition())] if n == 1 else pools(n).run(share_rows)
    assert found == [(rows, starts[rank : rank + 2], total, stacked, received[rank]) for rank in range(n)]
