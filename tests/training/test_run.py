"""Whole runs on datasets that hold out less than the usual ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch

import preprocessing
from bert4rec.__main__ import main
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import open_dataset
from bert4rec.training.run import run
from bert4rec.training.trainer import load_weights
from tests.conftest import BY_HAND, SMALL, prepare_log
from tests.folders import rewrite

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]

SPLITS = ("validation", "test")


@pytest.fixture
def without(tmp_path: Path, small_config: Callable[..., Config]) -> Callable[..., Config]:
    """Settings for a small dataset, really made with a kind of split, of which some splits are emptied then."""

    def make(split: str, *emptied: str, **changes: Any) -> Config:
        folder = tmp_path / "dataset"
        settings = SMALL | {"preprocessing.split": split, "data.dataset_dir": str(folder)}
        arguments = [f"--{key}={value}" for key, value in settings.items()]
        assert preprocessing.main(["--config=config.toml", *arguments]) == 0
        for name in emptied:
            rewrite(folder, name, lambda rows: rows.select(range(0)))
        return small_config(**settings | changes)

    return make


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def test_a_dataset_that_holds_nothing_out_trains_to_the_end(
    without: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    config = without("none", **{"training.n_epochs": 3, "training.patience": 1, "training.eval_every_n_epochs": 1})
    dataset = open_dataset(config.data.folder, max_len=12, preprocessing=config.preprocessing.recipe)
    assert [len(dataset.splits[name]) for name in SPLITS] == [0, 0]
    capsys.readouterr()
    folder = run(config)
    report, page = report_of(folder), (folder / "report.md").read_text()
    assert (report["training"]["epochs"], report["training"]["stopped_by"]) == (3, "n_epochs")
    assert report["training"]["best_epoch"] == 3
    assert report.keys().isdisjoint({"validation", "test", "popularity_baseline", "best_possible"})
    assert (folder / "checkpoints" / "best").is_dir()
    assert [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == ["train"] * 3
    printed = capsys.readouterr().out
    assert "this dataset holds nothing out for validation or test: the last weights are kept\n" in printed
    assert printed.endswith(
        "\nThis dataset holds nothing out: there is no test.\n"
        f"report: {folder / 'report.md'}\nall figures: python -m bert4rec report {folder}\n"
    )
    assert "Nothing was held out for validation: the last weights were kept." in page
    assert "## Test\n\nThis dataset holds nothing out: there is no test.\n" in page
    assert "## Validation" not in page
    assert "HR@" not in page
    assert matplotlib.image.imread(folder / "learning_curve.png").shape[1] == 600  # one plot, not two


def test_the_last_weights_are_kept(without: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def load(model: torch.nn.Module, folder: Path) -> None:
        for _ in range(2):
            seen.append({name: value.clone() for name, value in model.state_dict().items()})
            load_weights(model, folder)

    monkeypatch.setattr("bert4rec.training.trainer.load_weights", load)
    folder = run(without("none", **{"parallelism.mode": "ddp", "training.eval_every_n_epochs": 1}))
    before, after = seen
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["best", "step-000000007", "step-000000014"]
    assert (folder / "checkpoints" / "best").readlink() == Path("step-000000014")


def test_time_ends_a_run_without_validation(without: Callable[..., Config]) -> None:
    report = report_of(run(without("none", **{"training.n_epochs": 50, "training.max_minutes": 1e-6})))
    assert report["training"]["stopped_by"] == "max_minutes"
    assert report["training"]["steps"] == 1


@pytest.mark.parametrize("split", ["leave_one_out", "time"])
def test_a_test_without_a_validation_tests_the_last_weights(
    without: Callable[..., Config], capsys: pytest.CaptureFixture[str], split: str
) -> None:
    folder = run(without(split, "validation", **{"training.eval_every_n_epochs": 1, "training.patience": 1}))
    report, page = report_of(folder), (folder / "report.md").read_text()
    assert (report["training"]["epochs"], report["training"]["best_epoch"]) == (2, 2)
    assert "validation" not in report
    for name in ("test", "popularity_baseline"):
        assert report[name].keys() == {"full", "popular", "uniform"}
        assert report[name]["full"]["users"] >= 1
    assert "this dataset holds nothing out for validation: the last weights are kept\n" in capsys.readouterr().out
    assert "## Validation" not in page
    assert "| Bert4Rec" in page
    assert ("Test: the last item of each user; " in page) == (split == "leave_one_out")


def test_repeated_targets_and_users_left_out_are_reported(
    log_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(log_config(**{"training.n_epochs": 2, "training.eval_every_n_epochs": 1}))
    report, page = report_of(folder), (folder / "report.md").read_text()
    assert report["dataset"]["repeated_targets"] == {
        "validation": {"users": 2, "of": 6},
        "test": {"users": 3, "of": 6},
    }
    assert report["dataset"]["left_out"] == {"validation": {"users": 2, "of": 6}, "test": {"users": 2, "of": 6}}
    protocols = ["full", "full_unseen", "popular", "uniform"]
    for name in ("test", "validation", "popularity_baseline"):
        assert list(report[name]) == protocols
        assert [report[name][protocol]["users"] for protocol in protocols] == [6, 6, 4, 4]
        assert report[name]["full"]["HR@10"] == 1  # of eight items
        assert report[name]["full_unseen"]["HR@10"] == (4 / 6 if name == "validation" else 3 / 6)
    assert report["popularity_baseline"]["full_unseen"]["MRR"] == (1 / 4 + 1 + 1 / 5) / 6
    line = "test of 6 users, full catalogue: HR@10 1.0000, "
    assert f"\n{line}" in capsys.readouterr().out
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    for heading in (
        "Full catalogue, without the items that the user has seen (the target is ranked in any case); 6 users",
        "Full catalogue, without any item that the user has seen: 3 of 6 targets (50.0 %) are such items, and "
        "missed; 6 users",
        "Among 5 unseen items drawn uniformly; 4 of 6 users (left out: 2, with fewer than 5 unseen items)",
    ):
        assert f"\n{heading}\n" in printed
        assert f"\n{heading}\n" in page
    assert "2 of 6 targets (33.3 %) are such items, and missed; 6 users\n" in page  # of the validation
    assert " Seen by their users before: 3 of 6 test targets (50.0 %), 2 of 6 validation targets (33.3 %). " in page
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validations = [record for record in records if record["kind"] == "validation"]
    assert [set(record) for record in validations] == [{"kind", "step", "epoch", "full"}] * 2
    best = max(validations, key=lambda record: record["full"]["NDCG@10"])
    assert report["training"]["best_epoch"] == best["epoch"]


def test_a_folder_of_before_these_were_counted_gives_the_same_report(
    log_config: Callable[..., Config], log_folder: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(log_folder, tmp_path / "old"))
    metadata = json.loads((old / "metadata.json").read_text())
    del metadata["repeated_targets"], metadata["left_out"]
    (old / "metadata.json").write_text(json.dumps(metadata))
    reports = [
        report_of(run(log_config(**{"data.dataset_dir": str(folder), "training.n_epochs": 1})))
        for folder in (log_folder, old)
    ]
    for report in reports:
        del report["training"], report["sharding"]
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    ("protocols", "reported"), [(["popular", "uniform"], []), (["uniform", "full"], ["full", "full_unseen"])]
)
def test_a_protocol_for_nobody_is_absent(
    small_config: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    protocols: list[str], reported: list[str],
) -> None:  # fmt: skip
    too_many = {"preprocessing.n_eval_negatives": 7}
    folder = prepare_log(tmp_path, **too_many)
    report = report_of(
        run(
            small_config(
                **BY_HAND | too_many | {"data.dataset_dir": str(folder), "evaluation.protocols": protocols},
                **{"training.n_epochs": 1},
            )
        )
    )
    for name in ("test", "validation", "popularity_baseline"):
        assert list(report[name]) == reported
    line = "\nNo user has 7 unseen items: there is no ranking among sampled items.\n"
    assert capsys.readouterr().out.count(line) == (0 if reported else 1)
    assert main(["report", str(tmp_path / "runs" / "synthetic-dmp")]) == 0
    assert capsys.readouterr().out.count(line) == 1


def test_a_validation_without_a_test_chooses_the_weights(without: Callable[..., Config]) -> None:
    folder = run(without("leave_one_out", "test"))
    report, page = report_of(folder), (folder / "report.md").read_text()
    assert report["validation"]["full"]["users"] == 20
    assert report.keys().isdisjoint({"test", "popularity_baseline", "best_possible"})
    assert "## Test\n\nThis dataset holds nothing out: there is no test.\n\n## Validation\n\nFull catalogue" in page
