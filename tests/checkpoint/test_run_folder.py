"""Run folders: runs, checkpoints and weights are found or refused, and one job at a time works in a folder."""

import json
import os
import shutil
from pathlib import Path

import pytest

from bert4rec.checkpoint.package import FORMAT, VERSION, is_package, read_settings
from bert4rec.checkpoint.resume import find
from bert4rec.checkpoint.run_folder import (
    METADATA_VERSION,
    Trained,
    checkpoint_of,
    find_trained,
    found,
    lock,
    named_run,
    new_folder,
    newest_run,
    runs,
)
from bert4rec.runtime import files
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.fixture_types import Capture, Patch
from tests.runs import Make, edit_facts

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


def test_a_run_its_best_checkpoint_another_and_one_alone(whole: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    best = (whole / "checkpoints" / "best").resolve()
    other = find_trained(next(path for path in found(whole / "checkpoints") if path != best))
    trained = find_trained(whole)
    assert (trained.folder, trained.run, trained.n_items, trained.is_reported) == (best, whole, 130, True)
    assert find_trained(whole / "checkpoints" / "best") == trained
    assert (other.run, other.is_reported, other.checksum == trained.checksum) == (whole, False, False)
    alone = find_trained(Path(shutil.copytree(best, tmp_path / "alone")))
    assert (alone.folder, alone.run, alone.is_reported) == (tmp_path / "alone", None, False)
    monkeypatch.chdir(whole.parent)
    assert find_trained(whole).folder == best.relative_to(whole.parent)
    config = trained.metadata["config"] | {"data": {"dataset_dir": "data/x"}, "run": {"dir": "a/b/runs"}}
    for folder in (Path("/model"), Path("/")):  # moved near the root
        moved = Trained(folder / "checkpoints" / "step-1", {**trained.metadata, "config": config}, folder)
        assert moved.dataset == Path("data/x")


def test_what_cannot_be_used_is_refused(whole: Path, tmp_path: Path) -> None:
    def assert_refused(path: Path, named: object) -> None:
        with pytest.raises(DataError, match=str(named)):
            find_trained(path)

    assert_refused(tmp_path, tmp_path)
    best = (whole / "checkpoints" / "best").resolve()
    for version in (METADATA_VERSION - 1, METADATA_VERSION + 1):
        edit_facts(best, lambda facts: facts.update(facts_version=version))  # noqa: B023
        assert_refused(whole, f"{best}: .* {version}")
    edit_facts(best, lambda facts: facts.update(facts_version=METADATA_VERSION))
    (best / "manifest.json").unlink()
    assert_refused(best, "manifest.json")
    (best / "facts.json").write_text("{")
    assert_refused(best, "facts.json")
    with pytest.raises(DataError, match=r'^runs/old: model.kind = "gru"'):
        _ = Trained(Path("runs/old"), {"config": {"model": {"kind": "gru"}}}, None).kind


def test_a_package_that_is_foreign_newer_damaged_or_without_weights_is_refused(tmp_path: Path) -> None:
    def write(settings: object, *others: str) -> None:
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        files.write_manifest(tmp_path, files.describe(tmp_path, ["settings.json", *others]))

    whole, weights = {"format": FORMAT, "format_version": VERSION}, tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    write(whole, weights.name)
    assert (is_package(tmp_path), is_package(tmp_path / "nowhere")) == (True, False)
    assert read_settings(tmp_path) == whole
    for settings in (whole | {"format_version": VERSION + 1}, whole | {"format": "pipeline"}, []):
        write(settings, weights.name)
        with pytest.raises(DataError, match=str(tmp_path)):
            read_settings(tmp_path)
    weights.write_bytes(b"Weights")
    with pytest.raises(DataError, match=weights.name):
        read_settings(tmp_path)
    weights.unlink()
    write(whole)
    with pytest.raises(DataError, match="--format=safetensors"):
        read_settings(tmp_path)
