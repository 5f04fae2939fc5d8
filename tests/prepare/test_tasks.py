"""Tasks: what they write, however the rows are cut; once, twice, and on several processes."""

import json
import re
import tempfile
import time
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.prepare.executors import TaskExecutor, ThisProcess, WorkerDiedError
from bert4rec.prepare.runs import bounds_of, merged, number_items, read_batch, shuffle, together, write_run
from bert4rec.prepare.shared_work import RESULT
from bert4rec.prepare.stages import Stages, run_task, saved
from bert4rec.sources.progress import Progress

RUNS = st.lists(st.lists(st.tuples(st.integers(-3, 20), st.integers(0, 9)), min_size=1, max_size=30), max_size=6)


def frame_of(rows: list[tuple[int, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"user": pl.Int64, "item": pl.Int64}, orient="row")


@settings(max_examples=30, deadline=None)
@given(RUNS.filter(any), st.integers(1, 40), st.integers(0, 6), st.integers(0, 6))
def test_rows_come_back_by_ranges_of_users_in_their_order_with_the_ranks_of_their_items(
    runs: list[list[tuple[int, int]]], size: int, users_text_from: int, items_text_from: int
) -> None:
    """From some run on ids are text: those before become text, and sort as such."""
    with tempfile.TemporaryDirectory() as place:
        abouts, schemas, types = [], [], []
        for number, rows in enumerate(runs):
            texts = {"user": users_text_from, "item": items_text_from}
            frame = frame_of(rows).cast({name: pl.String for name, first in texts.items() if number >= first})
            abouts.append(write_run(Path(place), number, {"new": [frame[:1], frame[1:]], "known": []}))
            schemas.append(dict(frame.schema))
            types.append(frame.schema["item"])
        schema, item_type = merged(schemas), pl.String() if pl.String in types else pl.Int64()
        samples = {name: [(about[name]["sample"], about[name]["n"]) for about in abouts] for name in ("new", "items")}
        stages = Stages(Path(place), ThisProcess(), Progress())
        entries = [Path(place) / f"items-{number:03d}.parquet" for number in range(len(runs))]
        limits = [*pairwise([None, *bounds_of(samples["items"], item_type, size), None])]
        done = stages.run("items", number_items, [(entries, len(runs), None, item_type, pair, True) for pair in limits])
        firsts = np.cumsum([0, *(result["items"] for _, result in done)]).tolist()
        codes = [(folder / "codes.arrow", first) for (folder, _), first in zip(done, firsts, strict=False)]
        bounds = bounds_of(samples["new"], schema["user"], size)
        pl.DataFrame({"user": pl.Series(bounds, dtype=schema["user"])}).write_ipc(Path(place) / "bounds.arrow")
        arguments = [
            (Path(place) / f"new-{number:03d}.arrow", number, codes, schema, Path(place) / "bounds.arrow", None)
            for number in range(len(runs))
        ]
        shuffled = [folder / "rows.arrow" for folder, _ in stages.run("shuffle", shuffle, arguments)]
        parts = [pl.concat([read_batch(path, part) for path in shuffled]) for part in range(len(bounds) + 1)]
        originals = pl.concat([pl.read_ipc(folder / "items.arrow") for folder, _ in done])["item"].to_list()
    kinds = [str if name == pl.String else int for name in (schema["user"], item_type)]
    rows = [(kinds[0](user), kinds[1](item)) for run in runs for user, item in run]
    assert originals == sorted({item for _, item in rows})
    found = [row for part in parts for row in part.sort("user", maintain_order=True).iter_rows()]
    assert [(user, originals[code]) for user, code in found] == sorted(rows, key=lambda row: row[0])
    assert sum(part["user"].n_unique() for part in parts) == len({user for user, _ in rows})  # no user is in two


def test_columns_that_a_frame_lacks_are_0() -> None:
    frames = [pl.DataFrame({"user": [1], "item": [2]}), pl.DataFrame({"user": ["a"], "item": [3], "fraction": [7]})]
    assert together(frames).rows() == [("1", 2, 0), ("a", 3, 7)]


def write_number(folder: Path, number: int) -> dict[str, Any]:
    (folder / "number.txt").write_text(str(number))
    if number < 0:
        raise ValueError(number)
    return {"double": 2 * number}


def test_a_task_is_done_once_and_leaves_all_of_its_files_or_none(tmp_path: Path) -> None:
    assert run_task(write_number, tmp_path / "a", [3]) == {"double": 6}
    assert run_task(write_number, tmp_path / "a", [4]) == {"double": 6}  # it was done already
    assert (tmp_path / "a" / "number.txt").read_text() == "3"
    with pytest.raises(ValueError, match="-1"):
        run_task(write_number, tmp_path / "b", [-1])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    stages = Stages(tmp_path, ThisProcess(), Progress())
    assert [result["double"] for _, result in stages.run("c", write_number, [(1,), (2,)])] == [2, 4]
    stages.remove("c", "*.txt")
    assert [result["double"] for _, result in stages.run("c", write_number, [(8,), (9,)])] == [2, 4]
    assert not [*tmp_path.glob("c-*/number.txt")]


def test_a_task_that_has_begun_keeps_its_input_when_a_new_driver_writes_it_again(tmp_path: Path) -> None:
    mapped = np.load(saved(tmp_path / "ids.npy", np.arange(10**5)), mmap_mode="r")
    assert np.load(saved(tmp_path / "ids.npy", np.zeros(9))).tolist() == [0] * 9
    assert np.array_equal(mapped, np.arange(10**5))
    assert [path.name for path in tmp_path.iterdir()] == ["ids.npy"]


class Flaky(TaskExecutor):
    """An executor, not of this process, whose first attempt at each task with an odd number is lost."""

    def submit(self, task: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future = Future[Any]()
        future.set_result(self._try_again(lambda attempt: self._run(attempt, task, arguments)))
        return future

    def _run(self, attempt: int, task: Any, arguments: Any) -> Any:
        if not attempt and arguments[1][0] % 2:
            raise WorkerDiedError("lost")
        return task(*arguments)


def test_the_slowest_task_of_each_stage_and_repeats_are_told_of_workers_alone(tmp_path: Path) -> None:
    def line(executor: TaskExecutor, place: Path) -> str:
        place.mkdir()
        stages = Stages(place, executor, Progress())
        stages.run("fast", write_number, [(0,), (2,)])
        stages.run("slow", wait_a_while, [(0,), (300,), (0,)])
        results = [json.loads(path.read_text()) for path in sorted(place.glob(f"*/{RESULT}"))]
        assert results == [{"double": 0}, {"double": 4}, {}, {}, {}]  # the same bytes, whatever time it took
        return stages.slowest()

    assert line(ThisProcess(), tmp_path / "one") == ""
    assert re.match(r"slowest tasks: slow 1 0\.[3-9] s .*, fast [01] 0\.\d s .*", line(Flaky(), tmp_path / "several"))
    flaky = Flaky()
    Stages(tmp_path, flaky, Progress()).run("odd", write_number, [(1,), (2,), (3,)])
    assert flaky.n_repeats == 2


def wait_a_while(folder: Path, milliseconds: int) -> dict[str, Any]:
    time.sleep(milliseconds / 1000)
    return {}


def meet(folder: Path, begun: Path, number: int) -> dict[str, Any]:
    """Wait for the other task of one of two pairs; number 2 then fails."""
    (begun / str(number)).touch()
    while number < 4 and not (begun / str(number ^ 1)).exists():
        time.sleep(0.01)
    time.sleep(0.01)
    if number == 2:
        raise ValueError(number)
    return {"number": number}


def test_small_tasks_run_two_at_a_time_in_one_process_until_one_fails(tmp_path: Path) -> None:
    stages = Stages(tmp_path, ThisProcess(), Progress())
    done = stages.run("all", meet, [(tmp_path, number) for number in (0, 1)], are_small=True)
    assert [result["number"] for _, result in done] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        stages.run("some", meet, [(tmp_path, number) for number in (2, 3, *range(4, 40))], are_small=True)
    assert not (tmp_path / "39").exists()
    assert stages.run("then", write_number, [(1,)])[0].result == {"double": 2}
