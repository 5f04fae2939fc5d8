"""The page of a run: whole, escaped, in one file; with less where less is known."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib import image

from bert4rec.config.tables import Config
from bert4rec.report.html.page import write_html
from tests.report.html.run_by_hand import HOSTILE, write_run

DEFAULTS = Config().model_dump(mode="json")
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """Text, tags and addresses of a page, and whether all that is opened is closed."""

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
    of_others = {link for link in page.links if not link.startswith("#")}
    assert all(re.match(r"https://(arxiv\.org/abs/\d|github\.com/)", link) for link in of_others)
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
        "For 31.1 % of 6,040 test users, Bert4Rec has the item that came next among its first ten, out of 3,416 items "
        "(between 30.1 % and 32.1 %, with 95 % confidence).",
        "Warning. It was still improving when it ended: validation NDCG@10 got better by 33.3 % in the last quarter",
        "Bert4Rec is better than transition graph, the strongest baseline without training: test NDCG@10 0.1754",
        "Bert4Rec 0.0700 0.3113 0.3013 – 0.3213 0.1754 0.1654 – 0.1854 0.1500",
        "Markov 0.0500 0.2000 0.1900 – 0.2100",
        "MovieLens 1M, as SASRec, BERT4Rec and gSASRec have it",
        "BERT4Rec 0.2843 0.1537 Klenitskiy, Vasilev 2023, Turning Dross Into Gold Loss",
        "Bert4Rec, this run 0.3113 0.1754",
        "By the length of the history users HR@10 NDCG@10 1 to 5 40 0.2000 0.1000 – 0.3000 0.1000",
        "place 2 of 3,416 The last 2 of 9 items",
        "place 400 of 3,416 1 item item 7 then item 9",
        "training steps 1:20 50.0 %",
        "0 1.5 MB 800 kB 537 MB",
        "model.embed_dim 32 64",
        'Chosen by the program, in the place of "auto" : parallelism.device = "cpu"',
        "from, to 2001-09-09, 2002-09-12",
        "python 3.11.7",
    ):
        assert words in text
    assert "run.name x" not in text


def test_pictures_are_files_too(run: Path, page: Reader) -> None:
    names = ["comparison", "history_lengths", "hits_by_rank", "loss", "score_by_rank", "sharding_plan", "validation"]
    assert sorted(path.stem for path in (run / "pictures").iterdir()) == names
    assert page.tags.count("svg") == len(names)
    assert image.imread(run / "learning_curve.png").shape[1] == 1200  # 5 inches a plot, 120 dots an inch


def test_a_report_of_an_older_version_has_less(tmp_path: Path) -> None:
    later = ("strongest_baseline", "baselines", "intervals", "slices", "hits_by_rank", "plan", "warnings", "model")
    folder = write_run(tmp_path / "old", **dict.fromkeys(later))
    for name in ("examples.json", "environment.json", "plan.txt"):
        (folder / name).unlink()
    text = " ".join(filter(None, Reader(write_html(folder, DEFAULTS)).texts))
    assert "Bert4Rec is better than popularity" not in text
    assert "For whom it works" not in text
    assert "User " not in text


def test_a_model_without_training_and_a_run_without_a_test(tmp_path: Path) -> None:
    counting = {"epochs": 0.0, "steps": 0, "seconds": 2.0, "peak_memory_bytes": [2**28]}
    untrained = {"kind": "popularity", "model": "popularity", "training": counting, "sharding": None, "plan": None}
    folder = write_run(tmp_path / "untrained", **untrained)
    for name in ("metrics.jsonl", "examples.json"):
        (folder / name).unlink()
    text = " ".join(filter(None, Reader(write_html(folder, DEFAULTS)).texts))
    assert "Run untrained , 2 processes For 31.1 % of 6,040 test users, popularity has the item that came next" in text
    assert "Warning" not in text
    assert "counting 2.0 s" in text
    assert "epochs" not in text
    assert "Validation All figures of the validation" in text
    assert not (folder / "learning_curve.png").exists()
    measured = ("test", "validation", "popularity_baseline", "baselines", "intervals", "slices", "hits_by_rank")
    folder = write_run(tmp_path / "all", **dict.fromkeys(measured))
    (folder / "examples.json").unlink()
    text = " ".join(filter(None, Reader(write_html(folder, DEFAULTS)).texts))
    assert "This dataset holds nothing out: there is no test." in text


def test_checkpoints_that_were_evaluated_later_are_warned_of(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    (folder / "checkpoints" / "step-2").mkdir(parents=True)
    (folder / "checkpoints" / "best").symlink_to("step-2")
    for name, step in (("evaluation", "step-1"), ("evaluation-2", "step-2"), ("evaluation-3", "step-1")):
        (folder / name).mkdir()
        content = f'{{"test": {{}}, "evaluation": {{"weights": {{"checkpoint": "x/checkpoints/{step}"}}}}}}'
        (folder / name / "report.json").write_text(content)
    (folder / "pictures").mkdir()
    (folder / "pictures" / "report.json").write_text("{")
    text = " ".join(Reader(write_html(folder, DEFAULTS)).texts)
    assert "The test was run for 1 other checkpoint of this run besides" in text
