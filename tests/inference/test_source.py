"""The checkpoint of a run, and its dataset."""

import json
import shutil
from pathlib import Path

import pytest

from bert4rec.checkpoint.run_folder import METADATA
from bert4rec.inference.source import find_source
from bert4rec.runtime import manifest


def write(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_relative_dataset_is_found_from_any_folder(
    made: Path, small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it was started: runs/… and data/… in one folder."""
    shutil.copytree(small_folder, tmp_path / "data/small")
    run = Path(shutil.copytree(made, tmp_path / "runs/whole", symlinks=True))
    checkpoint = (run / "checkpoints/best").resolve()
    config = json.loads((checkpoint / METADATA).read_text())["config"]
    config["data"]["dataset_dir"], config["run"]["dir"] = "data/small", "runs"
    write(checkpoint / METADATA, config=config)
    names = [path.name for path in checkpoint.iterdir() if path.name != manifest.MANIFEST]
    manifest.seal(checkpoint, manifest.describe(checkpoint, names))
    assert find_source(run).dataset == tmp_path / "data/small"
    monkeypatch.chdir(tmp_path)
    assert find_source(Path("runs/whole")).dataset == Path("data/small")
