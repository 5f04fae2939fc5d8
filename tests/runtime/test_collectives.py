"""What processes tell each other, worked out by hand."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from bert4rec.runtime.collectives import Partition, all_agree, all_reduce_min, gather_or_raise, on_rank_zero
from bert4rec.runtime.errors import SettingsError


def fail_on_the_first(message: str) -> str:
    """Return the error that `on_rank_zero` raises on this rank."""

    def refuse() -> None:
        raise SettingsError(message)

    try:
        on_rank_zero(refuse)
    except SettingsError as error:
        return str(error)
    return "nothing was raised"


def smallest() -> tuple[int, bool, bool]:
    rank = dist.get_rank()
    return all_reduce_min(10**12 - rank), all_agree(True), all_agree(rank == 0)


def answer_of_the_first() -> int:
    return on_rank_zero(lambda: 7 + dist.get_rank())


def share_rows() -> tuple[list[list[int]], tuple[int, int], list[int], list[list[int]]]:
    """Return the ragged rows of all ranks, the place of this rank's rows, a sum, and stacked values."""
    partition = Partition(dist.get_rank(), dist.get_world_size())
    mine = torch.full((2 * partition.rank, 2), partition.rank)  # the first rank has none
    rows, where = partition.concatenate(mine)
    total = partition.sum(torch.tensor([partition.rank, 1]))
    stacked = partition.stack(torch.tensor([partition.rank]))
    return rows.tolist(), (where.start, where.stop), total.tolist(), stacked.tolist()


def exchange_rows() -> list[list[int]]:
    """Each process gives process r r rows, which say who gives and who gets."""
    partition = Partition(dist.get_rank(), dist.get_world_size())
    given = [[partition.rank, other] for other in range(partition.n_processes) for _ in range(other)]
    rows = torch.tensor(given).view(-1, 2)
    return partition.exchange(rows, [*range(partition.n_processes)]).tolist()


def fail_on_the_last(message: str) -> str | list[int]:
    """Return the answers of all ranks, or the error of the last rank."""

    def answer() -> int:
        if message and dist.get_rank() == dist.get_world_size() - 1:
            raise SettingsError(message)
        return dist.get_rank()

    try:
        return gather_or_raise(answer)
    except SettingsError as error:
        return str(error) if error.is_on_all else "on one alone"


@pytest.mark.parametrize(
    ("job", "arguments", "answer"),
    [
        (answer_of_the_first, [], 7),  # what the first process returns or raises holds for all
        (fail_on_the_first, ["no room"], "no room"),
        (smallest, [], (10**12 - 2, True, False)),  # the smallest of all, and whether all agree
        (fail_on_the_last, [""], [0, 1, 2]),  # an error of any process is raised on all
        (fail_on_the_last, ["no room"], "no room"),
    ],
)
def test_all_processes_hear_the_same(pools: Any, job: Any, arguments: list[str], answer: object) -> None:
    assert pools(3).run(job, *arguments) == [answer] * 3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_rows_of_all_ranks_stand_one_after_another_or_are_exchanged(pools: Any, n: int) -> None:
    rows = [[rank, rank] for rank in range(n) for _ in range(2 * rank)]
    total, stacked, starts = [sum(range(n)), n], [[other] for other in range(n)], [0, 0, 2, 6]
    expected = [(rows, (starts[rank], starts[rank + 1]), total, stacked) for rank in range(n)]
    assert pools(n).run(share_rows) == expected
    given = [[[other, rank] for other in range(n) for _ in range(rank)] for rank in range(n)]
    assert pools(n).run(exchange_rows) == given
