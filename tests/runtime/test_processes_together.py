"""The first process decides, and fails, for all."""

from typing import Any

from tests.processes import jobs


def test_what_the_first_process_says_holds_for_all(pools: Any) -> None:
    assert pools(3).run(jobs.answer_of_the_first) == [7, 7, 7]


def test_the_least_of_all_processes(pools: Any) -> None:
    assert pools(3).run(jobs.least) == [(10**12 - 2, None)] * 3


def test_an_error_of_the_first_process_is_raised_on_all(pools: Any) -> None:
    assert pools(3).run(jobs.fail_on_the_first, "no room") == ["no room"] * 3
