"""Compare the plan of a preparation with preparations: tasks, files and bytes of each stage, and the disk.

Memory and seconds are compared by `python -m benchmarks.prepare_accuracy`.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.prepare_accuracy import write_input
from bert4rec.prepare import reckon
from bert4rec.prepare.reckon import Log, stages_of
from bert4rec.prepare.stages import Done, Stages
from tests.preparation import prepared, small_parts, small_tasks

N_ROWS, ROWS, PART_ROWS = 30_000, 5000, 10_000  # of the input, of a run or range, of a part
AS_SMALL = {
    "ROWS_PER_PIECE": 1000, "ROWS_PER_RUN": ROWS, "ROWS_PER_RANGE": ROWS, "ITEMS_PER_RANGE": ROWS // 2,
    "ROWS_PER_PART": PART_ROWS,
}  # fmt: skip


class Recorded(Stages):
    """Stages that note what they write, and the largest size of the folder of tasks."""

    found: dict[str, tuple[int, int, int]]
    most = 0

    def run(self, stage: str, *arguments: Any, **options: Any) -> list[Done]:
        done = super().run(stage, *arguments, **options)
        files = [path for folder, _ in done for path in folder.rglob("*") if path.is_file()]
        Recorded.found[stage] = len(done), len(files), sum(path.stat().st_size for path in files)
        Recorded.most = max(Recorded.most, _size(self.work))
        return done


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("n_users", "n_items", "text", "options"),
    [
        (3000, 2000, 0, ["--preprocessing.min_item_interactions=2"]),
        (15_000, 500, 36, []),
        (1000, 15_000, 0, ["--preprocessing.test_users=50"]),
    ],
)
def test_tasks_files_and_bytes_are_as_reckoned(
    tmp_path: Path, n_users: int, n_items: int, text: int, options: list[str]
) -> None:
    path = tmp_path / "log.parquet"
    users, items = write_input(path, N_ROWS, n_users, n_items, texts=text > 0, row_group=1000)
    Recorded.found, Recorded.most = {}, 0
    with patch("bert4rec.prepare.engine.Stages", Recorded), small_tasks(ROWS), small_parts(PART_ROWS):
        folder = prepared(tmp_path, "--data.source=table", f"--data.path={path}", *options)
    n_testable = reckon.testable(N_ROWS, users)
    with patch.multiple(reckon, **AS_SMALL):
        is_sampled = "test_users" in "".join(options)
        log = Log(N_ROWS, users, items, text, 50 if is_sampled else n_testable, n_negatives=1)
        stages = stages_of(log, has_limits="min_item" in "".join(options), n_candidates=n_testable * is_sampled)
        n_bytes, _, n_files = reckon.dataset_of(log, stages)
        most = reckon.work_bytes(stages)
    names = {"shuffle": "shuffle-new", "limits, a round": "limits-001"}
    found = [Recorded.found[names.get(stage.name, stage.name)] for stage in stages]
    assert len(Recorded.found) == len(stages)
    about = [(stage.tasks, stage.files, stage.written) for stage in stages]
    assert about == [pytest.approx(counts, rel=0.25, abs=1) for counts in found]
    assert n_files == pytest.approx(sum(path.is_file() for path in folder.rglob("*")), abs=2)
    assert [n_bytes, most] == pytest.approx([_size(folder), Recorded.most], rel=0.25)
