"""`train`: what it does not start; whole runs are in end_to_end/."""

from pathlib import Path

import pytest

from bert4rec.__main__ import main


def test_a_finished_run_that_is_resumed_is_left_as_it_is(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"--resume={made}"]) == 0
    assert f"{made} is finished (3 epochs, stopped by n_epochs); to train it longer: " in capsys.readouterr().out


def test_a_wrong_setting_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--training.n_epoch=3"]) == 2
    wrong = "error: --training.n_epoch: no such option; did you mean --training.n_epochs? --help lists all\n"
    assert capsys.readouterr().err == wrong
