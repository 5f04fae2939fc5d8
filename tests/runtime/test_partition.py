"""What processes that share a work tell each other, worked out by hand."""

from typing import Any

import pytest

from tests.processes import jobs


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_rows_of_all_ranks_stand_one_after_another(pools: Any, n_processes: int) -> None:
    answers = pools(n_processes).run(jobs.share_rows)
    expected_rows = [[rank, rank] for rank in range(n_processes) for _ in range(2 * rank)]
    total = [sum(range(n_processes)), n_processes]
    starts = [0, 0, 2, 6]
    for rank, answer in enumerate(answers):
        stacked = [[other] for other in range(n_processes)]
        assert answer == (expected_rows, (starts[rank], starts[rank + 1]), total, stacked)
