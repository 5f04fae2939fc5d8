"""`bert4rec prepare`: what it says before and after, and what to type next."""

import os
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import preprocessing
from bert4rec.__main__ import main
from bert4rec.dataset.runs import link_catalogue
from bert4rec.prepare import engine
from bert4rec.runtime.errors import DataError
from tests.conftest import LOG
from tests.fixture_types import Capture, Patch
from tests.folders import contents, files_of

COLUMNS = ["--data.user_column=who", "--data.item_column=what", "--preprocessing.n_eval_negatives=5"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """An empty working folder, but for a log."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{user},{item}" for user, items in LOG.items() for item in items]
    Path("log.csv").write_text("\n".join(["who,what", *rows]) + "\n")
    return tmp_path


def said(argv: Sequence[str], capsys: Capture) -> list[str]:
    assert main(["prepare", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_without_a_file_the_defaults_count_and_what_is_next_fits_the_start(
    folder: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    command = ["--data.path=log.csv", *COLUMNS]
    _, second, *_, last = said(command, capsys)
    assert last == "next: bert4rec train data/log"

    monkeypatch.setattr("sys.argv", ["/x/bert4rec/__main__.py"])
    Path("config.toml").write_text("")
    first, *_, last = said([*command, "--data.replace=true"], capsys)
    assert first == second
    assert last == "next: python -m bert4rec train data/log"

    of_training = ["--model.max_len", "20", "--data.parts_by_host=true"]
    assert preprocessing.main([*command, "--config=config.toml", *of_training]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    words = "--model.max_len=20 --data.parts_by_host=true"
    assert last == f"next: python train.py data/log --config=config.toml {words}"
    Path("config.toml").write_text("[data]\nn_users = 60\nn_items = 150\nn_rows = 916\n")
    assert preprocessing.main(["--training.n_epochs=3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: python train.py --training.n_epochs=3"


def test_the_name_of_a_data_set_downloads_it_unless_a_file_has_it(
    folder: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    fetched: list[str] = []

    def fetch(name: str, _: Path) -> Path:
        fetched.append(name)
        raise DataError("no network")

    monkeypatch.setattr(import_module("bert4rec.sources.remote"), "fetch_movielens", fetch)
    assert main(["prepare", "ml-100k"]) == 2
    assert fetched == ["ml-100k"]
    for words in (["ml-100k", "--data.source=ml-1m"], ["log.csv", "--path=log.csv"], ["missing.csv"]):
        assert main(["prepare", *words, *COLUMNS]) == 2
        assert words[-1] in capsys.readouterr().err
    Path("log.csv").rename("ml-100k")
    assert main(["prepare", "ml-100k", "--data.source=table", *COLUMNS]) == 0
    assert fetched == ["ml-100k"]


def trained(dataset: str, run: str) -> Path:
    """Write what a training leaves beside the dataset and in the folder of the run when it starts."""
    Path(run).mkdir(parents=True)
    link_catalogue(Path(dataset), Path(run))
    return Path(run)


OTHER = [*COLUMNS, "--preprocessing.max_user_interactions=7"]


def test_a_dataset_that_a_run_was_trained_on_is_not_replaced_by_other_settings(folder: Path, capsys: Capture) -> None:
    said(["log.csv", *COLUMNS], capsys)
    trained("data/log", "runs/log")
    before, made = files_of(Path("data/log")), contents(Path("data/log"))
    for _ in range(2):  # the second one has the same settings and input as the first one
        assert said(["log.csv", *OTHER], capsys)[-1] == "next: bert4rec train data/log-2"
        assert files_of(Path("data/log")) == before
    trained("data/log-2", "runs/log-2")
    assert said(["log.csv", *COLUMNS, "--preprocessing.split=none"], capsys)[-1] == "next: bert4rec train data/log-3"
    Path("config.toml").write_text('[data]\npath = "log.csv"\nuser_column = "who"\nitem_column = "what"\n')
    assert said([], capsys)[-1] == "next: bert4rec train data/log-4"  # although no setting was typed
    assert said(["log.csv", *COLUMNS], capsys)[-1] == "next: bert4rec train data/log"  # the same settings and input
    assert contents(Path("data/log")) == made


def test_after_a_dataset_was_extended_the_run_to_go_on_from_is_named(folder: Path, capsys: Capture) -> None:
    said(["log.csv", *COLUMNS], capsys)
    grown = ["log.csv", "--data.extends=data/log", "--out=data/new week"]
    assert not any("bert4rec extend" in line for line in said(grown, capsys))
    for number, name in enumerate(("b", "c", "a", "d")):
        run = trained("data/log", f"runs/{name}")
        if name != "d":  # which has no checkpoint yet
            step = run / "checkpoints" / "step-000000007"
            step.mkdir(parents=True)
            os.utime(step, (number, number))
    *_, extend, last = said(grown, capsys)
    assert extend.endswith(": bert4rec extend runs/a 'data/new week'")
    assert last == "next: bert4rec train 'data/new week'"


def test_nor_by_another_input_or_another_column(folder: Path, capsys: Capture) -> None:
    said(["log.csv", *COLUMNS], capsys)
    run, before = trained("data/log", "runs/log"), files_of(Path("data/log"))
    Path("log.csv").write_text(Path("log.csv").read_text() + "a,3\nz,1\nz,2\nz,3\n")
    assert said(["log.csv", *COLUMNS], capsys)[-1] == "next: bert4rec train data/log-2"
    swapped = ["--user=what", "--item=who", "--preprocessing.n_eval_negatives=1"]
    assert said(["log.csv", *swapped], capsys)[-1] == "next: bert4rec train data/log-3"
    Path("new").mkdir()
    Path("log.csv").rename("new/log.csv")
    assert said(["new/log.csv", *COLUMNS, "--preprocessing.seed=2"], capsys)[-1] == "next: bert4rec train data/log-4"
    assert files_of(Path("data/log")) == before
    shutil.rmtree(run)  # a run that is gone keeps nothing; another input is refused as ever
    assert main(["prepare", "new/log.csv", *COLUMNS]) == 2
    assert said(["new/log.csv", *COLUMNS, "--replace"], capsys)[-1] == "next: bert4rec train data/log"


def test_a_folder_that_was_named_is_replaced_only_where_that_is_typed(
    folder: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    command = ["log.csv", "--out=data/mine", *COLUMNS]
    said(command, capsys)
    trained("data/mine", "runs/mine")
    before = files_of(Path("data/mine"))
    named = ("data/mine: ", "runs/mine", "--data.dataset_dir=data/mine-2", "--replace")
    with monkeypatch.context() as patch:  # other settings are seen before the work
        patch.setattr(engine, "open_source", None)
        assert main(["prepare", *command, "--preprocessing.seed=2"]) == 2
    Path("log.csv").write_text(Path("log.csv").read_text() + "a,3\n")
    assert main(["prepare", *command]) == 2
    assert all(word in error for error in capsys.readouterr().err.splitlines() for word in named)
    assert files_of(Path("data/mine")) == before
    assert said([*command, "--replace"], capsys)[-1] == "next: bert4rec train data/mine"
    assert files_of(Path("data/mine")) != before
    said([*command, "--preprocessing.seed=2"], capsys)  # no run was trained on what it holds now


def test_a_training_that_starts_during_the_preparation_counts(
    folder: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    said(["log.csv", *COLUMNS], capsys)
    write = engine.write_metadata

    def train_and_write(*arguments: Any, **known: Any) -> int:
        trained("data/log", "runs/log")
        return write(*arguments, **known)

    monkeypatch.setattr(engine, "write_metadata", train_and_write)
    assert said(["log.csv", *OTHER], capsys)[-1] == "next: bert4rec train data/log-2"
