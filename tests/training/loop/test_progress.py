"""Lines of progress under a launcher, to the letter; the bar on a terminal: runtime/test_console.py."""

from types import SimpleNamespace

import pytest

from bert4rec.training.loop.progress import SECONDS_BETWEEN_LINES, Progress


def progress_of(*, shown: bool) -> Progress:
    progress = Progress(shown=shown)
    progress.begin(1000, n_epochs=40, done=0)
    progress.update(7, epoch=0.28, loss=6.54321, learning_rate=1e-3, rate=0.0, left=3723.4)
    progress.update(1000, epoch=40.0, loss=0.5, learning_rate=2.5e-5, rate=1390.4, left=0.0)
    progress.say("done")
    progress.close()
    return progress


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress_of(shown=True)
    assert capsys.readouterr() == (
        "step    7/1000  epoch  0.28  loss 6.5432  lr 1.00e-03  1:02:03 left\n"
        "step 1000/1000  epoch 40.00  loss 0.5000  lr 2.50e-05  0:00 left  1,390 sequences/s\n"
        "done\n",
        "",
    )


def test_of_all_processes_but_the_first_nothing_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    progress_of(shown=False)
    assert capsys.readouterr() == ("", "")


def test_a_line_is_due_some_seconds_after_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("bert4rec.training.loop.progress.time", SimpleNamespace(monotonic=lambda: now))
    progress = Progress(shown=True)
    now = 200.0
    progress.begin(10, n_epochs=1, done=0)
    assert not progress.is_due()
    now = 200.0 + SECONDS_BETWEEN_LINES
    assert progress.is_due()
    progress.update(1, epoch=0.1, loss=1.0, learning_rate=0.1, rate=0.0, left=1.0)
    assert not progress.is_due()
