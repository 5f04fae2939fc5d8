"""Folders that are exported: whole or not at all, with what explains them."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bert4rec import load
from bert4rec.export import export as module
from bert4rec.export.card import card
from bert4rec.export.export import export
from bert4rec.export.program import Program, save_onnx, save_pt2
from bert4rec.inference.item_ids import ItemIds
from bert4rec.inference.source import find_source
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError
from tests.export.test_card import SETTINGS
from tests.inference.test_network import network_of
from tests.models.networks import N_ITEMS, model
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
    lines = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == load(made).items.ids
    assert [line["train_count"] for line in lines] == load(made).ids.train_counts.tolist()
    assert f"HR@10 {report_of(made)['test']['full']['HR@10']:.4f}" in (folder / "README.md").read_text()


@pytest.mark.parametrize("times", ["none", pytest.param("target", marks=pytest.mark.long)])
def test_the_examples_of_the_card_run_and_an_unknown_user_gets_the_most_popular_items(
    times: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = find_source(made)
    ids = ItemIds.read(source.dataset)
    if times == "none":
        export(source, tmp_path / "model", ["pt2", "onnx"], k=4, leaves_out_seen=True)
        text, known = (tmp_path / "model/README.md").read_text(), load(made).recommend([ids.of([0, 1])], 4)[0]
    else:
        (tmp_path / "model").mkdir()
        program = Program(network_of(model(times=times)), leaves_out_seen=True)
        save_pt2(tmp_path / "model/program.pt2", program)
        save_onnx(tmp_path / "model/model.onnx", program)
        ids = ItemIds(pa.array(range(N_ITEMS)), train_counts=np.arange(N_ITEMS) % 9)
        ids.write_lines(tmp_path / "model/items.jsonl")
        settings = SETTINGS | {"config": {"model": {**SETTINGS["config"]["model"], "times": times}}}
        text, known = card(settings, ["pt2", "onnx"], k=4, example=[0, 1], report={}), None
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(codes) == 2
    monkeypatch.chdir(tmp_path / "model")
    capsys.readouterr()
    example = json.dumps(ids.of([0, 1]))
    for history in (example, '["?", "!"]'):
        printed = []
        for code in codes:
            assert example in code
            exec(code.replace(example, history), {})
            printed.append(json.loads(capsys.readouterr().out))
        assert printed[0] == printed[1]
        if history != example:
            assert printed[0] == ids.of(ids.most_popular(4).tolist())
        elif known:
            assert printed[0] == [one.item for one in known]


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
