"""`bert4rec`: which command is meant."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import bert4rec
from bert4rec.__main__ import COMMANDS, main
from bert4rec.config.help import DATA_OPTIONS, SHORT_OPTIONS, all_settings
from tests.fixture_types import Capture, Patch

ROOT = Path(__file__).parents[1]


def help_of(*words: str, capsys: Capture) -> str:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*words])
    return capsys.readouterr().out


def test_help_names_every_command_and_the_version_is_that_of_the_package(capsys: Capture) -> None:
    for argv in ([], ["--help"], ["-h"]):
        assert all(f" {name} " in help_of(*argv, capsys=capsys) for name in COMMANDS)
    assert help_of("--version", capsys=capsys) == f"bert4rec {bert4rec.__version__}\n"


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
def test_what_nobody_knows_is_one_line(argv: str, named: str, capsys: Capture) -> None:
    assert main(argv.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("error: ")) == ("", 1, True)
    assert [part for part in named.split(" … ") if part not in err] == []


def test_the_name_is_that_by_which_it_was_started(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bert4rec/__main__.py"])
    assert main(["report", "--fast"]) == 2
    assert capsys.readouterr().err.endswith("python -m bert4rec report --help\n")
    with pytest.raises(SystemExit):
        main(["prepare", "--help"], prog="python preprocessing.py")
    assert capsys.readouterr().out.startswith("usage: python preprocessing.py [INPUT] ")


def test_help_has_the_usual_settings_and_help_all_every_one(capsys: Capture) -> None:
    for command, options in (("train", SHORT_OPTIONS), ("prepare", DATA_OPTIONS)):
        found = re.findall(r"^  --([a-z-]+)=", help_of(command, "--help", capsys=capsys), re.MULTILINE)
        assert found == [*options]
    for command in ("prepare", "train", "plan", "doctor", "extend", "evaluate"):
        text = help_of(command, "--help-all", capsys=capsys)
        assert [key for key in all_settings() if f"\n  --{key}=" not in text] == []


def test_ctrl_c_is_one_line(monkeypatch: Patch, capsys: Capture) -> None:
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
