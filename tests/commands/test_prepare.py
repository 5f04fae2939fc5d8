"""`bert4rec prepare`: what it says before and after, and what to type next."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

import preprocessing
from bert4rec.__main__ import main
from bert4rec.commands.prepare import SETS
from bert4rec.prepare.remote import ARCHIVES
from bert4rec.runtime.errors import DataError
from tests.conftest import LOG
from tests.fixture_types import Capture, Patch

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
    first, second, *_, last = said(command, capsys)
    assert "config.toml" in first
    assert second.startswith("data.source = table: log.csv ")
    assert last == "next: bert4rec train data/log"

    monkeypatch.setattr("sys.argv", ["/x/bert4rec/__main__.py"])
    Path("config.toml").write_text("")
    first, *_, last = said([*command, "--data.replace=true"], capsys)
    assert first == second
    assert last == "next: python -m bert4rec train data/log"

    assert preprocessing.main([*command, "--config=config.toml", "--model.max_len", "20"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "next: python train.py data/log --config=config.toml --model.max_len=20"
    assert preprocessing.main(["--training.n_epochs=3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: python train.py --training.n_epochs=3"


def test_the_input_is_an_argument(folder: Path, capsys: Capture) -> None:
    assert said(["log.csv", *COLUMNS], capsys)[-1] == "next: bert4rec train data/log"
    for option in ("--data.path=log.csv", "--path=log.csv"):
        assert main(["prepare", "log.csv", option]) == 2
        assert option in capsys.readouterr().err
    assert main(["prepare", "missing.csv"]) == 2
    assert "missing.csv: " in capsys.readouterr().err


def test_the_name_of_a_data_set_downloads_it_unless_a_file_has_it(
    folder: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    fetched: list[str] = []

    def fetch(name: str, _: Path) -> Path:
        fetched.append(name)
        raise DataError("no network")

    monkeypatch.setattr(import_module("bert4rec.prepare.remote"), "fetch_movielens", fetch)
    assert main(["prepare", "ml-100k"]) == 2
    assert fetched == ["ml-100k"]
    assert main(["prepare", "ml-100k", "--data.source=ml-1m"]) == 2
    assert "--data.source=ml-1m" in capsys.readouterr().err
    Path("log.csv").rename("ml-100k")
    assert main(["prepare", "ml-100k", "--data.source=table", *COLUMNS]) == 0
    assert fetched == ["ml-100k"]


def test_the_sets_that_can_be_downloaded_are_named() -> None:
    assert [*ARCHIVES] == SETS
