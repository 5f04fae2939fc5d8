"""Which weights a path names: a run, a checkpoint, a model package; and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from bert4rec.checkpoint.package import FORMAT, VERSION, is_package, read_settings
from bert4rec.checkpoint.run_folder import METADATA_VERSION, Trained, find_trained, found
from bert4rec.runtime import files
from bert4rec.runtime.errors import DataError
from tests.fixture_types import Patch
from tests.runs import edit_facts


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
    for run in (Path("/model"), Path("/")):  # moved near the root
        moved = Trained(run / "checkpoints" / "step-1", {**trained.metadata, "config": config}, run)
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
