"""Blocks of users, cut in threads, become the splits in the order of the users."""

from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np

from bert4rec.prepare.progress import Progress
from bert4rec.prepare.split.splits import leave_one_out
from bert4rec.prepare.stages.numbered_histories import NumberedHistories
from bert4rec.prepare.stages.split_rows import Cutter, in_order, write_splits
from bert4rec.prepare.stages.survey import Survey
from tests.prepare.stages.rows import ordered


def test_threads_keep_the_order() -> None:
    begun: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(9):
            begun.append(number)
            yield number

    results = in_order(lambda number: number**2, numbers(), n_threads=2)
    assert next(results) == 0
    assert begun == [0, 1, 2]
    assert list(results) == [number**2 for number in range(1, 9)]


def test_the_splits_hold_every_interaction_and_the_negatives(tmp_path: Path) -> None:
    parts = ordered(tmp_path / "parts", [(7, [0, 1, 2])], [(8, [3, 0]), (9, [1, 2, 3])])
    histories = NumberedHistories(parts, np.array([2, 3, 4, 5], np.int32), known=None)
    survey = Survey(np.array([3, 2, 3]), np.array([2, 1, 1, 1]), np.array([True, False, False]), None)
    cutter = Cutter(leave_one_out, survey, max_len=2, step=2, n_negatives=1, seed=1)
    writers, held_out = write_splits(tmp_path, histories, cutter, progress=Progress())
    found = {name: datasets.load_from_disk(str(tmp_path / name)).to_list() for name in writers}
    assert [(row["user"], row["items"]) for row in found["train"]] == [(0, [2]), (1, [5, 2]), (2, [3, 4])]
    assert [(row["user"], row["items"], row["target"]) for row in found["validation"]] == [(0, [2], 3)]
    assert [(row["user"], row["items"], row["target"]) for row in found["test"]] == [(0, [2, 3], 4), (2, [3, 4], 5)]
    assert [row["popular_negatives"] for row in found["test"]] == [[5], [2]]
    assert {name: writer.n_rows for name, writer in writers.items()} == {"train": 3, "validation": 1, "test": 2}
    assert held_out.users == {"validation": 1, "test": 2}
