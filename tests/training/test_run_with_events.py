"""Models that know kinds of events, times and item features; and logs in which the answer is in the input."""

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
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.dataset.check import check_dataset
from bert4rec.dataset.hidden import window_starts
from bert4rec.dataset.histories import Rows
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.dataset.trained import count_trained
from bert4rec.evaluation.metrics import MISSED
from bert4rec.report.summary import advice, verdict
from bert4rec.runtime.arrays import Int64s
from bert4rec.runtime.errors import DataError, UserError
from bert4rec.training.build import knows_times
from bert4rec.training.run import run
from tests.conftest import leave_group, long, prepare_log
from tests.fixture_types import Capture, Settings
from tests.runs import report_of
from tests.shop import prepare_shop, write_shop

pytestmark = pytest.mark.usefixtures("alone")

SHORT = {"training.n_epochs": 2, "evaluation.baselines": [], "model.max_len": 12}


def config_of(small_config: Settings, folder: Path, **changes: Any) -> Config:
    recipe = open_dataset(folder).metadata["preprocessing"]
    data_settings = {f"preprocessing.{key}": value for key, value in recipe.items()}
    return small_config(**SHORT | data_settings | {"data.dataset_dir": str(folder)} | changes)


@pytest.mark.parametrize(("kind", "times"), [long("sasrec", "target"), ("bert4rec", "history")])
def test_the_whole_way(
    small_config: Settings, event_folder: Path, small_folder: Path, tmp_path: Path, kind: str, times: str
) -> None:
    folder = run(config_of(small_config, event_folder, **{"model.kind": kind, "model.times": times}))
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
    folder = run(config_of(small_config, event_folder, **{"model.kind": kind, "training.n_epochs": 1}))
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
    folder = run(config_of(small_config, event_folder, **{"model.kind": "matrix_factorization"}))
    assert report_of(folder)["test"]["full"]["users"] == len(open_dataset(event_folder).splits["test"])


def test_weights_that_leave_nothing_to_learn_are_refused(small_config: Settings, event_folder: Path) -> None:
    with pytest.raises(UserError, match="event_weights"):
        small_config(**{"training.event_weights": {"view": -0.5}})
    configs = [small_config(**SHORT, **{"training.event_weights": {"view": 0.5}})]  # of data without kinds
    for weights in ({"sale": 1.0}, {"purchase": 0.0}, {"view": 2.0, "purchase": 0.0}):
        configs.append(config_of(small_config, event_folder, **{"training.event_weights": weights}))
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


def asked_of(model: Any, dataset: Dataset, rows: Rows, lengths: Int64s, at: Int64s | None) -> list[TimedHistory]:
    kinds, instants = dataset.histories.kinds, [None] * len(lengths) if at is None else at.tolist()
    asked = []
    for n, end, instant in zip(lengths.tolist(), lengths.cumsum().tolist(), instants, strict=True):
        part = slice(end - n, end)
        events = [kinds[event] for event in rows.events[part]]
        asked.append(TimedHistory(model.ids.of(rows.items[part].tolist()), rows.times[part].tolist(), instant, events))
    return asked


def ranks_of(model: Any, asked: list[TimedHistory], targets: Int64s) -> list[int]:
    lists = [[one.item for one in best] for best in model.recommend(asked, len(model.ids))]
    pairs = zip(lists, model.ids.of(targets.tolist()), strict=True)
    return [1 + items.index(target) if target in items else MISSED for items, target in pairs]


def written_ranks(folder: Path) -> list[int]:
    return pl.read_parquet(folder / "ranks-test.parquet")["full"].to_list()


SIZES = {
    "model.embed_dim": 32, "model.ffn_dim": 64, "model.max_len": 50, "model.dropout": 0.1, "training.n_epochs": 1,
    "preprocessing.n_eval_negatives": 5,
}  # fmt: skip


def trained_on(folder: Path, place: Path, **changes: Any) -> Path:
    recipe = open_dataset(folder).metadata["preprocessing"]
    settings = {f"preprocessing.{key}": value for key, value in recipe.items()} | SIZES
    places = {"data.dataset_dir": str(folder), "run.dir": str(place / "runs")}
    run_folder = run(load_config(None, settings | places | changes))
    leave_group()
    return run_folder


@pytest.fixture(scope="module")
def open_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_shop(tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="module")
def hidden_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_shop(tmp_path_factory.mktemp("hidden"), **{"preprocessing.hide_before_target": "visit"})


def hit_rates(report: dict[str, Any]) -> dict[str, float]:
    found = {"model": report["test"]} | report.get("baselines", {})
    return {kind: metrics["full"]["HR@10"] for kind, metrics in found.items()}


def test_the_verdict_is_about_the_answer_in_the_input(open_shop: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["describe", str(open_shop)]) == 0
    assert "--preprocessing.hide_before_target=visit" in capsys.readouterr().out
    report = report_of(trained_on(open_shop, tmp_path, **{"model.kind": "markov"}))
    assert hit_rates(report)["model"] > 0.95
    assert report["answers_in_input"]["targets"] == report["answers_in_input"]["of"] == 300
    assert verdict(report).kind == "copies"
    assert advice(report) == ""
    assert len(report["slices"]["test"]["answer_in_input"]) == 1


def asked_before_targets(folder: Path, dataset: Dataset) -> list[TimedHistory]:
    """The histories before the targets of the test, after which the run ranks them as in its evaluation."""
    model, histories, split = load(folder), dataset.histories, dataset.splits["test"]
    users = np.searchsorted(histories.users, split.users)
    places = histories.targets("test")[users]
    rows = histories.read(users, np.zeros_like(places), places)
    asked = asked_of(model, dataset, rows, places, histories.values_at("times", users, places))
    assert ranks_of(model, asked, split.targets(np.arange(len(split)))) == written_ranks(folder)
    return asked


def test_hidden_events_are_no_input_of_a_kind_that_only_counts_either(hidden_shop: Path, tmp_path: Path) -> None:
    folder = trained_on(hidden_shop, tmp_path, **{"model.kind": "markov"})
    assert len(asked_before_targets(folder, open_dataset(hidden_shop, with_times=True))) == 300


@pytest.mark.parametrize("kind", ["bert4rec", long("sasrec")])
def test_hidden_events_leave_honest_figures(hidden_shop: Path, tmp_path: Path, capsys: Capture, kind: str) -> None:
    folder = trained_on(hidden_shop, tmp_path, **{"model.kind": kind})
    report, dataset = report_of(folder), open_dataset(hidden_shop, with_times=True)
    assert max(hit_rates(report).values()) < 0.7
    assert report["answers_in_input"]["targets"] == 0
    assert verdict(report).kind != "copies"
    assert main(["evaluate", str(folder), f"--output={tmp_path / 'again'}"]) == 0
    assert report_of(tmp_path / "again")["test"] == report["test"]

    model, asked = load(folder), asked_before_targets(folder, dataset)
    later = [one._replace(at=one.times[-1] + 10**6) for one in asked[:5]]
    without_times = [TimedHistory(one.items, events=one.events) for one in asked[:5]]
    assert model.recommend(later, 3) == model.recommend(without_times, 3) != model.recommend(asked[:5], 3)
    package = tmp_path / "package"
    assert main(["export", str(folder), f"--output={package}", "--format=safetensors"]) == 0
    assert load(package).recommend(asked[:5], 3) == model.recommend(asked[:5], 3)

    u1 = np.array([1])  # u0, u1, u10, …
    histories = dataset.histories
    last, lists = int(histories.times(u1, np.array([0]), histories.lengths_at(u1))[-1]), []
    for at in ([], [f"--at={last}"]):
        capsys.readouterr()
        assert main(["recommend", str(folder), "--user", "u1", *at]) == 0
        lists.append(capsys.readouterr().out)
    assert lists[0] != lists[1]  # the time of a query decides what is hidden
    assert main(["recommend", str(folder), "--user", "u1", f"--at={last - 1}"]) == 2


@pytest.mark.parametrize("before", ["visit", "last_target", 2])
def test_the_folder_is_what_the_check_computes_and_evaluation_reads_the_inputs(tmp_path: Path, before: Any) -> None:
    folder = prepare_shop(tmp_path, **{"preprocessing.hide_before_target": before})
    check_dataset(folder)
    dataset = open_dataset(folder)
    histories, split, places = dataset.histories, dataset.splits["test"], dataset.histories.targets("test")
    every, ends = np.arange(len(split)), places[places >= 0] + 1
    rows, starts = np.searchsorted(histories.users, split.users), np.zeros_like(ends)
    is_target = np.isin(histories.read(rows, starts, ends).events, histories.target_kinds)
    first = window_starts(before, histories.times(rows, starts, ends), is_target, ends)[ends.cumsum() - 1]
    expected = first - (ends.cumsum() - ends)
    assert split.lengths(every).tolist() == split.read(every).lengths.tolist() == expected.tolist()
    assert (expected < ends - 1).any()
    repeated = dataset.metadata["repeated_targets"]["test"]
    assert repeated == {"users": int(split.read(every).are_repeated().sum()), "of": len(split)}


def test_the_target_alone_of_what_was_held_out_is_not_trained_on(tmp_path: Path) -> None:
    write_shop(tmp_path / "shop.csv")
    rows = pl.read_csv(tmp_path / "shop.csv").sort("time", maintain_order=True)
    rows.head(len(rows) * 2 // 3).write_csv(tmp_path / "old.csv")
    hides = {"preprocessing.hide_before_target": "visit"}
    old = prepare_shop(tmp_path, **hides | {"data.path": tmp_path / "old.csv", "data.dataset_dir": tmp_path / "old"})
    grown = open_dataset(prepare_shop(tmp_path, **hides | {"data.extends": old}))
    counts = count_trained(grown, old, np.arange(grown.n_items, dtype=np.int32))
    assert [counts[split]["users"] for split in ("validation", "test")] == [0, 0]


def test_a_repeat_has_the_kind_of_the_row_before(tmp_path: Path) -> None:
    folder = prepare_shop(tmp_path, **{"preprocessing.repeats": "first_in_a_row"})
    rows = pl.read_csv(tmp_path / "shop.csv")
    kept = json.loads((folder / "metadata.json").read_text())["events"]
    counts = dict(rows["event"].value_counts().iter_rows())
    assert kept["purchase"] == counts["purchase"]
    assert kept["view"] < counts["view"]
