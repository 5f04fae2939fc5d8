"""`bert4rec`: which command is meant."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import bert4rec
from bert4rec.__main__ import COMMANDS, main
from bert4rec.config.help import DATA_OPTIONS, SHORT_OPTIONS, all_keys

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
    ("argv", "message"),
    [
        ("raport runs/x", "raport: no such command; did you mean report? bert4rec --help"),
        ("preprocess", "preprocess: no such command; did you mean prepare? bert4rec --help"),
        ("xyz", "xyz: no such command; bert4rec --help"),
        ("--verson", "--verson: no such option; did you mean --version? bert4rec --help"),
        ("report a b", 'unexpected argument "b"; bert4rec report --help'),
        ("report --fast", "--fast: no such option; bert4rec report --help"),
        (
            "recommend runs/x --items=1 --topp=3",
            "--topp: no such option; did you mean --top? bert4rec recommend --help",
        ),
        ("recommend x --users=3", "--users: no such option; did you mean --user? bert4rec recommend --help"),
        ("recommend x --items=1 --k=5", "--k: no such option; did you mean --top? bert4rec recommend --help"),
        ("similar x --items a", "--items: write the ITEM without a name: bert4rec similar RUN ITEM"),
        ("similar x --items=a", "--items: write the ITEM without a name: bert4rec similar RUN ITEM"),
        ("prepare --downlod", "--downlod: no such option; did you mean --download? bert4rec prepare --help"),
        ("prepare --usr=id", "--usr: no such option; did you mean --user? --help-all lists all"),
        ("prepare --modes=ddp", "--modes: no such option; did you mean --mode? --help-all lists all"),
        ("train --download", "--download: no such option; --help-all lists all"),
        ("train dmp", "dmp: expected a dataset; there is no such folder"),
        ("train data/x dmp", '"dmp": options have the form --table.key=value; --help-all lists all'),
    ],
)
def test_what_nobody_knows_is_one_line(argv: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


def test_the_name_is_that_by_which_it_was_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bert4rec/__main__.py"])
    assert main(["report", "--fast"]) == 2
    assert capsys.readouterr().err == "error: --fast: no such option; python -m bert4rec report --help\n"
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
    assert [key for key in all_keys() if f"\n  --{key}=" not in text] == []
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
