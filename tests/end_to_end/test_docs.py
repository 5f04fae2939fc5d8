"""README, CONTRIBUTING and docs: all commands and all Python that they show are executed, every link leads somewhere.

In one folder for each page, with small data and small settings, and in this process: a launcher's line is run as the
command that it starts. `make test-long` types it as it stands.
"""

import csv
import json
import random
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import tomli

from bert4rec.__main__ import COMMANDS, main
from bert4rec.config.help import all_settings
from examples import shop_log
from scripts import settings
from tests.fixture_types import Capture, Patch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(<!-- not run: [^\n]*-->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = {"preprocessing.py": "prepare", "train.py": "train"}
NO_PROGRAMS = {"source", "cd", "git", "pip", "curl"}  # of the shell, and what brings the project here

SMALL = """\
[data]
n_users = 60
n_items = 150
n_rows = 916
[preprocessing]
validation_users = 20
n_eval_negatives = 5
[model]
max_len = 12
embed_dim = 16
ffn_dim = 32
n_layers = 1
[training]
n_epochs = 1
"""

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries about themselves
]


def blocks(page: Path, *languages: str, are_run: bool = True) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for not_run, language, text in found if language in languages and bool(not_run) != are_run]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each line, without those of the shell."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] not in NO_PROGRAMS:
            yield words


def own_words(words: list[str]) -> list[str]:
    """A line as words for `bert4rec`; a launcher starts the same with what it is told."""
    if words[0] == "bert4rec":
        return words[1:]
    if words[0] == "torchx":
        after = words[words.index("--") + 1 :] if "--" in words else []
        return ["train", *after]
    script = next(number for number, word in enumerate(words) if word in SCRIPTS or word == "bert4rec")
    return [SCRIPTS[words[script]], *words[script + 1 :]] if words[script] in SCRIPTS else words[script + 1 :]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Patch) -> Path:
    """An empty folder with the files that the pages speak of."""
    draw = random.Random(1)
    rows = [
        (f"c-{user}", f"SKU-{item}", f"2026-03-{day + 1:02}T09:00:00", f"Thing {item}")
        for user in range(30)
        for day, item in enumerate(draw.sample([*range(1, 40), 204, 31], 12))
    ]
    rows += [
        ("c-17", "SKU-204", "2026-03-27T09:00:00", "Thing 204"),
        ("c-4", "SKU-31", "2026-03-27T09:00:00", "Thing 31"),
    ]
    newer = [(f"c-{user}", "SKU-900", "2026-03-28T09:00:00", "Thing 900") for user in range(10)]
    for name, part in (("log.csv", rows), ("newer.csv", rows + newer)):
        with (tmp_path / name).open("w", newline="") as file:
            about = [(*row, f"Brand {int(row[1][4:]) % 5}", int(row[1][4:]) / 4, line) for line, row in enumerate(part)]
            csv.writer(file).writerows([("customer", "sku", "at", "title", "brand", "price", "line"), *about])
    (tmp_path / "logs").mkdir()
    subprocess.run("gzip -c log.csv > logs/a.csv.gz", shell=True, cwd=tmp_path, check=True)
    (tmp_path / "histories.jsonl").write_text(json.dumps({"user": "x", "items": [12, 7]}) + "\n")
    (tmp_path / "deny.txt").write_text("3\n")
    (tmp_path / "config.toml").write_text(SMALL)
    for name in (*SCRIPTS, "configs", ".torchxconfig", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare_what_a_page_takes_for_granted(page: Path) -> None:
    if page.name in ("how-to.md", "checkpoints.md"):
        columns = ["user_column=customer", "item_column=sku", "time_column=at", "title_column=title"]
        options = ["--data.path=log.csv", *(f"--data.{column}" for column in columns)]
        for words in (["prepare"], ["train"], ["prepare", *options], ["train", "--data.source=table", *options]):
            assert main(words) == 0


EXECUTED = [page for page in PAGES if blocks(page, "sh", "python")]
FIRST_READ = ("README.md", "tutorial.md")  # whose commands every run of the tests executes


@pytest.mark.parametrize(
    ("page", "is_typed"),
    [pytest.param(page, False, id=page.stem) for page in EXECUTED if page.name in FIRST_READ]
    + [pytest.param(page, True, id=f"{page.stem}, typed", marks=pytest.mark.long) for page in EXECUTED],
)
def test_what_a_page_shows_is_executed(page: Path, is_typed: bool, place: Path, capsys: Capture) -> None:
    """Only launchers' lines of later pages are typed in a shell: a start takes seconds."""
    prepare_what_a_page_takes_for_granted(page)
    for not_run, language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python" and not not_run:
            exec(compile(text, str(page), "exec"), {})
        for words in commands(text) if language == "sh" and not not_run else ():
            if words[0] == "make":
                subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
            elif is_typed and (words[0] != "bert4rec" or page.name in FIRST_READ):
                ran = subprocess.run(words, capture_output=True, text=True, check=False)
                assert ran.returncode == 0, (shlex.join(words), ran.stderr)
            else:
                assert main(own_words(words)) == 0, (shlex.join(words), capsys.readouterr().err)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_takes_too_long_has_the_names_that_there_are(page: Path) -> None:
    for text in blocks(page, "sh", are_run=False):
        for words in commands(re.sub(r"\b(for|do|done)\b[^\n]*", "", text)):
            if words[0] == "make":
                subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
            elif benchmark := next((word for word in words if word.startswith("benchmarks.")), ""):
                assert find_spec(benchmark)
            elif example := next((word for word in words if word.startswith("examples/")), ""):
                assert (ROOT / example).exists()
            else:
                name, *options = own_words(words)
                assert name in COMMANDS
                for option in options:
                    key = option.removeprefix("--").partition("=")[0]
                    assert not option.startswith("--") or "." not in key or key in all_settings(), option


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        path, anchor = target
        if path.startswith("http"):
            continue
        linked = (page.parent / path) if path else page
        assert linked.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_log_of_the_tutorial_has_the_rows_that_it_shows(tmp_path: Path) -> None:
    shop_log.write(tmp_path / "log.csv")
    lines = (tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()
    shown = next(block for block in blocks(ROOT / "docs/tutorial.md", "text") if block.startswith(lines[0]))
    assert shown.splitlines() == lines[: shown.count("\n")]


def test_the_page_of_settings_is_that_of_the_tables() -> None:
    assert settings.PAGE.read_text(encoding="utf-8") == settings.page()
    assert settings.FILE.read_text(encoding="utf-8") == settings.file()
    assert {*tomli.loads(settings.REASONS.read_text(encoding="utf-8"))} <= {*all_settings()}


def test_every_command_is_shown_somewhere() -> None:
    """What is not run here too: the doctor's answer depends on the machine."""
    shown = [text for page in PAGES for are_run in (True, False) for text in blocks(page, "sh", are_run=are_run)]
    lines = [words for text in shown for words in commands(text) if words[0] == "bert4rec"]
    assert {own_words(words)[0] for words in lines} >= {*COMMANDS}
