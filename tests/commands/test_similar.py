"""`similar`: what a person types and reads."""

from pathlib import Path

import pytest

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.commands.recommend import as_table


def test_a_table_for_each_item(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = load(made).similar([1, 2], 3)
    capsys.readouterr()
    assert main(["similar", str(made), "1", "2", "--top=3"]) == 0
    assert capsys.readouterr().out == f"1\n{as_table(first)}\n2\n{as_table(second)}\n"


@pytest.mark.parametrize(
    ("options", "problem"), [(["999"], "999: the model knows no such item"), (["1", "--top=0"], "--top=0: must be")]
)
def test_one_line_for_what_cannot_be(
    made: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["similar", str(made), *options]) == 2
    assert problem in capsys.readouterr().err
