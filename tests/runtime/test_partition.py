"""What processes that share a work tell each other, worked out by hand."""

from typing import Any

import pytest

from tests.processes import jobs

IDS = [[0, 6, 3, 3], [], [6, 1, 3]]  # of three ranks: repeated, none, and some of all shards


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_rows_of_all_ranks_stand_one_after_another(pools: Any, n_processes: int) -> None:
    answers = pools(n_processes).run(jobs.share_rows)
    expected_rows = [[rank, rank] for rank in range(n_processes) for _ in range(2 * rank)]
    total = [sum(range(n_processes)), n_processes]
    starts = [0, 0, 2, 6]
    for rank, answer in enumerate(answers):
        stacked = [[other] for other in range(n_processes)]
        assert answer == (expected_rows, (starts[rank], starts[rank + 1]), total, stacked)


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_gradients_go_to_the_owner_of_the_row(pools: Any, n_processes: int) -> None:
    ids = IDS[:n_processes]
    counts = [sum(some.count(row) for some in ids) for row in range(7)]
    expected = [[count * row / n_processes] for row, count in enumerate(counts)]  # the mean over the processes
    found = [row for shard in pools(n_processes).run(jobs.send_gradients_back, ids) for row in shard]
    assert [value for (value,) in found] == pytest.approx([value for (value,) in expected])
