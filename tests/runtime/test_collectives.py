"""What processes tell each other, worked out by hand."""

from typing import Any

import pytest

from tests.processes import jobs


@pytest.mark.parametrize(
    ("job", "arguments", "answer"),
    [
        (jobs.answer_of_the_first, [], 7),  # what the first process returns or raises holds for all
        (jobs.fail_on_the_first, ["no room"], "no room"),
        (jobs.smallest, [], (10**12 - 2, True, False)),  # the smallest of all, and whether all agree
        (jobs.fail_on_the_last, [""], [0, 1, 2]),  # an error of any process is raised on all
        (jobs.fail_on_the_last, ["no room"], "no room"),
    ],
)
def test_all_processes_hear_the_same(pools: Any, job: Any, arguments: list[str], answer: object) -> None:
    assert pools(3).run(job, *arguments) == [answer] * 3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_rows_of_all_ranks_stand_one_after_another_or_are_exchanged(pools: Any, n: int) -> None:
    rows = [[rank, rank] for rank in range(n) for _ in range(2 * rank)]
    total, stacked, starts = [sum(range(n)), n], [[other] for other in range(n)], [0, 0, 2, 6]
    expected = [(rows, (starts[rank], starts[rank + 1]), total, stacked) for rank in range(n)]
    assert pools(n).run(jobs.share_rows) == expected
    given = [[[other, rank] for other in range(n) for _ in range(rank)] for rank in range(n)]
    assert pools(n).run(jobs.exchange_rows) == given
