"""Whole runs: on datasets that hold out less, of matrix factorisations, of kinds that are not trained."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import preprocessing
from bert4rec.__main__ import main
from bert4rec.checkpoint.contents import Weights
from bert4rec.config.kinds import KINDS, UNTRAINED
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config
from bert4rec.evaluation import ranker
from bert4rec.report.log import read_records
from bert4rec.runtime.errors import DataError
from bert4rec.training.run import run
from tests.conftest import BY_HAND, FACTORS, RATED, SMALL, leave_group, long, prepare_log, train_alone
from tests.fixture_types import Capture, Patch, Settings
from tests.folders import remove_targets
from tests.runs import in_step, interrupted, report_of

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


@pytest.mark.parametrize(
    ("split", "emptied", "figures"),
    [
        ("time", "validation", {"test", "popularity_baseline"}),
        long("leave_one_out", "validation", {"test", "popularity_baseline"}),
        ("leave_one_out", "test", {"validation"}),
    ],
)
def test_a_test_alone_or_a_validation_alone(without: Settings, split: str, emptied: str, figures: set[str]) -> None:
    changes = {"training.eval_every_n_epochs": 1, "training.patience": 1}
    report = report_of(run(without(split, emptied, **changes)))
    assert report.keys() & {"validation", "test", "popularity_baseline"} == figures
    for name in figures:
        assert report[name].keys() == {"full", "popular", "uniform"}
        assert report[name]["full"]["users"] >= 1
    if emptied == "validation":  # then the last weights are tested
        assert (report["training"]["epochs"], report["training"]["best_epoch"]) == (2, 2)


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


SHORT = {
    "training.n_epochs": 3, "training.eval_every_n_epochs": 1, "training.learning_rate": 0.01, "model.dropout": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def rated_run(rated_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the neural form, with dropout."""
    settings = BY_HAND | RATED | SHORT | {"model.form": "neural", "run.name": "rated"}
    return train_alone(rated_folder, tmp_path_factory.mktemp("runs"), **settings)


def test_ratings_are_reported_beside_means_and_rankings_and_chosen_by_others(rated_run: Path) -> None:
    report, records = report_of(rated_run), read_records(rated_run, "validation")
    ratings, n = report["ratings"], 1007
    assert list(ratings) == ["pairs", "RMSE", "MAE", "trained_pairs", "baseline_RMSE", "means_RMSE"]
    assert 90 <= ratings["pairs"] <= n / 10
    assert ratings["MAE"] < ratings["RMSE"] < ratings["baseline_RMSE"]
    assert report["test"]["full"]["users"] == report["popularity_baseline"]["full"]["users"] > 30
    assert [record["ratings"].keys() for record in records] == 3 * [{"pairs", "RMSE", "MAE"}]
    best = min(records, key=lambda record: record["ratings"]["RMSE"])
    assert report["training"]["best_epoch"] == best["epoch"]
    assert best["ratings"]["RMSE"] != report["ratings"]["RMSE"]


def test_rankings_are_learnt_without_ratings(small_config: Settings) -> None:
    report = report_of(run(small_config(**FACTORS, **{"training.loss": "bpr", "training.n_train_negatives": 20})))
    assert "ratings" not in report
    assert report["test"]["full"]["users"] == 60


def test_more_items_than_a_kind_takes_are_refused(
    small_config: Settings, small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_items = json.loads((small_folder / "metadata.json").read_text())["items"]
    monkeypatch.setitem(KINDS, "ease", replace(KINDS["ease"], most_items=n_items - 1))
    for key, value in (("model.kind", "ease"), ("evaluation.baselines", ["ease"])):
        with pytest.raises(DataError, match=rf"{n_items} items.*{re.escape(key)}.*{n_items - 1}"):
            run(small_config(**{key: value}))
        leave_group()


def test_data_without_ratings_or_item_features_are_refused(small_config: Settings, small_folder: Path) -> None:
    for changes, named in (
        (RATED, f"{small_folder}: .*--data.rating_column"), ({"model.kind": "content_neighbours"}, r"model\.kind"),
        ({"evaluation.baselines": ["content_neighbours"]}, r"evaluation\.baselines"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=named):
            run(small_config(**changes))
        leave_group()


def test_evaluate_and_similar(rated_run: Path, log_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    command = ["evaluate", str(rated_run), f"--output={tmp_path / 'found'}"]
    assert main([*command, str(log_folder)]) == 2  # which has other users
    assert str(log_folder) in capsys.readouterr().err
    assert main(command) == 0
    assert str(rated_run / "report.json") in capsys.readouterr().err
    assert report_of(tmp_path / "found")["ratings"] == report_of(rated_run)["ratings"]
    assert main(["similar", str(rated_run), "7", "--top=3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


def test_what_wants_histories_or_a_trained_model_says_so_in_one_line(
    rated_run: Path, small_config: Settings, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "config.toml").write_text(small_config(**{"model.kind": "markov"}).to_toml())
    of_factors = ["recommend RUN --user 3", "recommend RUN --items=3,4", "export RUN", "extend RUN nowhere"]
    of_counts = [
        "evaluate RUN", "extend RUN x", "train --resume=RUN",
        "train --model.kind=markov --run.init_from=RUN", "plan --config=RUN/config.toml --device=cpu --world-size=2",
    ]  # fmt: skip
    for path, named, commands in ((rated_run, "", of_factors), (tmp_path, 'model.kind = "markov"', of_counts)):
        for words in commands:
            assert main(words.replace("RUN", str(path)).split()) == 2
            out, err = capsys.readouterr()
            assert (out, err.count("\n"), named in err) == ("", 1, True), words


def test_each_kind_has_the_figures_that_it_has_beside_a_trained_model(small_config: Settings, made: Path) -> None:
    trained = report_of(made)
    beside = trained["baselines"] | {"popularity": trained["popularity_baseline"]}
    kinds = {kind for kind in UNTRAINED if not KINDS[kind].needs_features}
    assert kinds == beside.keys()
    for kind in kinds:
        folder = run(small_config(**{"model.kind": kind}))
        report = report_of(folder)
        assert (folder.name, report["test"]) == (f"small-{kind}", beside[kind])
        for name in ("popularity_baseline", "best_possible", "dataset"):
            assert report[name] == trained[name]
        assert (report["kind"], "baselines" in report) == (kind, False)
        assert report["training"].items() >= {"epochs": 0.0, "steps": 0, "stopped_by": "nothing to train"}.items()
        assert load_config(folder / "config.toml").model.kind == kind
        (record,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert record == {"kind": "validation", "step": 0, "epoch": 0.0, "full": report["validation"]["full"]}
        ranks = pq.read_table(folder / "ranks-test.parquet")["full"].to_numpy()
        assert (ranks <= 10).mean() == report["test"]["full"]["HR@10"]
        assert not (folder / "checkpoints").exists()


def test_a_signal_to_a_count_leaves_nothing(small_config: Settings, monkeypatch: Patch) -> None:
    in_step(monkeypatch, ranker.Ranker, "_encode_batch", 1)
    config = small_config(**{"model.kind": "transition_graph"})
    interrupted(config)
    assert not Path(config.run.dir).exists()
