"""The parts of the training loop: decisions, loss and speed, state, seconds, transfer, a loss that is not finite."""

import math
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from bert4rec.checkpoint import contents, store
from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.runtime import collectives
from bert4rec.runtime.collectives import Decision, StepSync
from bert4rec.runtime.errors import DivergenceError
from bert4rec.runtime.signals import Interruption
from bert4rec.training.run import run
from bert4rec.training.state import State, Stopwatch
from bert4rec.training.trainer import WARM_STEPS, Meter
from tests.conftest import leave_group
from tests.fixture_types import Patch
from tests.runs import Make


def decided(few: int) -> Decision:
    """Return the decision after the ranks have started it one after another; more than `few` gather in rounds."""
    with patch.object(collectives, "DIRECT_PROCESSES", few):
        rank, consensus = dist.get_rank(), StepSync(Interruption())
        for turn in range(dist.get_world_size()):
            if turn == rank:
                consensus.start(rank, count=5 - rank, report=rank == 0, out_of_time=rank == 1)
            dist.barrier()  # a rank that waited for the other ranks would not get here
        return consensus.wait()


def signalled_in_an_evaluation() -> tuple[list[int], Decision]:
    """Return the signals at three pauses, and the decision; two ranks get a signal before the second pause."""
    interruption = Interruption()
    consensus = StepSync(interruption)
    first = consensus.interrupted()
    interruption.number = (0, signal.SIGTERM, signal.SIGINT)[dist.get_rank()]
    return [first, consensus.interrupted(), consensus.interrupted()], consensus.wait()


@pytest.mark.usefixtures("group_of_one")
def test_a_decision_answers_one_question_and_a_signal_the_next_one() -> None:
    interruption = Interruption()
    consensus = StepSync(interruption)
    consensus.start(1, count=4, report=True, save=True)
    interruption.number = signal.SIGTERM  # too late for this question
    assert consensus.wait() == Decision(positions=1, report=True, save=True, counts=(4,))
    assert consensus.wait() == Decision()  # to no question
    assert not interruption._answered.is_set()
    consensus.start(out_of_time=True)
    assert interruption._answered.is_set()  # at once: the step that follows may take longer than the patience
    assert consensus.wait() == Decision(out_of_time=True, interrupted=signal.SIGTERM)


@pytest.mark.parametrize("few", [32, 1], ids=["each to each", "in rounds"])
def test_what_one_process_says_holds_for_all_and_none_waits_to_say_it(pools: Any, few: int) -> None:
    decision = Decision(positions=0 + 1 + 2, report=True, out_of_time=True, counts=(5, 4, 3))
    assert pools(3).run(decided, few) == [decision] * 3


def test_in_an_evaluation_signals_come_with_the_next_batch_and_the_first_of_several_counts(pools: Any) -> None:
    expected = ([0, 0, signal.SIGINT], Decision())
    assert pools(3).run(signalled_in_an_evaluation) == [expected] * 3


def measured(*steps: tuple[float, int, int, float]) -> Meter:
    meter = Meter(torch.device("cpu"))
    for loss, n_positions, n_sequences, seconds in steps:
        meter.add(torch.tensor(loss, requires_grad=True), n_positions, n_sequences, seconds)
    return meter


def test_the_loss_is_the_mean_over_the_positions_since_it_was_last_read(group_of_one: None) -> None:
    meter = measured((6.0, 2, 1, 0.1), (3.0, 4, 1, 0.1))
    assert (meter.unread_positions, meter.read_loss(), meter.unread_positions) == (6, 1.5, 0)
    meter.add(torch.tensor(7.0), 2, 1, 0.1)
    assert meter.read_loss() == 3.5
    for loss in (math.nan, math.inf):
        meter.add(torch.tensor(loss), 1, 1, 0.1)
        with pytest.raises(DivergenceError, match=f"{loss}"):
            meter.read_loss()


def test_the_first_steps_are_left_out_of_the_speed() -> None:
    warm = [(1.0, 1, 1000, 100.0)] * WARM_STEPS
    assert measured(*warm).rate == 0
    assert measured(*warm, (1.0, 1, 16, 0.5), (1.0, 1, 8, 1.0)).rate == 16


def test_the_best_is_remembered_and_the_others_are_counted() -> None:
    state, without_patience = State(step=10), State(best_ndcg=1.0)
    for step, ndcg in ((10, 0.1), (20, 0.3), (30, 0.3), (40, 0.2)):  # as good as the best is not better
        state.step = step
        state.note_validation(ndcg, step / 10, patience=3)
    assert (state.best_step, state.best_epoch, state.best_ndcg, state.n_worse) == (20, 2.0, 0.3, 2)
    assert state.stopped_by == ""
    state.note_validation(0.0, 5.0, patience=3)
    assert state.stopped_by == "patience"
    for _ in range(50):
        without_patience.note_validation(0.5, 1.0, patience=0)
    assert (without_patience.n_worse, without_patience.stopped_by) == (50, "")
    assert replace(state, seconds=9.0).without_timers() == state.without_timers()


@pytest.mark.parametrize(
    ("steps", "best", "every", "last"),
    [
        (200, 2, 2, 12), (200, 10, 2, 20), (200, 30, 2, 50), (200, 60, 2, 100), (200, 60, 10, 110),
        (20, 10, 2, 100), (20, 95, 5, 160),  # not in the first 2,000 steps
    ],
)  # fmt: skip
def test_by_itself_it_stops_after_five_and_two_fifths_of_all(steps: int, best: int, every: int, last: int) -> None:
    state = State()
    for epoch in range(every, 1000, every):
        state.step = steps * epoch
        state.note_validation(epoch if epoch <= best else 0.0, epoch, patience="auto")
        if state.stopped_by:
            break
    assert (epoch, state.best_epoch, state.stopped_by) == (last, best, "patience")


def test_of_parts_within_one_another_the_innermost_counts(monkeypatch: Patch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    seconds = {"training": 7.0}  # of an earlier part of the run
    watch = Stopwatch(seconds)
    now[0] += 50  # belongs to nothing
    with watch.of("training"):
        now[0] += 1
        with watch.of("saving"):
            now[0] += 2
        now[0] += 4
        with suppress(ZeroDivisionError), watch.of("validation"):
            now[0] += 8
            now[0] /= 0
        now[0] += 16
    now[0] += 50
    watch.add("start", 3.0)
    assert seconds == {"training": 7 + 1 + 4 + 16, "saving": 2, "validation": 8, "start": 3}


def slowly(*arguments: Any, **options: Any) -> None:
    time.sleep(0.5)
    store.save(*arguments, **options)


@pytest.mark.usefixtures("alone")
def test_a_loss_that_is_not_finite_ends_the_run(make: Make, monkeypatch: Patch, tmp_path: Path) -> None:
    original, calls = Bert4Rec.forward, 0

    def sometimes(self: Bert4Rec, *args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return original(self, *args) * (float("nan") if calls % 9 == 5 else 1.0)

    monkeypatch.setattr(Bert4Rec, "forward", sometimes)
    early, late = tmp_path / "runs" / "early", tmp_path / "runs" / "late"
    rates = "--training.learning_rate=0.0001 --parallelism.sparse_learning_rate=0.0001"
    with pytest.raises(DivergenceError, match=f"--config={early}/config.toml {rates}$"):
        run(make(**{"training.n_epochs": 1, "run.name": "early"}))
    leave_group()
    calls = -4
    monkeypatch.setattr(contents, "save", slowly)  # the best weights are still being written when the loss is nan
    with pytest.raises(DivergenceError, match=f"--run.init_from={late}$"):
        run(make(**{"training.n_epochs": 2, "run.name": "late"}))
    assert (late / "checkpoints" / "best").is_dir()
