"""The page of a run and its pictures: a section and a picture for everything that was measured."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib import image
from PIL import Image

from bert4rec.config.tables import Config
from bert4rec.report.charts import MAX_POINTS, charts, learning_curve
from bert4rec.report.figures import read_contents
from bert4rec.report.pages import write_html
from tests.conftest import spare
from tests.fixture_types import Patch
from tests.report.runs_by_hand import HOSTILE, PRIOR, SMALL_REPORT, write_records, write_run

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
    pictures = re.findall(r"<svg.*?</svg>", source, re.DOTALL)
    assert len(pictures) == len(names)
    for picture in pictures:  # its colours are variables and its font is the page's, to follow light and dark mode
        assert not re.search(r'#(?!ffffff)[0-9a-f]{6}\b|font-family|<style|<metadata|d="[^"]*\.\d{3}', picture)
        assert re.search(r'<svg [^>]*aria-label="[^"]+', picture)
        assert "var(--" in picture
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


@pytest.mark.usefixtures("coarse_pictures")
def test_what_the_prior_gives_is_shown_if_it_was_measured(tmp_path: Path, monkeypatch: Patch) -> None:
    spare(monkeypatch)
    texts = {
        name: " ".join(Reader(write_html(write_run(tmp_path / name, prior=prior), DEFAULTS)).texts)
        for name, prior in (("none", None), ("left_out", {"weights": {}}), ("measured", PRIOR))
    }
    table = "Bert4Rec alone 0.2100 0.1234 transitions alone 0.2200 0.1123 ease alone 0.2300 0.1012 all together 0.3113"
    assert [table in text for text in texts.values()] == [False, False, True]
    assert ["0.0043 to +0.0120" in text for text in texts.values()] == [False, False, True]
    assert texts["left_out"] != texts["none"]


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


def descriptions(folder: Path) -> dict[str, str]:
    return {chart.name: chart.description for chart in charts(read_contents(folder))}


def drawn(folder: Path, name: str) -> Any:
    (chart,) = [chart for chart in charts(read_contents(folder)) if chart.name == name]
    return chart.figure.axes[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "one")


def test_each_says_which_figures_it_shows(run: Path) -> None:
    assert {name: re.findall(r"\d[\d,.]*\d|\d", text) for name, text in descriptions(run).items()} == {
        "comparison": ["10", "4", "0.1754", "0.1300", "0.1100", "0.0178"],  # of NDCG@10 and Bert4Rec
        "loss": ["7.900", "4.000", "40"],
        "validation": ["20", "40", "10", "0.1700"],
        "hits_by_rank": ["7.0", "1", "31.0", "10", "70.0", "100"],
        "history_lengths": ["18", "2,277", "96", "165.5"],
        "sharding_plan": ["2", "1", "2", "2"],
    }


def test_the_best_validation_is_marked_and_popularity_is_a_line(run: Path) -> None:
    axes = drawn(run, "validation")
    stars = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert stars == [[[40.0, 0.3]], [[40.0, 0.17]]]
    level = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--" and len(line.get_ydata())]
    assert level == [0.0363, 0.0178]
    assert len(axes.get_legend().get_texts()) == 4


def test_errors_of_ratings_are_drawn_for_a_model_of_ratings(run: Path) -> None:
    errors = {n: {"RMSE": 1 / n, "MAE": 0.5 / n} for n in (1, 2)}
    validated = [{"kind": "validation", "step": n, "epoch": n, "ratings": errors[n]} for n in errors]
    trained = [{"kind": "train", "step": n, "epoch": n, "loss": 1.0} for n in range(1, 5001)]
    write_records(run, [*trained, *validated])
    epochs = drawn(run, "loss").lines[0].get_xdata()  # of many points, some and the last one
    assert (len(epochs) <= MAX_POINTS + 1, epochs[0], epochs[-1]) == (True, 1, 5000)
    assert "RMSE 0.5000" in descriptions(run)["validation"]
    labels = [text.get_text() for text in drawn(run, "validation").get_legend().get_texts()]
    assert labels[:2] == ["MAE", "RMSE"]


def test_the_learning_curves_are_a_picture_in_a_notebook_with_titles_above_the_legend() -> None:
    metrics = {"HR@10": 0.2, "NDCG@10": 0.1}
    validations = [{"epoch": epoch, "step": epoch, "full": metrics} for epoch in (1.0, 2.0)]
    train = [{"epoch": 1.0, "step": 1, "loss": 2.0}]
    figure = learning_curve(train, validations, {"popularity_baseline": {"full": metrics}})
    data, _ = DisplayFormatter().format(figure)
    assert Image.open(io.BytesIO(data["image/png"])).size == tuple(figure.get_size_inches() * figure.dpi)
    axes = figure.axes[1]
    assert not axes.title.get_window_extent().overlaps(axes.get_legend().get_window_extent())
