"""`python -m bert4rec`: which command is meant."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec.__main__ import COMMANDS, main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_names_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f" {name} {command.SUMMARY}" in text for name, command in COMMANDS.items())


def test_a_command_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raport", "runs/x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "'raport'" in line
    assert line.endswith("; python -m bert4rec --help")


@pytest.mark.parametrize("argv", [["report", "a", "b"], ["report", "--fast"], ["--fast"]])
def test_a_word_too_many_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS["report"], "run", interrupted)
    assert main(["report"]) == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_does_not_wait_for_slow_imports(command: str) -> None:
    program = (
        "import sys\nfrom bert4rec.__main__ import main\n"
        f"try:\n    main(['{command}', '--help'])\n"
        "finally:\n    assert not {'torch', 'pyarrow', 'datasets'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
