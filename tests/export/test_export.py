"""Folders that are exported: whole or not at all, with what explains them."""

import json
from pathlib import Path

import pytest

from bert4rec import load
from bert4rec.export import export as module
from bert4rec.export.export import export
from bert4rec.inference.source import find_source
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError
from tests.runs import report_of

ALWAYS = {"README.md", "items.jsonl", "settings.json", "manifest.json"}


def test_a_folder_holds_what_was_asked_for_and_what_explains_it(made: Path, tmp_path: Path) -> None:
    export(find_source(made), tmp_path / "to/vectors", ["vectors"], k=10, leaves_out_seen=False)
    assert {path.name for path in (tmp_path / "to").iterdir()} == {"vectors"}
    folder = tmp_path / "to/vectors"
    assert {path.name for path in folder.iterdir()} == ALWAYS | {"vectors.npy", "vectors.parquet"}
    assert manifest.problem_of(folder) == ""
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["config"]["model"]["kind"] == "bert4rec"
    assert (settings["is_causal"], settings["leaves_out_seen"]) == (False, False)
    assert {*settings["config"]} == {"model", "preprocessing", "training", "evaluation"}
    assert str(made.parent) not in (folder / "settings.json").read_text()  # nothing of this machine
    items = [json.loads(line)["id"] for line in (folder / "items.jsonl").read_text().splitlines()]
    assert items == load(made).items.ids
    assert f"HR@10 {report_of(made)['test']['full']['HR@10']:.4f}" in (folder / "README.md").read_text()


def test_figures_are_of_the_best_weights_alone(made: Path, tmp_path: Path) -> None:
    best = (made / "checkpoints/best").resolve()
    other = next(path for path in (made / "checkpoints").glob("step-*") if path.name != best.name)
    export(find_source(other), tmp_path / "other", ["vectors"], k=10, leaves_out_seen=True)
    assert "HR@10" not in (tmp_path / "other/README.md").read_text()


def test_nothing_is_written_over_or_left_half_written(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_vectors", full)
    with pytest.raises(DataError, match="new: cannot be written: No space left on device"):
        export(find_source(made), tmp_path / "new", ["vectors"], k=10, leaves_out_seen=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    with pytest.raises(DataError, match="there: is there already; name another folder with --output=FOLDER"):
        export(find_source(made), tmp_path / "there", ["vectors"], k=10, leaves_out_seen=True)
