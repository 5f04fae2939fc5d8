"""What processes tell each other, worked out by hand."""

from typing import Any

import pytest

from tests.processes import jobs


def test_what_the_first_process_returns_or_raises_holds_for_all(pools: Any) -> None:
    assert pools(3).run(jobs.answer_of_the_first) == [7, 7, 7]
    assert pools(3).run(jobs.fail_on_the_first, "no room") == ["no room"] * 3


def test_the_smallest_of_all_processes_and_whether_all_agree(pools: Any) -> None:
    assert pools(3).run(jobs.smallest) == [(10**12 - 2, True, False)] * 3


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_rows_of_all_ranks_stand_one_after_another(pools: Any, n_processes: int) -> None:
    answers = pools(n_processes).run(jobs.share_rows)
    expected_rows = [[rank, rank] for rank in range(n_processes) for _ in range(2 * rank)]
    total = [sum(range(n_processes)), n_processes]
    starts = [0, 0, 2, 6]
    for rank, answer in enumerate(answers):
        stacked = [[other] for other in range(n_processes)]
        assert answer == (expected_rows, (starts[rank], starts[rank + 1]), total, stacked)


def test_an_error_of_any_process_is_raised_on_all(pools: Any) -> None:
    assert pools(3).run(jobs.fail_on_the_last, "") == [[0, 1, 2]] * 3
    assert pools(3).run(jobs.fail_on_the_last, "no room") == ["no room"] * 3


@pytest.mark.parametrize("n_processes", [1, 2, 3])
def test_each_process_gets_what_the_others_have_for_it(pools: Any, n_processes: int) -> None:
    answers = pools(n_processes).run(jobs.exchange_rows)
    assert answers == [
        [[other, rank] for other in range(n_processes) for _ in range(rank)] for rank in range(n_processes)
    ]
