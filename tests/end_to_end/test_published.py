"""`benchmarks.published`: what is trained, what is kept, and the table."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert4rec
from benchmarks import published
from benchmarks.published import earlier_run, main, parse_models, tables
from bert4rec.checkpoint.run_folder import REPORT
from bert4rec.config.load import load_config
from bert4rec.evaluation.intervals import mean_interval
from bert4rec.report.compared_runs import read_run
from tests.conftest import SMALL
from tests.fixture_types import Capture, Patch
from tests.report.runs_by_hand import make_run
from tests.runs import report_of

FEW = {"data.n_users": 40, "data.n_items": 60, "data.n_rows": 500, "training.n_epochs": 1}
OPTIONS = [f"--{name}={value}" for name, value in (SMALL | FEW | {"evaluation.protocols": "['full']"}).items()]
NONE = {"test": {"users": 0, "of": 10}}
DATASET = {
    "source": "table", "users": 1200, "items": 40, "n_eval_negatives": 10, "fingerprint": "f", "split": "leave_one_out",
    "repeated_targets": NONE, "left_out": NONE,
}  # fmt: skip


@pytest.fixture
def trained(monkeypatch: Patch, tmp_path: Path) -> list[dict[str, Any]]:
    """Train in this process, since importing TorchRec takes seconds; the settings of all trainings."""
    started: list[dict[str, Any]] = []
    original = bert4rec.train

    def train(settings: Mapping[str, Any], *, config: str | None = None, processes: int) -> Any:
        started.append({**settings})
        return original(settings, config=config)

    monkeypatch.setattr(bert4rec, "train", train)
    monkeypatch.chdir(tmp_path)
    return started


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_finished_runs_are_kept_and_others_go_on(trained: list[dict[str, Any]], capsys: Capture) -> None:
    words = ["markov", "sasrec", "--seeds=1,2", *OPTIONS]
    assert main(words) == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows == ["", "markov", "sasrec"]
    folder = Path("runs/published-synthetic")
    assert {path.name for path in folder.iterdir()} == {"markov-seed1", "sasrec-seed1", "sasrec-seed2"}
    whole = report_of(folder / "sasrec-seed2")

    trained.clear()
    shutil.rmtree(folder / "sasrec-seed1")
    (folder / "sasrec-seed2" / REPORT).unlink()
    assert main(words) == 0
    assert [settings.get("run.name") for settings in trained] == ["sasrec-seed1", None]
    assert trained[1] == {"run.resume": folder / "sasrec-seed2"}
    assert report_of(folder / "sasrec-seed2")["test"] == whole["test"]


def make(folder: Path, *, fingerprint: str = "abc", processes: int = 1, finished: bool = True, **settings: Any) -> Path:
    folder.mkdir(parents=True)
    resolved = {"model.kind": "markov", "training.loss": "softmax", "data.dataset_dir": "elsewhere"}
    (folder / "config.toml").write_text(load_config(None, resolved | settings).to_toml())
    (folder / "environment.json").write_text(json.dumps({"world_size": processes}))
    if finished:
        (folder / "report.json").write_text(json.dumps({"dataset": {"fingerprint": fingerprint}}))
    else:
        checkpoint = folder / "checkpoints" / "step-000000007"
        checkpoint.mkdir(parents=True)
        (checkpoint / "facts.json").write_text(json.dumps({"fingerprint": fingerprint}))
    return folder


@pytest.mark.parametrize("finished", [True, False])
def test_only_the_same_settings_dataset_and_processes_count(tmp_path: Path, monkeypatch: Patch, finished: bool) -> None:
    make(tmp_path / "x", finished=finished)
    make(tmp_path / "x-2", finished=finished, **{"preprocessing.seed": 3})
    make(tmp_path / "x-3", finished=finished, fingerprint="def")
    make(tmp_path / "x-4", finished=finished, processes=2)
    make(tmp_path / "x-seed5", finished=finished)
    (make(tmp_path / "x-6") / "report.json").write_text("{")  # damaged
    config = load_config(None, {"run.dir": str(tmp_path), "run.name": "x", "model.kind": "markov"})
    for fingerprint, n_processes, name in (("abc", 1, "x"), ("def", 1, "x-3"), ("abc", 2, "x-4"), ("xyz", 1, None)):
        monkeypatch.setattr(published, "read_metadata", lambda _, value=fingerprint: {"fingerprint": value})
        assert earlier_run(config, n_processes) == (name and tmp_path / name)


def test_models_have_settings_and_names() -> None:
    assert parse_models(["deep=sasrec:n_layers=3,training.n_epochs=9", "markov", "markov"]) == {
        "deep": {"model.kind": "sasrec", "model.n_layers": 3, "training.n_epochs": 9},
        "markov": {"model.kind": "markov"},
    }
    assert len(parse_models(["untrained", "bert4rec"])) == 6


@pytest.mark.parametrize(
    ("word", "token"),
    [
        ("--training.n_epoch=1", "n_epoch"), ("markow", "markow"), ("sasrec:n_layer=1", "n_layer"),
        ("markov=sasrec", "markov=sasrec"), ("a b", "a b"),
    ],
)  # fmt: skip
def test_wrong_settings_are_found_before_the_first_training(capsys: Capture, word: str, token: str) -> None:
    assert main(["markov", word, "--seeds=1"]) == 2
    assert token in capsys.readouterr().err


def test_several_seeds_have_a_spread_and_the_interval_of_their_mean(tmp_path: Path) -> None:
    """Over users, of whom each has the mean of its own figures."""
    seed_runs = [
        read_run(make_run(tmp_path / str(n), [1] * n + [30] * (10 - n), seed=n, dataset=DATASET)) for n in (2, 4)
    ]
    low, high = mean_interval(np.array([1, 1, 0.5, 0.5, *[0] * 6]))
    assert f"| sasrec | 0.3000 ± 0.1414 ({low:.4f} – {high:.4f}) |" in tables({"sasrec": seed_runs})
    assert "±" not in tables({"sasrec": seed_runs[:1]}).splitlines()[4]


def test_published_results_on_the_same_file_stand_below(tmp_path: Path) -> None:
    ml_1m = {"users": 6040, "items": 3416, "rows": 999611, "split": "leave_one_out", "n_eval_negatives": 100}
    for rows, is_known in ((999611, True), (999610, False)):
        dataset = {**DATASET, **ml_1m, "rows": rows}
        page = tables({"sasrec": [read_run(make_run(tmp_path / str(rows), [1], dataset=dataset))]})
        assert ["0.3232" in line for line in page.splitlines() if "| published: TV-Rec " in line] == [True] * is_known
