"""Exported folders: whole or not at all, with weights, vectors and what explains them."""

import json
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from bert4rec import load
from bert4rec.checkpoint.stored_tensors import MODEL_PREFIX, StoredTensors
from bert4rec.runtime import files
from bert4rec.runtime.errors import DataError
from bert4rec.serving import export as module
from bert4rec.serving.export import card, export, write_vectors
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.load import find_source
from tests.runs import report_of
from tests.serving.conftest import SETTINGS

FULL = {"users": 3000, "HR@10": 0.38196, "NDCG@10": 0.21637}
ALWAYS = {"README.md", "items.jsonl", "settings.json", "manifest.json"}


def test_a_folder_holds_what_was_asked_for_and_what_explains_it(made: Path, tmp_path: Path) -> None:
    export(find_source(made), tmp_path / "to/vectors", ["vectors"], k=10, leaves_out_seen=False)
    assert {path.name for path in (tmp_path / "to").iterdir()} == {"vectors"}
    folder = tmp_path / "to/vectors"
    assert {path.name for path in folder.iterdir()} == ALWAYS | {"vectors.npy", "vectors.parquet"}
    assert files.problem_of(folder) == ""
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["config"]["model"]["kind"] == "bert4rec"
    assert (settings["is_causal"], settings["leaves_out_seen"]) == (False, False)
    assert {*settings["config"]} == {"model", "preprocessing", "training", "evaluation"}
    assert str(made.parent) not in (folder / "settings.json").read_text()  # nothing of this machine
    lines = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == load(made).items.ids
    assert [line["train_count"] for line in lines] == load(made).ids.train_counts.tolist()
    assert f"HR@10 {report_of(made)['test']['full']['HR@10']:.4f}" in (folder / "README.md").read_text()
    best = (made / "checkpoints/best").resolve()
    other = next(path for path in (made / "checkpoints").glob("step-*") if path.name != best.name)
    export(find_source(other), tmp_path / "other", ["vectors"], k=10, leaves_out_seen=True)
    assert "HR@10" not in (tmp_path / "other/README.md").read_text()  # the report is of the best weights alone


def test_safetensors_and_programs_are_those_of_the_model(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, source = {}, find_source(made)
    for name in ("save_pt2", "save_onnx"):
        monkeypatch.setattr(module, name, lambda path, program: written.update({path.name: program}))
    export(source, tmp_path / "model", ["safetensors", "pt2", "onnx"], k=4, leaves_out_seen=True)
    stored = source.tensors()
    with safe_open(tmp_path / "model/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        names = {*file.keys()}
        assert {MODEL_PREFIX + name for name in names} == {name for name in stored if name.startswith(MODEL_PREFIX)}
        assert all(torch.equal(file.get_tensor(name), stored.read(MODEL_PREFIX + name)) for name in names)
    assert [*written] == ["program.pt2", "model.onnx"]
    items, _ = written["program.pt2"](torch.tensor([[0, 1]]), torch.tensor(4))
    recommender = load(made)
    (known,) = recommender.recommend([recommender.ids.of([0, 1])], 4, leave_out_seen=True)
    assert recommender.ids.of(items[0].tolist()) == [one.item for one in known]


def test_nothing_is_written_over_or_left_half_written(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_vectors", full)
    with pytest.raises(DataError, match=r"new: .*No space left"):
        export(find_source(made), tmp_path / "new", ["vectors"], k=10, leaves_out_seen=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    with pytest.raises(DataError, match=r"there: .*--output"):
        export(find_source(made), tmp_path / "there", ["vectors"], k=10, leaves_out_seen=True)


ITEMS = torch.tensor([[1.0, 2.0, 0.5], [3.0, 4.0, -0.5], [5.0, 6.0, 0.0]])  # vectors and a bias
TABLE, HEAD = "model.item_table.embeddings.item.weight", "model.head.weight"


class InMemory:
    """Stands where a checkpoint stands; blocks are of two rows."""

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = {f"model.{name}": value for name, value in tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def blocks(self, name: str) -> tuple[Tensor, ...]:
        return self._tensors[name].split(2)


# With biases, a row of the table has columns of zeros behind them; without, nothing.
ROWS = torch.cat([ITEMS, torch.zeros(3, 3)], 1)
MODELS = {
    "tied": {"item_table.embeddings.item.weight": ROWS},
    "tied without bias": {"item_table.embeddings.item.weight": ROWS[:, :2]},
    "linear": {
        "item_table.embeddings.item.weight": torch.zeros(3, 2), "head.weight": ITEMS[:, :2], "head.bias": ITEMS[:, 2],
    },
    "linear without bias": {"item_table.embeddings.item.weight": torch.zeros(3, 2), "head.weight": ITEMS[:, :2]},
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_items_with_what_scores_them(tmp_path: Path, model: str) -> None:
    originals, titles = (["b", "a", "c"], ["B", "", "C"]) if "tied" in model else ([7, 5, 6], None)
    ids = ItemIds(pa.array(originals), titles and pa.array(titles))
    write_vectors(tmp_path, cast(StoredTensors, InMemory(**MODELS[model])), ids, embed_dim=2)
    width = 2 if "without" in model else 3
    vectors = np.load(tmp_path / "vectors.npy")
    np.testing.assert_array_equal(vectors, ITEMS[:, :width].numpy())
    assert vectors.dtype == np.float32
    biases = {} if "without" in model else {"bias": [0.5, -0.5, 0.0]}
    assert pq.read_table(tmp_path / "vectors.parquet").to_pydict() == {
        "item": originals, **({"title": titles} if titles else {}),
        "vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], **biases,
    }  # fmt: skip


def test_it_says_what_the_model_is_what_it_is_worth_and_how_each_file_is_used() -> None:
    text = card(
        SETTINGS, ["safetensors", "vectors", "pt2", "onnx"], k=7, example=["x", "y"], report={"test": {"full": FULL}}
    )
    for value in ("sasrec", "1,234", "3,000", "0.3820", "0.2164", "49"):
        assert value in text
    assert 'model.recommend([["x", "y"]], k=10)' in text
    text = card(SETTINGS | {"prior": {"ease": [1.25, 0.5]}}, ["vectors"], k=7, example=[1, 2], report={})
    assert "ease 1.25 and 0.5" in text
    text = card(SETTINGS, ["vectors"], k=7, example=[1, 2], report={})
    assert "vectors.npy" in text
    assert not any(word in text for word in ("HR@10", "program.pt2", "safetensors", "onnx", "torch.export", "prior"))
