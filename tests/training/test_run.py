"""Whole runs on datasets that hold out less than the usual ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch

import preprocessing
from bert4rec.checkpoint.contents import Weights
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import open_dataset
from bert4rec.training.run import run
from tests.conftest import SMALL
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
        f"report: {folder / 'report.html'}\nall figures: bert4rec report {folder}\n"
        f"recommendations: bert4rec recommend {folder} --all --output=recommendations.parquet\n"
    )
    assert "Nothing was held out for validation: the last weights were kept." in page
    assert "## Test\n\nThis dataset holds nothing out: there is no test.\n" in page
    assert "## Validation" not in page
    assert "HR@" not in page
    assert matplotlib.image.imread(folder / "learning_curve.png").shape[1] == 600  # one plot, not two


def test_the_last_weights_are_kept(without: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    load = Weights.load

    def watched(self: Weights, folder: Path) -> None:
        for _ in range(2):
            seen.append({name: value.clone() for name, value in self.tensors().items()})
            load(self, folder)

    monkeypatch.setattr(Weights, "load", watched)
    changes = {"parallelism.mode": "ddp", "training.eval_every_n_epochs": 1, "training.average_age": 0.0}
    folder = run(without("none", **changes))
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


def test_a_validation_without_a_test_chooses_the_weights(without: Callable[..., Config]) -> None:
    folder = run(without("leave_one_out", "test"))
    report, page = report_of(folder), (folder / "report.md").read_text()
    assert report["validation"]["full"]["users"] == 20
    assert report.keys().isdisjoint({"test", "popularity_baseline", "best_possible"})
    assert "## Test\n\nThis dataset holds nothing out: there is no test.\n\n## Validation\n\nFull catalogue" in page
