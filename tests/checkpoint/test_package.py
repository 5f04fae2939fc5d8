"""Which folders are model packages, and what is said of those that are not."""

import json
from pathlib import Path

import pytest

from bert4rec.checkpoint.package import FORMAT, VERSION, is_package, read_settings
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError


def seal(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.name != manifest.MANIFEST]
    manifest.seal(folder, manifest.describe(folder, names))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "settings.json").write_text(json.dumps({"format": FORMAT, "format_version": VERSION}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    seal(tmp_path)
    return tmp_path


def test_a_whole_one_says_what_it_is(package: Path) -> None:
    assert is_package(package)
    assert read_settings(package) == {"format": FORMAT, "format_version": VERSION}
    assert not is_package(package / "nowhere")


def test_a_damaged_one_is_refused(package: Path) -> None:
    (package / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(DataError, match=r"package is damaged: model.safetensors has another checksum; export it again"):
        read_settings(package)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"format": FORMAT, "format_version": 4}, "version 4 .* 3"),
        ({"format": FORMAT, "format_version": 2}, "version 2 .* 3"),
        ({"format": "pipeline", "format_version": 1}, "is no model package: settings.json does not say so"),
        ([], "is no model package: settings.json does not say so"),
    ],
)
def test_a_foreign_or_newer_one_is_refused(package: Path, settings: object, problem: str) -> None:
    (package / "settings.json").write_text(json.dumps(settings))
    seal(package)
    with pytest.raises(DataError, match=problem):
        read_settings(package)


def test_one_without_weights_is_refused(package: Path) -> None:
    (package / "model.safetensors").unlink()
    seal(package)
    with pytest.raises(DataError, match=r"holds no model.safetensors; export it again with --format=safetensors"):
        read_settings(package)
