"""`evaluate`: what a person types and reads."""

import json
import os
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from bert4rec.report.markdown import metrics_table
from bert4rec.report.summary import rules
from bert4rec.runtime.errors import Interrupted
from tests.runs import report_of

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]


def test_the_tables_of_the_report_and_where_the_ranks_are(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(whole), "--evaluation.protocols=['uniform']"]) == 0
    out, err = capsys.readouterr()
    found = json.loads((whole / "evaluation" / "report.json").read_text())
    tables = [f"{name.capitalize()} of {whole}\n\n{metrics_table(found, name)}" for name in ("test", "validation")]
    assert out == "\n\n".join([*tables, rules(found), f"Report and the ranks of all users: {whole / 'evaluation'}\n"])
    assert metrics_table(found).splitlines()[2:] == metrics_table(report_of(whole)).splitlines()[-8:]
    _, weights, compared = err.splitlines()
    assert weights.startswith(f"weights: {(whole / 'checkpoints' / 'best').resolve()}; dataset: ")
    assert compared == f"the same as in {whole / 'report.json'}: all 56 figures"


@pytest.mark.parametrize(
    ("model", "option", "problem"),
    [
        ("nowhere", "", "nowhere: neither a run folder with a checkpoint, nor a checkpoint, nor a model package"),
        ("", "--evaluation.kss=3", "--evaluation.kss: no such option; did you mean --evaluation.ks?"),
        ("", "--model.embed_dim=32", "--model.embed_dim=32: cannot change in an evaluation; what can: "),
        ("", "--parallelism.device=cuda", 'parallelism.device = "cuda": 1 process on this host but 0 GPUs; '),
    ],
)
def test_one_line_for_what_cannot_be(
    made: Path, capsys: pytest.CaptureFixture[str], model: str, option: str, problem: str
) -> None:
    assert main(["evaluate", model or str(made), *filter(None, [option])]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {problem}")


def test_a_signal_is_one_line(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupted(15, "nothing was written")

    def exit_at_once(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("bert4rec.commands.jobs.evaluate._evaluate", interrupted)
    monkeypatch.setattr(os, "_exit", exit_at_once)
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(made)])
    assert ended.value.code == 143
    assert capsys.readouterr().err == "stopped by SIGTERM: nothing was written\n"
