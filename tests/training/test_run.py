"""Whole runs on datasets that hold out less than the usual ones, and which figures a report has."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import preprocessing
from bert4rec.checkpoint.contents import Weights
from bert4rec.config.tables import Config
from bert4rec.report.log import read_records
from bert4rec.training.run import run
from tests.conftest import BY_HAND, SMALL, long, prepare_log
from tests.fixture_types import Patch, Settings
from tests.folders import remove_targets
from tests.runs import report_of

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def without(tmp_path: Path, small_config: Settings) -> Settings:
    """Settings for a small dataset, really made with a kind of split, of which some splits are emptied then."""

    def make(split: str, *emptied: str, **changes: Any) -> Config:
        folder = tmp_path / "dataset"
        settings = SMALL | {"preprocessing.split": split, "data.dataset_dir": str(folder)}
        options = [f"--{key}={value}" for key, value in settings.items()]
        assert preprocessing.main(["--config=config.toml", *options]) == 0
        remove_targets(folder, *emptied)
        return small_config(**settings | changes)

    return make


def test_without_held_out_users_the_last_weights_are_kept(without: Settings, monkeypatch: Patch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    load = Weights.load

    def watched(self: Weights, folder: Path) -> None:
        for _ in range(2):
            seen.append({name: value.clone() for name, value in self.tensors().items()})
            load(self, folder)

    monkeypatch.setattr(Weights, "load", watched)
    changes = {"parallelism.mode": "ddp", "training.average_age": 0.0, "training.patience": 1}
    folder = run(without("none", **changes, **{"training.eval_every_n_epochs": 1}))
    report = report_of(folder)
    assert (report["training"]["epochs"], report["training"]["stopped_by"]) == (2, "n_epochs")
    assert report["training"]["best_epoch"] == 2
    assert report.keys().isdisjoint({"validation", "test", "popularity_baseline", "best_possible"})
    assert [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == ["train"] * 2
    assert "HR@" not in (folder / "report.md").read_text()
    before, after = seen
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"best", "step-000000007", "step-000000014"}
    assert (folder / "checkpoints" / "best").readlink() == Path("step-000000014")


@pytest.mark.parametrize("split", [long("leave_one_out"), "time"])
def test_a_test_without_a_validation_tests_the_last_weights(without: Settings, split: str) -> None:
    folder = run(without(split, "validation", **{"training.eval_every_n_epochs": 1, "training.patience": 1}))
    report = report_of(folder)
    assert (report["training"]["epochs"], report["training"]["best_epoch"]) == (2, 2)
    assert "validation" not in report
    for name in ("test", "popularity_baseline"):
        assert report[name].keys() == {"full", "popular", "uniform"}
        assert report[name]["full"]["users"] >= 1


def test_a_validation_without_a_test_chooses_the_weights(without: Settings) -> None:
    folder = run(without("leave_one_out", "test"))
    report = report_of(folder)
    assert report["validation"]["full"]["users"] == 20
    assert report.keys().isdisjoint({"test", "popularity_baseline", "best_possible"})


def test_repeated_targets_and_users_left_out_are_reported(log_config: Settings) -> None:
    folder = run(log_config(**{"training.n_epochs": 2, "training.eval_every_n_epochs": 1}))
    report = report_of(folder)
    two, three = {"users": 2, "of": 6}, {"users": 3, "of": 6}
    assert report["dataset"]["repeated_targets"] == {"validation": two, "test": three}
    assert report["dataset"]["left_out"] == {"validation": two, "test": two}
    for name in ("test", "validation", "popularity_baseline"):
        users = {protocol: metrics["users"] for protocol, metrics in report[name].items()}
        assert users == {"full": 6, "popular": 4, "uniform": 4}
        assert report[name]["full"]["HR@10"] == 1  # of eight items
    assert report["seen_items"] == "keep"
    assert report["popularity_baseline"]["full"]["MRR"] == pytest.approx((1 / 3 + 1 / 6 + 2 / 7 + 2 / 8) / 6)
    validations = read_records(folder, "validation")
    assert [set(record) for record in validations] == [{"kind", "step", "epoch", "full"}] * 2
    best = max(validations, key=lambda record: record["full"]["NDCG@10"])
    assert report["training"]["best_epoch"] == best["epoch"]


@pytest.mark.parametrize(("protocols", "reported"), [long(["popular", "uniform"], []), (["uniform", "full"], ["full"])])
def test_a_protocol_for_nobody_is_absent(
    small_config: Settings, tmp_path: Path, protocols: list[str], reported: list[str]
) -> None:
    too_many = {"preprocessing.n_eval_negatives": 7}
    places = {"data.dataset_dir": str(prepare_log(tmp_path, **too_many)), "evaluation.protocols": protocols}
    report = report_of(run(small_config(**BY_HAND | too_many | places, **{"training.n_epochs": 1})))
    for name in ("test", "validation", "popularity_baseline"):
        assert list(report[name]) == reported
