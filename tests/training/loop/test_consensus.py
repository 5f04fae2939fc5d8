"""What a process alone decides with itself; several are in test_trainer.py."""

import signal

import pytest
import torch

from bert4rec.dataset.schema import PAD_ID
from bert4rec.feed.batch import Batch
from bert4rec.runtime.signals import Interruption
from bert4rec.training.loop.consensus import Decision, decide_together

pytestmark = pytest.mark.usefixtures("group_of_one")


def test_positions_are_those_with_a_target() -> None:
    batch = Batch(torch.tensor([2, 3, 4]), torch.tensor([3]), torch.tensor([0, 2]), torch.tensor([5, PAD_ID]))
    decision = decide_together(Interruption(), batch, report=True, out_of_time=False, save=True)
    assert decision == Decision(positions=1, report=True, out_of_time=False, save=True, interrupted=0)


def test_the_first_of_several_signals_counts() -> None:
    interruption = Interruption()
    interruption.number = signal.SIGTERM
    decision = decide_together(interruption, None, report=False, out_of_time=True, save=False)
    assert decision == Decision(positions=0, report=False, out_of_time=True, save=False, interrupted=signal.SIGTERM)
