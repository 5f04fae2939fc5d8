"""`python -m bert4rec`: which command is meant."""

import pytest

from bert4rec.__main__ import main


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_names_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["report", "plan", "check"]


def test_a_command_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raport", "runs/x"]) == 2
    assert capsys.readouterr().err == 'error: "raport runs/x": no such command; python -m bert4rec --help lists them\n'
