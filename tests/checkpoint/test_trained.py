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


def test_a_run_its_best_checkpoint_another_one_and_one_by_itself(
    whole: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    best = (whole / "checkpoints" / "best").resolve()
    other = next(path for path in found(whole / "checkpoints") if path != best)
    trained = find_trained(whole)
    assert (trained.folder, trained.run, trained.n_items, trained.is_reported) == (best, whole, 130, True)
    assert find_trained(whole / "checkpoints" / "best") == trained
    assert (find_trained(other).run, find_trained(other).is_reported) == (whole, False)
    assert find_trained(other).checksum != trained.checksum
    alone = Path(shutil.copytree(best, tmp_path / "alone"))
    trained = find_trained(alone)
    assert (trained.folder, trained.run, trained.is_reported) == (alone, None, False)
    monkeypatch.chdir(whole.parent)
    assert find_trained(whole).folder == best.relative_to(whole.parent)


def test_a_run_that_was_moved_near_the_root_has_its_dataset_where_the_settings_say(made: Path) -> None:
    metadata = dict(find_trained(made).metadata)
    metadata["config"] = metadata["config"] | {"data": {"dataset_dir": "data/x"}, "run": {"dir": "a/b/runs"}}
    for run in (Path("/model"), Path("/")):
        assert Trained(run / "checkpoints" / "step-1", metadata, run).dataset == Path("data/x")


def test_what_cannot_be_used_is_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        find_trained(tmp_path)
    best = (whole / "checkpoints" / "best").resolve()
    for version in (METADATA_VERSION - 1, METADATA_VERSION + 1):  # an older one, a newer one
        edit_facts(best, lambda facts: facts.update(facts_version=version))  # noqa: B023
        with pytest.raises(DataError, match=rf"{best}: .* {version}"):
            find_trained(whole)
    edit_facts(best, lambda facts: facts.update(facts_version=METADATA_VERSION))
    (best / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"manifest.json"):
        find_trained(best)
    (best / "facts.json").write_text("{")
    with pytest.raises(DataError, match=r"facts.json"):
        find_trained(best)


def seal(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.name != files.MANIFEST]
    files.write_manifest(folder, files.describe(folder, names))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "settings.json").write_text(json.dumps({"format": FORMAT, "format_version": VERSION}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    seal(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "settings", [{"format": FORMAT, "format_version": VERSION + 1}, {"format": "pipeline", "format_version": 1}, []]
)
def test_a_foreign_or_newer_package_is_refused(package: Path, settings: object) -> None:
    assert is_package(package)
    assert not is_package(package / "nowhere")
    assert read_settings(package) == {"format": FORMAT, "format_version": VERSION}
    (package / "settings.json").write_text(json.dumps(settings))
    seal(package)
    with pytest.raises(DataError, match=str(package)):
        read_settings(package)
    (package / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(DataError, match=r"model.safetensors"):
        read_settings(package)


def test_a_package_without_weights_is_refused(package: Path) -> None:
    (package / "model.safetensors").unlink()
    seal(package)
    with pytest.raises(DataError, match="--format=safetensors"):
        read_settings(package)
