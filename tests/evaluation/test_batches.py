"""Batches: each is some process's own exactly once, and all processes run as many."""

from typing import Any

import pytest

from bert4rec.evaluation.batches import cut, dealt
from bert4rec.runtime.collectives import Partition
from tests.processes import jobs


def test_slices_cover_everything_once() -> None:
    assert [list(range(10))[where] for where in cut(10, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(cut(0, 4)) == []


@pytest.mark.parametrize("n_batches", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("n_processes", [1, 2, 3, 5])
def test_batches_are_dealt(n_batches: int, n_processes: int) -> None:
    runs = [list(dealt(n_batches, Partition(rank, n_processes))) for rank in range(n_processes)]
    assert len({len(of_process) for of_process in runs}) == 1
    assert sorted(number for of_process in runs for number, is_own in of_process if is_own) == list(range(n_batches))
    assert all(0 <= number < n_batches for of_process in runs for number, _ in of_process)


def test_what_was_found_for_batches_comes_in_their_order(pools: Any) -> None:
    for n_processes in (1, 2, 3):
        assert pools(n_processes).run(jobs.collect_batches, 7, 2) == [list(range(7))] * n_processes
