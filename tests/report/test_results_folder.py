"""Results take the place of no others and are complete or absent; the environment of a run has no secrets."""

import platform
from pathlib import Path

import pytest
import torch

from bert4rec.report.results_folder import ResultsFolder, environment
from bert4rec.runtime.errors import SettingsError
from tests.fixture_types import Patch


def write(folder: Path, text: str) -> Path:
    with ResultsFolder(folder) as results:
        (results.unfinished / "a").write_text(text)
        return results.finish()


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: Patch) -> None:
    folder = tmp_path / "new" / "results"
    assert [write(folder, text).name for text in "xyz"] == ["results", "results-2", "results-3"]
    assert [path.read_text() for path in sorted(folder.parent.glob("*/a"))] == ["x", "y", "z"]
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert [write(tmp_path / name, "x").name for name in ("file", "empty")] == ["file-2", "empty"]
    monkeypatch.chdir(tmp_path / "empty")  # which has a file now
    assert write(Path("."), "x") == tmp_path / "empty-2"


def test_what_is_not_finished_leaves_nothing_and_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), ResultsFolder(tmp_path / "results") as results:
        (tmp_path / "file" / results.unfinished.name).mkdir()
    for folder in (Path("/"), tmp_path / "file" / "results"):
        with pytest.raises(SettingsError, match=rf"^{folder}: "):
            write(folder, "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_environment_has_versions_and_the_command_without_secrets(monkeypatch: Patch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--data.path=https://ann:pw@host/log.csv?sig=5ec2e7", "--mode=ddp"])
    found = environment(torch.device("cpu"), 3)
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert (found["python"], found["world_size"]) == (platform.python_version(), 3)
    assert found["command"] == ["train.py", "--data.path=https://host/log.csv", "--mode=ddp"]
