"""Models that know kinds of events, times and item features, from the dataset to recommendations."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch

from bert4rec import TimedHistory, load
from bert4rec.__main__ import main
from bert4rec.checkpoint.run_folder import checkpoint_of, read_metadata
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import open_dataset
from bert4rec.runtime.errors import DataError, UserError
from bert4rec.training.build import knows_times
from bert4rec.training.run import run
from tests.conftest import leave_group, long, prepare_log
from tests.fixture_types import Capture, Settings
from tests.runs import report_of
from tests.training.asked import asked_of, ranks_of, written_ranks

pytestmark = pytest.mark.usefixtures("alone")

SHORT = {"training.n_epochs": 2, "evaluation.baselines": [], "model.max_len": 12}


def made(small_config: Settings, folder: Path, **changes: Any) -> Config:
    recipe = open_dataset(folder).metadata["preprocessing"]
    data_settings = {f"preprocessing.{key}": value for key, value in recipe.items()}
    return small_config(**SHORT | data_settings | {"data.dataset_dir": str(folder)} | changes)


@pytest.mark.parametrize(("kind", "times"), [("sasrec", "target"), ("bert4rec", "history")])
def test_the_whole_way(
    small_config: Settings, event_folder: Path, small_folder: Path, tmp_path: Path, kind: str, times: str
) -> None:
    folder = run(made(small_config, event_folder, **{"model.kind": kind, "model.times": times}))
    leave_group()
    report = report_of(folder)
    assert (report["kind"], report["times"], report["dataset"]["target_events"]) == (kind, times, ["purchase"])
    assert main(["evaluate", str(folder), f"--output={tmp_path / 'again'}"]) == 0
    assert report_of(tmp_path / "again")["test"] == report["test"]
    assert main(["evaluate", str(folder), str(small_folder)]) == 2  # which has no kinds of events

    model, dataset = load(folder), open_dataset(event_folder, with_times=True)
    split = dataset.splits["test"]
    rows = split.read(np.arange(len(split)))
    asked = asked_of(model, dataset, rows, rows.lengths, rows.target_times if times == "target" else None)
    assert ranks_of(model, asked, rows.targets) == written_ranks(folder)
    history = TimedHistory([1, 2], [10, 20])
    bought, unknown = (history._replace(events=events) for events in (["view", "purchase"], [None, ""]))
    assert not torch.allclose(*model.encode([history, bought]))
    assert torch.equal(*model.encode([history, unknown]))
    for wrong in (["sale", "view"], ["view"]):
        with pytest.raises(UserError):
            model.recommend([history._replace(events=wrong)])
    status = main(["recommend", str(folder), "--user", "7", "--at=2100-01-01"])
    assert status == (0 if times == "target" else 2)
    assert main(["export", str(folder), f"--output={tmp_path / 'package'}", "--format=safetensors"]) == 0
    assert load(tmp_path / "package").recommend(asked[:5], 3) == model.recommend(asked[:5], 3)


@pytest.mark.parametrize(
    ("kind", "formats"),
    [("sasrec", "safetensors"), long("sasrec", "safetensors,pt2,onnx"), long("bert4rec", "safetensors,pt2")],
)
def test_files_and_exports(
    small_config: Settings, event_folder: Path, tmp_path: Path, capsys: Capture, kind: str, formats: str
) -> None:
    folder = run(made(small_config, event_folder, **{"model.kind": kind, "training.n_epochs": 1}))
    leave_group()
    model, items, events = load(folder), [1, 2, 3], ["view", "purchase", ""]
    rows = pl.DataFrame({"user": "u", "item": items, "time": range(3), "event": events})
    lists = pl.DataFrame({"user": ["u"], "items": [items], "events": [events]})
    rows.write_csv(tmp_path / "a.csv")
    lists.write_ndjson(tmp_path / "b.jsonl")
    lists.write_parquet(tmp_path / "c.parquet")
    expected = [one.item for one in model.recommend([TimedHistory(items, events=events)], 5)[0]]
    for name in ("a.csv", "b.jsonl", "c.parquet"):
        capsys.readouterr()
        assert main(["recommend", str(folder), f"--histories={tmp_path / name}", "--top=5"]) == 0
        assert json.loads(capsys.readouterr().out)["items"] == expected

    package = tmp_path / "package"
    assert main(["export", str(folder), f"--output={package}", f"--format={formats}"]) == 0
    assert [one.item for one in load(package).recommend([TimedHistory(items, events=events)], 5)[0]] == expected
    kinds = json.loads((package / "settings.json").read_text())["events"]
    indices = torch.from_numpy(model.ids.indices(items))[None]
    numbers = torch.tensor([[kinds.index(event) for event in events]])
    found = []
    if "pt2" in formats:
        found.append(torch.export.load(package / "program.pt2").module()(indices, torch.tensor(5), numbers)[0][0])
    if "onnx" in formats:
        inputs = {"items": indices.numpy(), "k": np.array(5), "events": numbers.numpy()}
        found.append(onnxruntime.InferenceSession(package / "model.onnx").run(None, inputs)[0][0])
    assert all(model.ids.of(best.tolist()) == expected for best in found)


def test_a_matrix_factorization_learns_the_predicted_kinds(small_config: Settings, event_folder: Path) -> None:
    folder = run(made(small_config, event_folder, **{"model.kind": "matrix_factorization"}))
    assert report_of(folder)["test"]["full"]["users"] == len(open_dataset(event_folder).splits["test"])


def test_weights_that_leave_nothing_to_learn_are_refused(small_config: Settings, event_folder: Path) -> None:
    with pytest.raises(UserError, match="event_weights"):
        small_config(**{"training.event_weights": {"view": -0.5}})
    configs = [small_config(**SHORT, **{"training.event_weights": {"view": 0.5}})]  # of data without kinds
    for weights in ({"sale": 1.0}, {"purchase": 0.0}, {"view": 2.0, "purchase": 0.0}):
        configs.append(made(small_config, event_folder, **{"training.event_weights": weights}))
    for config in configs:
        with pytest.raises(UserError, match=r"event_weights|data\.event_column"):
            run(config)
        leave_group()


def test_times_are_used_where_the_log_moved_or_the_weights_know(
    log_folder: Path, log_config: Settings, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(log_folder, tmp_path / "moved"))
    about = json.loads((moved / "metadata.json").read_text())
    about["log"]["shift"] = {"since": 0, "column": "family", "values": {"boots": [0.28, 0.04], "hats": [0.1, 0.2]}}
    (moved / "metadata.json").write_text(json.dumps(about))
    settings = {"training.n_epochs": 1, "evaluation.baselines": [], "model.kind": "sasrec"}
    on_moved = settings | {"data.dataset_dir": str(moved)}
    first = run(log_config(**on_moved))
    leave_group()
    assert run(log_config(**on_moved | {"run.resume": str(first), "training.n_epochs": 2})) == first
    assert read_metadata(checkpoint_of(first))["config"]["model"]["times"] == report_of(first)["times"] == "history"
    for weights in (first, checkpoint_of(first)):
        assert knows_times(log_config(**settings, **{"run.init_from": str(weights)}))
    assert not knows_times(log_config(**settings))


def test_a_dataset_without_times_is_refused(log_config: Settings, tmp_path: Path) -> None:
    folder = prepare_log(tmp_path, **{"data.time_column": ""})
    with pytest.raises(DataError, match=str(tmp_path)):
        run(log_config(**{"data.dataset_dir": str(folder), "model.times": "history"}))
    leave_group()
