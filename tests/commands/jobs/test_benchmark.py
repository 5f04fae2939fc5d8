"""`benchmark`: what a person types and sees, and what is not made again."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bert4rec.__main__ import main
from bert4rec.commands.jobs import benchmark
from bert4rec.launch.child import StoppedError
from tests.conftest import SMALL
from tests.runs import report_of
from tests.terminal import on_terminal

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]

FEW = {
    "data.n_users": 40,
    "data.n_items": 60,
    "data.n_rows": 500,
    "training.n_epochs": 1,
    "evaluation.protocols": "['full']",
}
OPTIONS = [f"--{name}={value}" for name, value in (SMALL | FEW).items()]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that are started, here in this process; importing TorchRec takes seconds."""
    started: list[list[str]] = []

    def run_child(words: Sequence[str], **_: Any) -> int:
        started.append([*words])
        return main(words)

    monkeypatch.setattr(benchmark, "run_child", run_child)
    monkeypatch.chdir(tmp_path)
    return started


def rows_of(page: str) -> list[str]:
    return [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ") and "HR@" not in line]


@pytest.mark.long
def test_all_is_made_once(children: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["benchmark", "markov", "sasrec", "--seeds=1,2", "--output=out", *OPTIONS]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert [words[0] for words in children] == ["prepare", "prepare", *["train"] * 6]
    names = ["leave_one_out", "time"]
    expected = [f"{who}-{split}{seed}" for split in names for who, seed in WITH_SEEDS]
    assert sorted(path.name for path in Path("out").iterdir() if path.is_dir()) == sorted(expected)
    assert "\nrun 1 of 6: markov, leave_one_out\n" in out
    assert re.search(r"^run 6 of 6: sasrec, time, seed 2  about \d:\d\d left$", out, re.MULTILINE)
    page = Path("out/benchmark.md").read_text()
    assert rows_of(page) == [
        "markov",
        "sasrec",
        "best possible",
        "markov",
        "sasrec",
    ]  # what made the data knows one split
    assert out.endswith(
        f"\n{page}\nthese tables: out/benchmark.md; every figure: out/benchmark.json\n"
        "differences with intervals and tests, leave_one_out: out/compare-leave_one_out.html\n"
        "differences with intervals and tests, time: out/compare-time.html\n"
    )
    comparison = Path("out/compare-time.html").read_text()
    assert comparison.count("<svg") == 1
    assert "out/sasrec-time-seed1, out/sasrec-time-seed2" in comparison
    runs = json.loads(Path("out/benchmark.json").read_text())["runs"]
    assert [Path(run["run"]).name for run in runs] == expected
    assert all(run["test"] == report_of(Path(run["run"]))["test"] for run in runs)
    assert {report_of(Path(run["run"]))["dataset"]["split"] for run in runs[:3]} == {"leave_one_out"}

    children.clear()
    shutil.rmtree("out/sasrec-time-seed1")
    assert main(words) == 0
    assert [words[0] for words in children] == ["train"]
    assert "\nrun 4 of 6: markov, time: kept, out/markov-time\n" in capsys.readouterr().out
    assert main([*words, "--model.smoothing=3"]) == 0
    assert Path("out/markov-time-2").is_dir()


WITH_SEEDS = [("markov", ""), ("sasrec", "-seed1"), ("sasrec", "-seed2")]


def test_an_interrupted_run_goes_on(
    children: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["benchmark", "bert4rec", "--splits=leave_one_out", *OPTIONS, "--training.n_epochs=2"]
    assert main(words) == 0
    run = Path("runs/benchmark-synthetic/bert4rec-leave_one_out-seed1")
    whole = report_of(run)
    (run / "report.json").unlink()
    shutil.rmtree(sorted((run / "checkpoints").glob("step-*"))[-1])
    (run / "checkpoints" / "best").unlink()
    assert main(words) == 0
    assert children[-1] == ["train", f"--resume={run}"]
    assert report_of(run)["training"]["epochs"] == 2
    assert report_of(run)["training"]["steps"] == whole["training"]["steps"]

    def stopped(*_: Any, **__: Any) -> int:
        raise StoppedError(15)

    (run / "report.json").unlink()
    monkeypatch.setattr(benchmark, "run_child", stopped)
    capsys.readouterr()
    assert main([*words[:2], "markov", *words[2:]]) == 143
    options = shlex.join(["--splits=leave_one_out", *OPTIONS, "--training.n_epochs=2"])
    assert capsys.readouterr().err == (
        f"stopped by SIGTERM: 0 runs finished; continue with: bert4rec benchmark bert4rec markov {options}\n"
    )


def test_data_without_times_have_one_split(children: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    Path("log.txt").write_text(
        "".join(f"{user} {' '.join(str(user % 3 + n) for n in range(1, 7))}\n" for user in range(9))
    )
    data = ["--data.source=sequences", "--data.path=log.txt", "--preprocessing.n_eval_negatives=1"]
    assert main(["benchmark", "popularity", *data]) == 0
    assert "\ndata/log: has no times, and no split by time: leave_one_out alone\n" in capsys.readouterr().out
    assert main(["benchmark", "popularity", "--splits=time", *data]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "error: data/log-time: could not be prepared, see above"


def test_a_run_that_fails_does_not_end_the_others(
    children: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_child = benchmark.run_child

    def run_but_one(words: Sequence[str], **options: Any) -> int:
        is_bad = words[0] == "train" and "--model.kind=markov" in words
        return 1 if is_bad else run_child(words, **options)

    monkeypatch.setattr(benchmark, "run_child", run_but_one)
    assert main(["benchmark", "popularity", "markov", "--splits=leave_one_out", *OPTIONS]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(
        "error: 1 of 2 runs failed, see above: markov, leave_one_out; continue with: bert4rec benchmark "
    )
    assert rows_of(out) == ["popularity", "best possible"]


@pytest.mark.long
def test_ctrl_c_ends_in_one_line(small_folder: Path, tmp_path: Path) -> None:
    """In a real terminal, with real processes."""
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    command = [sys.executable, "-m", "bert4rec", "benchmark", "bert4rec", "--splits=leave_one_out", *options]
    command += [f"--data.dataset_dir={small_folder}", f"--output={tmp_path / 'out'}", "--training.n_epochs=5000"]
    written, status = on_terminal(command, folder=Path.cwd(), interrupt_after="epoch")
    assert status == 130
    last = written.replace("^C", "").rstrip().splitlines()[-1].split("\x1b[K")[-1]
    assert last.startswith(
        "stopped by SIGINT: 0 runs finished; continue with: python -m bert4rec benchmark bert4rec --spl"
    )
    assert written.count("continue with") == 1
