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

pytestmark = pytest.mark.usefixtures("alone")

SHORT = {"training.n_epochs": 2, "evaluation.baselines": [], "model.max_len": 12}


def made(small_config: Settings, folder: Path, **changes: Any) -> Config:
    recipe = open_dataset(folder).metadata["preprocessing"]
    data_settings = {f"preprocessing.{key}": value for key, value in recipe.items()}
    return small_config(**SHORT | data_settings | {"data.dataset_dir": str(folder)} | changes)


@pytest.mark.parametrize(("kind", "times"), [("sasrec", "target"), ("bert4rec", "history")])
def test_from_the_dataset_to_recommendations(
    small_config: Settings, event_folder: Path, small_folder: Path, tmp_path: Path, capsys: Capture, kind: str,
    times: str,
) -> None:  # fmt: skip
    folder = run(made(small_config, event_folder, **{"model.kind": kind, "model.times": times}))
    leave_group()
    report = report_of(folder)
    assert (report["kind"], report["times"], report["dataset"]["target_events"]) == (kind, times, ["purchase"])
    assert main(["evaluate", str(folder), f"--output={tmp_path / 'again'}"]) == 0
    assert report_of(tmp_path / "again")["test"] == report["test"]
    assert main(["evaluate", str(folder), str(small_folder)]) == 2  # which has no kinds of events

    model, dataset = load(folder), open_dataset(event_folder, with_times=True)
    split, kinds = dataset.splits["test"], dataset.histories.kinds
    rows = split.read(np.arange(len(split)))
    asked, ends = [], rows.lengths.cumsum().tolist()
    for n, end, at in zip(rows.lengths.tolist(), ends, rows.target_times.tolist(), strict=True):
        part = slice(end - n, end)
        events = [kinds[event] for event in rows.events[part]]
        instant = at if times == "target" else None
        asked.append(TimedHistory(model.ids.of(rows.items[part].tolist()), rows.times[part].tolist(), instant, events))
    best = [[one.item for one in of_user] for of_user in model.recommend(asked, dataset.n_items)]
    targets = model.ids.of(rows.targets.tolist())
    written = pl.read_parquet(folder / "ranks-test.parquet")["full"].to_list()
    assert [1 + user_items.index(target) for user_items, target in zip(best, targets, strict=True)] == written

    history = TimedHistory([1, 2], [10, 20])
    bought, unknown = (history._replace(events=events) for events in (["view", "purchase"], [None, ""]))
    assert not torch.allclose(*model.encode([history, bought]))
    assert torch.equal(*model.encode([history, unknown]))
    for wrong in (["sale", "view"], ["view"]):
        with pytest.raises(UserError):
            model.recommend([history._replace(events=wrong)])
    assert main(["recommend", str(folder), "--user", "7"]) == 0
    status = main(["recommend", str(folder), "--user", "7", "--at=2100-01-01"])
    assert status == (0 if times == "target" else 2)
    assert main(["export", str(folder), f"--output={tmp_path / 'package'}", "--format=safetensors"]) == 0
    assert load(tmp_path / "package").recommend(asked[:5], 3) == model.recommend(asked[:5], 3)


@pytest.mark.parametrize(
    ("kind", "formats"),
    [("sasrec", "safetensors"), long("sasrec", "safetensors,pt2,onnx"), long("bert4rec", "safetensors,pt2")],
)
def test_files_and_exports_have_the_kinds(
    small_config: Settings, event_folder: Path, tmp_path: Path, capsys: Capture, kind: str, formats: str
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
    assert main(["export", str(folder), f"--output={package}", f"--format={formats}"]) == 0
    assert [one.item for one in load(package).recommend([TimedHistory(items, events=events)], 5)[0]] == expected
    kinds = json.loads((package / "settings.json").read_text())["events"]
    if "pt2" not in formats:
        return
    program = torch.export.load(package / "program.pt2").module()
    indices = torch.from_numpy(model.ids.indices(items))[None]
    numbers = torch.tensor([[kinds.index(event) for event in events]])
    assert model.ids.of(program(indices, torch.tensor(5), numbers)[0][0].tolist()) == expected
    if "onnx" in formats:
        session = onnxruntime.InferenceSession(package / "model.onnx")
        inputs = {"items": indices.numpy(), "k": np.array(5), "events": numbers.numpy()}
        assert model.ids.of(session.run(None, inputs)[0][0].tolist()) == expected


def test_a_matrix_factorization_learns_the_predicted_kinds(small_config: Settings, event_folder: Path) -> None:
    folder = run(made(small_config, event_folder, **{"model.kind": "matrix_factorization"}))
    assert report_of(folder)["test"]["full"]["users"] == len(open_dataset(event_folder).splits["test"])


def test_weights_that_leave_nothing_to_learn_are_refused(small_config: Settings, event_folder: Path) -> None:
    for weights in ({"sale": 1.0}, {"purchase": 0.0}, {"view": 2.0, "purchase": 0.0}):
        with pytest.raises(UserError, match="event_weights"):
            run(made(small_config, event_folder, **{"training.event_weights": weights}))
        leave_group()
    with pytest.raises(UserError, match=r"data\.event_column"):
        run(small_config(**SHORT, **{"training.event_weights": {"view": 0.5}}))
    with pytest.raises(UserError, match="event_weights"):
        small_config(**{"training.event_weights": {"view": -0.5}})


def test_times_are_used_where_the_log_has_moved_and_where_the_weights_know_them(
    log_folder: Path, log_config: Settings, tmp_path: Path
) -> None:
    """Also by a run that is gone on with, and in another log by a run that begins with the weights of this one."""
    moved = Path(shutil.copytree(log_folder, tmp_path / "moved"))
    about = json.loads((moved / "metadata.json").read_text())
    about["log"]["shift"] = {"since": 0, "column": "family", "values": {"boots": [0.28, 0.04], "hats": [0.1, 0.2]}}
    (moved / "metadata.json").write_text(json.dumps(about))
    settings = {"training.n_epochs": 1, "evaluation.baselines": [], "model.kind": "sasrec"}
    on_moved = settings | {"data.dataset_dir": str(moved)}
    first = run(log_config(**on_moved))
    leave_group()
    longer = run(log_config(**on_moved | {"run.resume": str(first), "training.n_epochs": 2}))
    assert longer == first
    assert read_metadata(checkpoint_of(first))["config"]["model"]["times"] == report_of(first)["times"] == "history"
    for weights in (first, checkpoint_of(first)):
        assert knows_times(log_config(**settings, **{"run.init_from": str(weights)}))
    assert not knows_times(log_config(**settings))


def test_a_dataset_without_times_is_refused(log_config: Settings, tmp_path: Path) -> None:
    folder = prepare_log(tmp_path, **{"data.time_column": ""})
    with pytest.raises(DataError, match=str(tmp_path)):
        run(log_config(**{"data.dataset_dir": str(folder), "model.times": "history"}))
    leave_group()
