"""`bert4rec`: which command is meant."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import bert4rec
from bert4rec.__main__ import COMMANDS, main
from bert4rec.config.help import DATA_OPTIONS, SHORT_OPTIONS, all_settings

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_names_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f" {name} {summary} " in text for name, summary in COMMANDS.items())


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"bert4rec {bert4rec.__version__}\n")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ("raport runs/x", "raport: … report?"), ("preprocess", "preprocess: … prepare?"), ("xyz", "xyz: … --help"),
        ("--verson", "--verson: … --version?"), ("report a b", '"b" … bert4rec report --help'),
        ("report --fast", "--fast: … report --help"), ("recommend runs/x --items=1 --topp=3", "--topp: … --top?"),
        ("recommend x --users=3", "--users: … --user?"), ("recommend x --items=1 --k=5", "--k: … --top?"),
        ("similar x --items a", "--items: "), ("similar x --items=a", "--items: "), ("train dmp", "dmp: "),
        ("prepare --downlod", "--downlod: … --download?"), ("prepare --usr=id", "--usr: … --user?"),
        ("prepare --modes=ddp", "--modes: … --mode?"), ("train --download", "--download: … --help-all"),
        ("train data/x dmp", '"dmp": '),
    ],
)  # fmt: skip
def test_what_nobody_knows_is_one_line(argv: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names what was typed and what may have been meant."""
    assert main(argv.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("error: ")) == ("", 1, True)
    assert [part for part in named.split(" … ") if part not in err] == []


def test_the_name_is_that_by_which_it_was_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bert4rec/__main__.py"])
    assert main(["report", "--fast"]) == 2
    assert capsys.readouterr().err.endswith("python -m bert4rec report --help\n")
    with pytest.raises(SystemExit):
        main(["prepare", "--help"], prog="python preprocessing.py")
    assert capsys.readouterr().out.startswith("usage: python preprocessing.py [INPUT] [--download] [--config=FILE] ")


@pytest.mark.parametrize(
    ("command", "options"), [("train", SHORT_OPTIONS), ("prepare", DATA_OPTIONS)], ids=["train", "prepare"]
)
def test_help_has_the_usual_settings_and_help_all_every_one(
    command: str, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([command, "--help"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert re.findall(r"^  --([a-z-]+)=", "\n".join(lines), re.MULTILINE) == [*options]
    assert last.endswith(f"{command} --help-all")


@pytest.mark.parametrize("command", ["prepare", "train", "plan", "doctor", "extend", "evaluate"])
def test_help_all_lists_every_setting(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([command, "--help-all"])
    text = capsys.readouterr().out
    assert text.startswith("usage: ")
    assert [key for key in all_settings() if f"\n  --{key}=" not in text] == []
    assert "\n  --training.learning_rate=0.001\n" in text


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("bert4rec.commands.report.run", interrupted)
    assert main(["report"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_help_does_not_wait_for_slow_imports() -> None:
    program = """
import sys
from contextlib import suppress
from bert4rec.__main__ import COMMANDS, main
for words in ([], *([command] for command in COMMANDS)):
    with suppress(SystemExit):
        main([*words, "--help"])
    slow = {"torch", "pyarrow", "polars", "datasets"} | ({"pydantic", "tqdm"} if not words else set())
    assert not slow & sys.modules.keys(), (words, slow & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
