"""Which runs a dataset knows, and what a run keeps of its dataset."""

import json
import os
import shutil
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from bert4rec.dataset.reader import open_catalogue
from bert4rec.dataset.runs import CATALOGUE, fingerprint_of, link_catalogue, runs_of
from tests.fixture_types import Patch

FILE = "items/part-0000000000.parquet"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Patch, featured_folder: Path) -> Path:
    """A folder with data/log, and an empty runs/."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(featured_folder, "data/log")
    Path("runs").mkdir()
    return tmp_path


def begun(name: str, dataset: str = "data/log") -> Path:
    run = Path(name)
    run.mkdir(parents=True)
    link_catalogue(Path(dataset), run)
    return run


def test_a_dataset_knows_its_runs_until_they_are_removed(place: Path, monkeypatch: Patch) -> None:
    dataset = Path("data/log")
    assert runs_of(dataset) == []
    runs = [begun("runs/log"), begun("runs/log-2"), begun("deep/er/log")]
    assert main(["check", "data/log"]) == 0
    begun("runs/again/log")
    shutil.rmtree("runs/again")
    link_catalogue(dataset, runs[0])  # a resumed run
    assert sorted(runs_of(dataset)) == sorted(runs)
    runs[1].rename("runs/best")
    shutil.rmtree(runs[0])
    assert sorted(runs_of(dataset)) == [Path("deep/er/log"), Path("runs/best")]
    Path("link").symlink_to(dataset)
    monkeypatch.chdir("data")
    assert runs_of(Path("log")) == runs_of(place / "link") == [place / "deep/er/log", place / "runs/best"]
    path = place / dataset / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprint": "another"}))
    assert runs_of(Path("log")) == []  # which the dataset at this place was not made for
    assert [begun("../runs/log-2", "log").resolve()] == runs_of(Path("log"))


def test_both_may_move_together_or_the_runs_stay(place: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    run = begun("runs/log").resolve()
    shutil.copytree(place, tmp_path / "elsewhere", ignore=lambda *_: {"elsewhere"})
    assert tmp_path / "elsewhere/runs/log" in [path.resolve() for path in runs_of(tmp_path / "elsewhere/data/log")]
    (tmp_path / "far/away").mkdir(parents=True)
    for name in ("log", ".log.runs"):
        Path("data", name).rename(tmp_path / "far/away" / name)
    assert [path.resolve() for path in runs_of(tmp_path / "far/away/log")] == [run]


@pytest.mark.parametrize("can_link", [True, False])
def test_a_run_has_the_items_and_their_features_wherever_it_goes(
    place: Path, monkeypatch: Patch, can_link: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    if not can_link:
        monkeypatch.setattr(os, "link", fail)
    names = {path.relative_to("data/log"): path.read_bytes() for path in Path("data/log").rglob("*") if path.is_file()}
    run, expected = begun("runs/log"), fingerprint_of(Path("data/log"))
    assert (run / CATALOGUE / FILE).samefile(Path("data/log") / FILE) == can_link
    shutil.rmtree("data/log")
    items = Path(shutil.copytree(run, "moved")) / CATALOGUE
    assert fingerprint_of(items) == expected
    kept = {path.relative_to(items): path.read_bytes() for path in items.rglob("*") if path.is_file()}
    assert kept.items() <= names.items()
    catalogue = open_catalogue(items)
    assert catalogue.n_items == len(catalogue.popularity) == 28
    assert catalogue.features is not None
    assert len(catalogue.features.read(catalogue.popularity[:3].astype("int64")).lengths) == 3


def test_a_run_that_was_stopped_while_it_linked_links_again_and_may_have_no_note(place: Path) -> None:
    Path("data/.log.runs").mkdir()  # cannot be written, as on a read-only disk, for root too
    run = begun("runs/log")
    for name in ("metadata.json", FILE):
        (run / CATALOGUE / name).unlink()
    link_catalogue(Path("data/log"), run)
    assert open_catalogue(run / CATALOGUE).n_items == 28
    assert runs_of(Path("data/log")) == []
