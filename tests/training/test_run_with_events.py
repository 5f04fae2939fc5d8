"""Models of kinds of events, from the dataset to recommendations."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch

from bert4rec import TimedHistory, load
from bert4rec.__main__ import main
from bert4rec.checkpoint.stored_tensors import StoredTensors
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import open_dataset
from bert4rec.runtime.errors import UserError
from bert4rec.training.run import run
from tests.conftest import leave_group, long
from tests.fixture_types import Capture, Settings
from tests.runs import FORWARD, assert_same_results, in_step, interrupted, report_of

SHORT = {"training.n_epochs": 2, "evaluation.baselines": [], "model.max_len": 12}
KINDS = pytest.mark.parametrize("kind", ["bert4rec", "sasrec"])


def made(small_config: Settings, folder: Path, **changes: Any) -> Config:
    recipe = open_dataset(folder).metadata["preprocessing"]
    data_settings = {f"preprocessing.{key}": value for key, value in recipe.items()}
    return small_config(**SHORT | data_settings | {"data.dataset_dir": str(folder)} | changes)


@KINDS
def test_from_the_dataset_to_recommendations(
    small_config: Settings, event_folder: Path, tmp_path: Path, capsys: Capture, kind: str
) -> None:
    folder = run(made(small_config, event_folder, **{"model.kind": kind}))
    leave_group()
    report = report_of(folder)
    assert main(["evaluate", str(folder), f"--output={tmp_path / 'again'}"]) == 0
    assert json.loads((tmp_path / "again" / "report.json").read_text())["test"] == report["test"]

    model, dataset = load(folder), open_dataset(event_folder)
    split, kinds = dataset.splits["test"], dataset.histories.kinds
    rows = split.read(np.arange(len(split)))
    assert rows.events is not None
    assert rows.targets is not None
    asked = []
    for n, end in zip(rows.lengths.tolist(), rows.lengths.cumsum().tolist(), strict=True):
        items, events = rows.items[end - n : end].tolist(), rows.events[end - n : end].tolist()
        asked.append(TimedHistory(model.ids.of(items), events=[kinds[event] for event in events]))
    best = [[one.item for one in user_items] for user_items in model.recommend(asked, dataset.n_items)]
    targets = model.ids.of(rows.targets.tolist())
    written = pl.read_parquet(folder / "ranks-test.parquet")["full"].to_list()
    assert [1 + user_items.index(target) for user_items, target in zip(best, targets, strict=True)] == written

    different = model.encode([TimedHistory([1, 2]), TimedHistory([1, 2], events=["view", "purchase"])])
    assert not torch.allclose(*different)
    assert torch.equal(*model.encode([[1, 2], TimedHistory([1, 2], events=[None, ""])]))
    for wrong, said in ((["sale", "view"], "sale.*purchase"), (["view"], "2 items and 1 events")):
        with pytest.raises(UserError, match=said):
            model.recommend([TimedHistory([1, 2], events=wrong)])


@pytest.mark.parametrize("kind", [long("bert4rec"), "sasrec"])
def test_files_and_exports_have_the_kinds(
    small_config: Settings, event_folder: Path, tmp_path: Path, capsys: Capture, kind: str
) -> None:
    folder = run(made(small_config, event_folder, **{"model.kind": kind, "training.n_epochs": 1}))
    leave_group()
    items, events = [1, 2, 3], ["view", "purchase", ""]
    files = {name: tmp_path / name for name in ("a.jsonl", "b.csv", "c.parquet")}
    files["a.jsonl"].write_text(json.dumps({"user": "u", "items": items, "events": events}) + "\n")
    rows = [f"u,{item},{at},{event}" for at, (item, event) in enumerate(zip(items, events, strict=True))]
    files["b.csv"].write_text("\n".join(["user,item,time,event", *rows]) + "\n")
    pl.DataFrame({"user": ["u"], "items": [items], "events": [events]}).write_parquet(files["c.parquet"])
    model, found = load(folder), []
    expected = [one.item for one in model.recommend([TimedHistory(items, events=events)], 5)[0]]
    for path in files.values():
        capsys.readouterr()
        assert main(["recommend", str(folder), f"--histories={path}", "--top=5"]) == 0
        found.append(json.loads(capsys.readouterr().out)["items"])
    assert found == [expected] * 3

    package = tmp_path / "package"
    formats = "safetensors,pt2,onnx" if kind == "sasrec" else "safetensors,pt2"
    assert main(["export", str(folder), f"--output={package}", f"--format={formats}"]) == 0
    assert [one.item for one in load(package).recommend([TimedHistory(items, events=events)], 5)[0]] == expected
    kinds = json.loads((package / "settings.json").read_text())["events"]
    program = torch.export.load(package / "program.pt2").module()
    indices = torch.from_numpy(model.ids.indices(items))[None]
    numbers = torch.tensor([[kinds.index(event) for event in events]])
    assert model.ids.of(program(indices, torch.tensor(5), numbers)[0][0].tolist()) == expected
    if "onnx" in formats:
        session = onnxruntime.InferenceSession(package / "model.onnx")
        inputs = {"items": indices.numpy(), "k": np.array(5), "events": numbers.numpy()}
        assert model.ids.of(session.run(None, inputs)[0][0].tolist()) == expected
    assert "purchase" in (package / "README.md").read_text()


def test_a_resumed_run_has_the_bits_of_one_without_a_break(
    small_config: Settings, event_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**changes: Any) -> Config:
        return made(small_config, event_folder, **{"training.event_weights": {"purchase": 0.5}, **changes})

    whole = run(make(**{"run.name": "whole"}))
    leave_group()
    with monkeypatch.context() as patched:
        in_step(patched, *FORWARD, 7)
        interrupted(make(**{"run.name": "broken"}))
    broken = run(make(**{"run.name": "broken", "run.resume": "auto"}))
    leave_group()
    assert_same_results(whole, broken)
    one, other = (StoredTensors(max((folder / "checkpoints").glob("step-*"))) for folder in (whole, broken))
    assert [*one] == [*other]
    assert all(torch.equal(one.read(name), other.read(name)) for name in one)


def test_a_matrix_factorization_learns_the_predicted_kinds(small_config: Settings, event_folder: Path) -> None:
    folder = run(made(small_config, event_folder, **{"model.kind": "matrix_factorization"}))
    leave_group()
    assert report_of(folder)["test"]["full"]["users"] == len(open_dataset(event_folder).splits["test"])


@pytest.mark.parametrize(
    ("weights", "said"),
    [({"sale": 1.0}, "sale.*view, cart"), ({"purchase": 0.0}, "weight above 0"), ({"view": 2.0, "purchase": 0.0}, "0")],
)
def test_weights_that_leave_nothing_to_learn_are_refused(
    small_config: Settings, event_folder: Path, weights: dict[str, float], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        run(made(small_config, event_folder, **{"training.event_weights": weights}))
    leave_group()


def test_weights_without_kinds_and_negative_ones_are_refused(small_config: Settings) -> None:
    with pytest.raises(UserError, match=r"data\.event_column"):
        run(small_config(**SHORT, **{"training.event_weights": {"view": 0.5}}))
    leave_group()
    with pytest.raises(UserError, match="event_weights"):
        small_config(**{"training.event_weights": {"view": -0.5}})


def test_a_dataset_without_the_kinds_of_the_model_is_refused(
    small_config: Settings, event_folder: Path, small_folder: Path, capsys: Capture
) -> None:
    folder = run(made(small_config, event_folder, **{"training.n_epochs": 1}))
    leave_group()
    assert main(["evaluate", str(folder), str(small_folder)]) == 2
    assert "no kinds of events" in capsys.readouterr().err


def test_a_report_says_what_is_predicted(small_config: Settings, event_folder: Path) -> None:
    folder = run(made(small_config, event_folder, **{"training.n_epochs": 1}))
    leave_group()
    assert report_of(folder)["dataset"]["target_events"] == ["purchase"]
    assert "Only events of the kind purchase are held out" in (folder / "report.md").read_text()
