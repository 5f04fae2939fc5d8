"""Lines of progress under a launcher, to the letter; the bar on a terminal: runtime/test_console.py."""

import pytest

from bert4rec.training.loop.progress import Progress


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1000, n_epochs=40, done=0) as progress:
        progress.update(7, epoch=0.28, loss=6.54321, learning_rate=1e-3, rate=0.0, left=3723.4)
        progress.update(1000, epoch=40.0, loss=0.5, learning_rate=2.5e-5, rate=1390.4, left=0.0)
    assert capsys.readouterr() == (
        "step    7/1000  epoch  0.28  loss 6.5432  lr 1.00e-03  1:02:03 left\n"
        "step 1000/1000  epoch 40.00  loss 0.5000  lr 2.50e-05  0:00 left  1,390 sequences/s\n",
        "",
    )


def test_what_is_learnt_from_has_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, n_epochs=1, done=0, examples="pairs") as progress:
        progress.update(10, epoch=1.0, loss=0.5, learning_rate=1e-3, rate=426_388.0, left=0.0)
    assert capsys.readouterr().out.endswith("0:00 left  426,388 pairs/s\n")
