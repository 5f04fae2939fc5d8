"""What processes decide together; at which steps they act on it is in test_trainer.py."""

import signal
from typing import Any

import pytest
import torch

from bert4rec.dataset.schema import PAD_ID
from bert4rec.feed.batch import Batch
from bert4rec.runtime.signals import Interruption
from bert4rec.training.loop.consensus import Consensus, Decision
from tests.processes import jobs


@pytest.mark.usefixtures("group_of_one")
def test_positions_are_those_with_a_target() -> None:
    batch = Batch.showing(torch.tensor([2, 3, 4]), torch.tensor([3]), torch.tensor([0, 2]), torch.tensor([5, PAD_ID]))
    consensus = Consensus(Interruption())
    consensus.ask(batch, report=True, save=True)
    assert consensus.answer() == Decision(positions=1, report=True, save=True)
    assert consensus.answer() == Decision()  # to no question


@pytest.mark.usefixtures("group_of_one")
def test_a_signal_is_answered_when_it_was_told_of() -> None:
    interruption = Interruption()
    consensus = Consensus(interruption)
    consensus.ask()
    interruption.number = signal.SIGTERM  # too late for this question
    assert consensus.answer() == Decision()
    assert not interruption._answered.is_set()
    consensus.ask(out_of_time=True)
    assert interruption._answered.is_set()  # at once: the step that follows may take longer than the patience
    assert consensus.answer() == Decision(out_of_time=True, interrupted=signal.SIGTERM)


def test_what_one_process_says_holds_for_all_and_none_waits_to_say_it(pools: Any) -> None:
    decision = Decision(positions=0 + 1 + 2, report=True, out_of_time=True)
    assert pools(3).run(jobs.decided) == [decision] * 3


def test_in_an_evaluation_signals_come_with_the_next_batch_and_the_first_of_several_counts(pools: Any) -> None:
    expected = ([0, 0, signal.SIGINT], Decision())
    assert pools(3).run(jobs.signalled_in_an_evaluation) == [expected] * 3
