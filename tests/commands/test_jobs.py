"""`train` and `evaluate`: which process says what, and the exit status; whole runs are in end_to_end/."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from bert4rec.__main__ import main
from bert4rec.commands import launched
from bert4rec.report.pages import metrics_table
from bert4rec.runtime.errors import Interrupted, RunInterruptedError, SettingsError, UserError
from tests.fixture_types import Capture, Patch
from tests.runs import report_of

ROOM, LOST = SettingsError("no room"), RunInterruptedError("lost")


@pytest.mark.parametrize(
    ("error", "rank", "local_rank", "is_on_all", "waits", "said"),
    [
        (ROOM, 0, 0, True, False, "error: no room\n"), (ROOM, 1, 1, True, True, ""),
        (ROOM, 2, 0, True, False, "error: no room\n"),  # the first of the second host
        (ROOM, 1, 1, False, True, "error: no room (process 1)\n"),
        (LOST, 3, 1, False, False, "error: lost (process 3)\n"),  # the launcher soon ends all: no process waits
    ],
)  # fmt: skip
def test_one_process_of_each_host_says_what_all_have_met(
    monkeypatch: Patch, capsys: Capture, error: UserError, rank: int, local_rank: int, is_on_all: bool, waits: bool,
    said: str,
) -> None:  # fmt: skip
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setattr(error, "is_on_all", is_on_all)
    assert launched.show(error, is_awaited=error is ROOM) == error.status == (2 if error is ROOM else 1)
    assert (waited, capsys.readouterr().err) == ([5.0] * waits, said)


def test_a_process_that_was_lost_is_told_from_other_faults(monkeypatch: Patch, capsys: Capture) -> None:
    def fail(words: str) -> None:
        raise RuntimeError(words)

    for words, said in (
        ("gloo: Connection reset by peer", launched.LOST_ANOTHER),
        ("gloo: Timed out waiting 6000ms for recv operation to complete", launched.NO_ANSWER),
        ("Application timeout caused pair closure", launched.NO_ANSWER),
    ):
        assert launched.run(lambda words=words: words, fail, resumes=False) == 1
        assert capsys.readouterr().err.startswith(f"error: {said}")
    with pytest.raises(RuntimeError, match="shapes differ"):
        launched.run(lambda: "shapes differ", fail, resumes=False)


def test_what_is_wrong_before_the_start_is_one_line(capsys: Capture) -> None:
    def refuse() -> None:
        raise SettingsError("no such setting")

    def stop() -> None:
        raise KeyboardInterrupt

    assert launched.run(refuse, print, resumes=True) == 2
    assert launched.run(stop, print, resumes=True) == 130
    assert launched.run(lambda: None, print, resumes=True) == 0
    out, err = capsys.readouterr()
    error, stopped = err.splitlines()
    assert (out, error) == ("", "error: no such setting")
    assert stopped.startswith("stopped ")


def test_a_finished_run_that_is_resumed_is_left_as_it_is(made: Path, capsys: Capture) -> None:
    assert main(["train", f"--resume={made}"]) == 0
    assert f"train --resume={made} --training.n_epochs=6" in capsys.readouterr().out


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the libraries about themselves
def test_an_evaluation_prints_the_tables_of_the_report(whole: Path, capsys: Capture) -> None:
    assert main(["evaluate", str(whole), "--evaluation.protocols=['uniform']"]) == 0
    out, err = capsys.readouterr()
    found = json.loads((whole / "evaluation" / "report.json").read_text())
    assert all(metrics_table(found, name) in out for name in ("test", "validation"))
    assert out.endswith(f"{whole / 'evaluation'}\n")
    assert metrics_table(found).splitlines()[2:] == metrics_table(report_of(whole)).splitlines()[-9:]
    *_, weights, compared = err.splitlines()
    assert str((whole / "checkpoints" / "best").resolve()) in weights
    assert str(whole / "report.json") in compared
    assert "64" in compared


def test_a_signal_is_one_line(made: Path, monkeypatch: Patch, capsys: Capture) -> None:
    interrupted = Mock(side_effect=Interrupted(15, "nothing was written"))
    monkeypatch.setattr("bert4rec.commands.evaluate._evaluate", interrupted)
    monkeypatch.setattr(os, "_exit", Mock(side_effect=SystemExit(143)))
    with pytest.raises(SystemExit):
        main(["evaluate", str(made)])
    os._exit.assert_called_once_with(143)  # type: ignore[attr-defined]
    assert capsys.readouterr().err == "stopped by SIGTERM: nothing was written\n"
