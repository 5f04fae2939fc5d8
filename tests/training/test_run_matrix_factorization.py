"""Whole runs of matrix factorisations, and what the other commands make of them."""

from pathlib import Path

import pytest

from bert4rec.__main__ import main
from bert4rec.report.log import read_records
from bert4rec.runtime.errors import DataError
from bert4rec.training.run import run
from tests.conftest import BY_HAND, FACTORS, RATED, leave_group, train_alone
from tests.fixture_types import Capture, Settings
from tests.runs import report_of

pytestmark = pytest.mark.usefixtures("alone")

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


def test_ratings_that_are_not_there_cannot_be_learnt(small_config: Settings, small_folder: Path) -> None:
    with pytest.raises(DataError, match=f"{small_folder}: .*--data.rating_column"):
        run(small_config(**RATED))
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


def test_what_wants_histories_says_so_in_one_line(rated_run: Path, capsys: Capture) -> None:
    for name, *options in (
        ["recommend", "--user", "3"], ["recommend", "--items=3,4"], ["export"], ["extend", "nowhere"],
    ):  # fmt: skip
        assert main([name, str(rated_run), *options]) == 2
        assert capsys.readouterr().err.count("\n") == 1
