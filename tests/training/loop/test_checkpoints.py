"""What a training saves in which moment, and which weights it takes in the end."""

import re
from pathlib import Path
from typing import Any

import pytest

from bert4rec.checkpoint import store
from bert4rec.checkpoint.store import SaveError
from bert4rec.report.log import read_records
from bert4rec.training.run import run
from tests.conftest import long
from tests.fixture_types import Capture, Patch
from tests.runs import EVALUATION, FORWARD, Make, assert_same_results, flip, in_step, interrupted, report_of

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(
    ("where", "number", "kept", "asynchronous"),
    [
        long(FORWARD, 4, 4, False),  # in the first epoch
        long(FORWARD, 15, 15, True),  # in the first step of the third
        long(FORWARD, 21, 21, False),  # in the very last step
        long(EVALUATION, 1, 7, False),  # in the first validation
        long(EVALUATION, 4, 14, True),
        (EVALUATION, 9, 0, False),  # in the test, after three validations of two batches each
        ((store, "_write_shards"), 1, 7, False),  # while the first checkpoint is written
        long((store, "_write_shards"), 2, 14, True),
        long((store, "_finish"), 2, 14, False),
    ],
)
def test_a_signal_at_any_moment_loses_nothing(
    make: Make, whole: Path, monkeypatch: Patch, where: tuple[Any, str], number: int, kept: int,
    asynchronous: bool,
) -> None:  # fmt: skip
    changes = {"run.name": "broken", "run.resume": "auto", "checkpoint.async": asynchronous}
    with monkeypatch.context() as patch:
        in_step(patch, *where, number)
        message = interrupted(make(**changes))
    if kept:
        step = int(message.rpartition(" ")[2])
        assert kept <= step <= 21  # a signal while a checkpoint is written is heard at a later step
    assert_same_results(run(make(**changes)), whole)


def test_what_could_not_be_saved_is_not_called_saved(make: Make, whole: Path, monkeypatch: Patch) -> None:

    def full(*_: Any) -> None:
        raise SaveError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_shards", full)
        in_step(patch, *FORWARD, 4)
        message = interrupted(make(**{"run.name": "broken"}))
        assert re.search(r"not saved after step \d+", message)
    (stopped,) = read_records(whole.parent / "broken", "stopped")
    assert stopped["message"] == message
    monkeypatch.setattr(store, "_write_shards", full)
    with pytest.raises(SaveError, match=r"--config=\S+/runs/lost/config\.toml"):
        run(make(**{"run.name": "lost"}))
    assert not (whole.parent / "lost" / "report.json").exists()


def test_a_best_that_was_damaged_is_not_tested(make: Make, monkeypatch: Patch, capsys: Capture) -> None:
    def damaged(folder: Path) -> None:
        flip(folder / "__0_0.distcp", 1000)
        store.verify(folder)

    monkeypatch.setattr("bert4rec.training.state.verify", damaged)
    folder = run(make(**{"training.seed": 4}))  # with which the second epoch is the best
    assert "__0_0.distcp" in capsys.readouterr().out
    assert report_of(folder)["training"]["best_epoch"] == 3
