"""The page of a run: well-formed, escaped, in one file; a section for everything that was measured."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image

from bert4rec.config.tables import Config
from bert4rec.report.figures import read_contents
from bert4rec.report.pages import write_html
from tests.report.runs_by_hand import HOSTILE, SMALL_REPORT, write_run

DEFAULTS = Config().model_dump(mode="json")
VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}


class Reader(HTMLParser):
    """The texts, tags, links and ids of a page; fails if an element is not closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags, self.open, self.links, self.ids, self.texts = (list[str]() for _ in range(5))
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in VOID else [tag]
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"] and data.strip():
            self.texts.append(data.strip().replace("\N{NO-BREAK SPACE}", " "))


def test_the_page_of_a_whole_run_is_one_small_file_whose_data_are_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    path = write_html(run, DEFAULTS)
    assert (path, path.stat().st_size < 400_000) == (run / "report.html", True)
    page, source = Reader(path), path.read_text()
    assert {"script", "img", "link", "iframe"}.isdisjoint(page.tags)
    assert "url(http" not in source
    other_links = {link for link in page.links if not link.startswith("#")}
    assert all(re.match(r"https://(arxiv\.org/abs/\d|github\.com/)", link) for link in other_links)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= {*page.ids}
    names = ["comparison", "history_lengths", "hits_by_rank", "loss", "sharding_plan", "validation"]
    assert sorted(path.stem for path in (run / "pictures").iterdir()) == names  # pictures are files, too
    assert page.tags.count("svg") == len(names)
    assert image.imread(run / "learning_curve.png").shape[1] == 1200  # 5 inches a plot, 120 dots an inch
    assert "<script" not in source.lower()  # in names of files, users, items, slices, settings, plan and command
    text = " ".join(page.texts)
    assert text.count(HOSTILE) >= 10
    for words in (
        f"Bert4Rec on {HOSTILE}", f"User {HOSTILE}", "3,416 items", "0.301 to 0.321", "33.3 %",
        "Bert4Rec 0.3113 0.3013 – 0.3213 0.1754 0.1654 – 0.1854 0.0700 0.1500", "Markov 0.2000 0.1900 – 0.2100",
        "BERT4Rec 0.2843 0.1537 Klenitskiy, Vasilev 2023", "1 to 5 40 0.2000 0.1000 – 0.3000 0.1000 –",
        "place 2 of 3,416", "0 1.5 MB 800.0 kB 536.9 MB 1 1.4 MB 700.0 kB 268.4 MB", "2.0 s 1.2 %",
        "412 sequences/s", f"{HOSTILE} 6,000 0.3200 – 0.1800 –", "model.embed_dim 32 64", "2001-09-09, 2002-09-12",
        "python 3.11.7",
    ):  # fmt: skip
        assert words in text
    assert "run.name x" not in text


@pytest.fixture
def coarse_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert4rec.report.charts.DPI", 20)


@pytest.mark.usefixtures("coarse_pictures")
def test_a_dataset_of_which_little_is_known_and_ratings(tmp_path: Path) -> None:
    ratings = {"pairs": 9, "RMSE": 0.874, "MAE": 0.67, "baseline_RMSE": 1.0, "means_RMSE": 0.9}
    folder = write_run(tmp_path / "one", dataset=SMALL_REPORT["dataset"], ratings=ratings, sharding=None)
    page = write_html(folder, DEFAULTS)
    text = " ".join(Reader(page).texts)
    for words in ("items 40 interactions 1,200", "ffffffffffff", "RMSE 0.8740 MAE 0.6700", "0 – – 536.9 MB"):
        assert words in text
    assert all(f"width:{width}%" in page.read_text() for width in ("20.0", "32.0", "10.0", "18.0"))  # of the slices


SECTIONS = ["examples", "test", "published", "learning", "slices", "data", "run"]
COUNTING = {
    "epochs": 0.0, "steps": 0, "seconds": 2.0, "best_epoch": 0.0, "stopped_by": "nothing to train",
    "sequences_per_second": 0.0, "peak_memory_bytes": [2**28], "resumed": [], "positions": 9,
}  # fmt: skip
UNTRAINED = {"kind": "popularity", "model": "popularity", "training": COUNTING, "sharding": None, "plan": None}
MEASURED = ("test", "validation", "popularity_baseline", "baselines", "intervals", "slices", "hits_by_rank")


@pytest.mark.parametrize(
    ("changes", "files", "missing"),
    [
        ({}, [], []),
        ({"slices": None}, ["examples.json", "environment.json", "plan.txt"], ["slices", "examples"]),
        (UNTRAINED, ["metrics.jsonl", "examples.json"], ["examples"]),
        (dict.fromkeys(MEASURED), ["metrics.jsonl"], ["published", "learning", "slices"]),
    ],
)
@pytest.mark.usefixtures("coarse_pictures")
def test_sections_are_what_was_measured(tmp_path: Path, changes: Any, files: list[str], missing: list[str]) -> None:
    folder = write_run(tmp_path / "one", **changes)
    for name in files:
        (folder / name).unlink()
    page = Reader(write_html(folder, DEFAULTS))
    shown = [name for name in SECTIONS if name not in missing]
    assert [link[1:] for link in page.links if link[1:] in SECTIONS] == shown
    assert [name for name in page.ids if name in SECTIONS] == shown
    assert ("Counting" in page.texts) == (changes == UNTRAINED)
    assert ("Warning." in page.texts) == ("metrics.jsonl" not in files)
    assert (folder / "learning_curve.png").exists() == ("metrics.jsonl" not in files)


def test_other_checkpoints_that_were_evaluated_are_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    (folder / "checkpoints" / "step-2").mkdir(parents=True)
    (folder / "checkpoints" / "best").symlink_to("step-2")
    for name, step in (("evaluation", "step-1"), ("evaluation-2", "step-2"), ("evaluation-3", "step-1")):
        (folder / name).mkdir()
        weights = {"checkpoint": f"x/checkpoints/{step}"}
        (folder / name / "report.json").write_text(json.dumps({"test": {}, "evaluation": {"weights": weights}}))
    (folder / "pictures").mkdir()
    (folder / "pictures" / "report.json").write_text("{")
    assert read_contents(folder).n_evaluated == 1


def test_only_the_report_of_a_run_is_needed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    for path in folder.iterdir():
        if path.name != "report.json":
            path.unlink()
    contents = read_contents(folder)
    assert (contents.train, contents.settings, contents.plan, contents.examples) == ([], {}, "", {})
