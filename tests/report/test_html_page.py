"""The page of a run: well-formed, escaped, in one file; a section for everything that was measured."""

import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image

from bert4rec.config.tables import Config
from bert4rec.report.figures import read_contents
from bert4rec.report.pages import write_html
from tests.report.runs_by_hand import HOSTILE, REPORT, SMALL_REPORT, write_run

DEFAULTS = Config().model_dump(mode="json")
VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}


class Reader(HTMLParser):
    """The texts, tags and links of a page; fails if an element is not closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open = self.open[:-1] if tag not in VOID else self.open

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data.strip().replace("\N{NO-BREAK SPACE}", " "))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "one")
    assert write_html(folder, DEFAULTS) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Reader:
    return Reader(run / "report.html")


def test_it_is_one_small_file_that_needs_nothing_else(run: Path, page: Reader) -> None:
    assert (run / "report.html").stat().st_size < 400_000
    assert {"script", "img", "link", "iframe"}.isdisjoint(page.tags)
    other_links = {link for link in page.links if not link.startswith("#")}
    assert all(re.match(r"https://(arxiv\.org/abs/\d|github\.com/)", link) for link in other_links)
    assert "url(http" not in (run / "report.html").read_text()
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= {*page.ids}


def test_what_comes_from_data_is_text(run: Path, page: Reader) -> None:
    """Names of files, users, items, slices, and settings; the plan and the command."""
    assert "<script" not in (run / "report.html").read_text().lower()
    shown = " ".join(page.texts)
    assert shown.count(HOSTILE) >= 10
    assert f"Bert4Rec on {HOSTILE}" in page.texts
    assert f"User {HOSTILE}" in page.texts


def test_what_is_shown(page: Reader) -> None:
    text = " ".join(filter(None, page.texts))
    for words in (
        "out of 3,416 items (HR@10 0.311, measured on 6,040 test users; 0.301 to 0.321",
        "by 33.3 % in the last quarter",
        "test NDCG@10 0.1754",
        "Bert4Rec 0.3113 0.3013 – 0.3213 0.1754 0.1654 – 0.1854 0.0700 0.1500",
        "Markov 0.2000 0.1900 – 0.2100",
        "MovieLens 1M, as SASRec, BERT4Rec and gSASRec have it",
        "BERT4Rec 0.2843 0.1537 Klenitskiy, Vasilev 2023, Turning Dross Into Gold Loss",
        "Bert4Rec, this run 0.3113 0.1754",
        "users HR@10 NDCG@10 1 to 5 40 0.2000 0.1000 – 0.3000 0.1000 –",
        "place 2 of 3,416 The last 2 of 9 items",
        "place 400 of 3,416 1 item item 7 then item 9",
        "0 1.5 MB 800.0 kB 536.9 MB 1 1.4 MB 700.0 kB 268.4 MB",
        "start 2.0 s 1.2 % training steps 1:20",
        "took 1:40 412 sequences/s epochs 40 1,200 steps, ended by n_epochs",
        f"{HOSTILE} 6,000 0.3200 – 0.1800 –",
        "model.embed_dim 32 64",
        ': parallelism.device = "cpu"',
        "from, to 2001-09-09, 2002-09-12",
        "python 3.11.7",
    ):
        assert words in text
    assert "run.name x" not in text
    assert "By whether the user has seen the target before" not in text  # one slice says nothing


@pytest.fixture
def coarse_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert4rec.report.charts.DPI", 20)


@pytest.mark.usefixtures("coarse_pictures")
def test_a_dataset_of_which_little_is_known_and_ratings(tmp_path: Path) -> None:
    ratings = {"pairs": 9, "RMSE": 0.874, "MAE": 0.67, "baseline_RMSE": 1.0, "means_RMSE": 0.9}
    folder = write_run(tmp_path / "one", dataset=SMALL_REPORT["dataset"], ratings=ratings, sharding=None)
    page = write_html(folder, DEFAULTS)
    text = " ".join(filter(None, Reader(page).texts))
    facts = "source table users 3 items 40 interactions 1,200 split leave one out validation users 3"
    for words in (facts, "test users 3 fingerprint ffffffffffff Run", "RMSE 0.8740 MAE 0.6700", "0 – – 536.9 MB"):
        assert words in text
    assert all(f"width:{width}%" in page.read_text() for width in ("20.0", "32.0", "10.0", "18.0"))  # of the slices


def test_pictures_are_files_too(run: Path, page: Reader) -> None:
    names = ["comparison", "history_lengths", "hits_by_rank", "loss", "score_by_rank", "sharding_plan", "validation"]
    assert sorted(path.stem for path in (run / "pictures").iterdir()) == names
    assert page.tags.count("svg") == len(names)
    assert image.imread(run / "learning_curve.png").shape[1] == 1200  # 5 inches a plot, 120 dots an inch


@pytest.mark.usefixtures("coarse_pictures")
def test_small_groups_have_a_dash_and_long_options_and_dates_may_break(tmp_path: Path) -> None:
    """A phone is narrower than an option with its table."""
    option = "--preprocessing.max_user_interactions=1000"
    finding = {"name": "heavy users", "text": f"3 users; {option} leaves them out", "is_damage": True}
    few = {"users": 3, "HR@10": 1.0, "NDCG@10": 0.75}
    best = {"kind": "markov", "HR@10": 0.5, "NDCG@10": 0.25}
    times = [{"name": f"{name}: 2024-01-0{day} to 2024-02-0{day}", **few, "strongest_baseline": best}
             for day, name in enumerate(("first third", "last third"), 1)]  # fmt: skip
    changes = {"dataset": REPORT["dataset"] | {"findings": [finding]}, "slices": {"test": {"time": times}}}
    path = write_html(write_run(tmp_path / "one", **changes), DEFAULTS)
    text = " ".join(filter(None, Reader(path).texts))
    assert "first third 2024-01-01 to 2024-02-01 3 1.0000 – 0.7500 – 0.2500 – Markov" in text
    verdict = re.search(r'<p class="verdict use">(.*?)</p>', path.read_text())
    assert verdict is not None
    assert option in re.sub(r"<[^>]*>", "", verdict[1])
    whole = re.split(r"<wbr>|\s(?![^<]*>)", verdict[1])
    assert max(len(re.sub(r"<[^>]*>", "", part)) for part in whole) <= len("max_user_interactions")


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
    (folder / "report.json").unlink()
    with pytest.raises(FileNotFoundError):
        read_contents(folder)


def test_the_templates_go_into_the_wheel() -> None:
    root = Path(__file__).parents[2]
    globs = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["bert4rec"]
    included = {path for glob in globs for path in (root / "bert4rec").glob(glob)}
    files = [path for path in (root / "bert4rec" / "report").rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert files
    assert included.issuperset(files)
