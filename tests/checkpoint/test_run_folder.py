"""Where runs and their checkpoints are found, and that one job at a time works there."""

import os
import shutil
from pathlib import Path

import pytest

from bert4rec.checkpoint.resume import find
from bert4rec.checkpoint.run_folder import checkpoint_of, found, lock, named_run, new_folder, newest_run, runs
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.fixture_types import Capture
from tests.runs import Make

pytestmark = pytest.mark.usefixtures("alone")


def test_one_job_at_a_time_works_in_a_folder(make: Make, whole: Path) -> None:
    with lock(whole), pytest.raises(SettingsError, match=f"{whole}: .*{os.getpid()}"):
        run(make(**{"run.resume": str(whole)}))
    leave_group()
    with lock(whole):
        pass


@pytest.mark.usefixtures("group_of_one")
def test_the_newest_unfinished_run_or_the_named_one_is_resumed(whole: Path, tmp_path: Path, capsys: Capture) -> None:
    def resumed(resume: str, parent: Path, name: str) -> Path | None:
        resumption = find(resume, parent, name, claim=lambda _: None)
        return resumption and resumption.run

    parent = tmp_path / "checkpoints"  # runs may be in a folder of that name
    for name in ("broken-2", "broken-10", "broken-x"):
        shutil.copytree(whole, parent / name, symlinks=True)
        (parent / name / "report.json").unlink()
    assert resumed("auto", parent, "broken") == parent / "broken-10"
    assert resumed(str(parent / "broken-x"), parent, "broken") == parent / "broken-x"
    (parent / "broken-10" / "report.json").touch()
    assert resumed("auto", parent, "broken") == parent / "broken-2"
    capsys.readouterr()
    assert resumed("auto", tmp_path / "none", whole.name) is None
    assert resumed("auto", whole.parent, whole.name) is None  # it is finished
    assert capsys.readouterr().out.count("nothing to resume") == 2
    for path in ("no/where", str(tmp_path)):
        with pytest.raises(SettingsError, match=f'run.resume = "{path}"'):
            resumed(path, parent, "broken")


def test_a_new_run_takes_the_next_number(tmp_path: Path) -> None:
    parent = tmp_path / "runs"
    assert [new_folder(parent, "x").name for _ in range(3)] == ["x", "x-2", "x-3"]
    (parent / "x-2").rmdir()
    assert new_folder(parent, "x") == parent / "x-2"
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"run\.dir"):
        new_folder(tmp_path / "file", "x")


def test_runs_are_found_by_number_and_told_by_their_reports(tmp_path: Path) -> None:
    def newest() -> list[Path | None]:
        return [newest_run(tmp_path, "x", is_finished=done) for done in (False, True)]

    for name in ("x", "x-2", "x-10", "x-y", "xx", "x-3"):
        (tmp_path / name / "checkpoints" / "step-000000004").mkdir(parents=True)
    (tmp_path / "x-11").mkdir()  # without a checkpoint
    assert [path.name for path in runs(tmp_path, "x")] == ["x", "x-2", "x-3", "x-10", "x-11"]
    assert newest() == [tmp_path / "x-10", None]
    for name in ("x-2", "x-10"):
        (tmp_path / name / "report.json").touch()
    assert newest() == [tmp_path / "x-3", tmp_path / "x-10"]


def test_only_whole_checkpoints_are_found_and_can_be_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for name in ("step-000000020", "step-000000003", "step-000000030.tmp", "step-000000007.old", "set-aside"):
        (folder / name).mkdir(parents=True)
    (folder / "step-000000040").touch()
    first, last, best = folder / "step-000000003", folder / "step-000000020", folder / "best"
    assert found(folder) == [first, last]
    with pytest.raises(DataError, match=str(tmp_path)):
        checkpoint_of(tmp_path)
    for step in (first, last):
        (step / "facts.json").touch()
    assert (checkpoint_of(tmp_path), checkpoint_of(first)) == (last, first)
    best.symlink_to(first.name)
    assert checkpoint_of(tmp_path) == best
    named = [named_run(str(path)) for path in (tmp_path, folder, last, best)]
    assert named == [(tmp_path, None), (tmp_path, None), (tmp_path, last), (tmp_path, first)]
    for name in ("step-000000030.tmp", "step-000000040", "step-5"):
        with pytest.raises(SettingsError, match=f'run.resume = "{folder}/{name}"'):
            named_run(f"{folder}/{name}")
