"""Loss and speed, by given losses and given seconds."""

import math

import pytest
import torch

from bert4rec.runtime.errors import DivergenceError
from bert4rec.training.loop.meter import WARM_STEPS, Meter


def measured(*steps: tuple[float, int, int, float]) -> Meter:
    meter = Meter(torch.device("cpu"))
    for loss, n_positions, n_sequences, seconds in steps:
        meter.add(torch.tensor(loss, requires_grad=True), n_positions, n_sequences, seconds)
    return meter


def test_the_loss_is_the_mean_over_the_positions_since_it_was_last_read(group_of_one: None) -> None:
    meter = measured((6.0, 2, 1, 0.1), (3.0, 4, 1, 0.1))
    assert meter.unread_positions == 6
    assert (meter.read_loss(), meter.unread_positions) == (1.5, 0)
    meter.add(torch.tensor(7.0), 2, 1, 0.1)
    assert meter.read_loss() == 3.5


@pytest.mark.parametrize(("loss", "shown"), [(math.nan, "nan"), (math.inf, "inf")])
def test_a_loss_that_is_no_number_ends_the_training(group_of_one: None, loss: float, shown: str) -> None:
    for steps, told in (([(loss, 1, 1, 0.1)], "1 step"), ([(1.0, 1, 1, 0.1), (loss, 1, 1, 0.1)], "2 steps")):
        with pytest.raises(DivergenceError) as caught:
            measured(*steps).read_loss()
        assert str(caught.value) == f"the training loss is {shown} after {told}"


def test_the_first_steps_are_left_out_of_the_speed() -> None:
    warm = [(1.0, 1, 1000, 100.0)] * WARM_STEPS
    assert measured(*warm).rate == 0
    assert measured(*warm, (1.0, 1, 16, 0.5), (1.0, 1, 8, 1.0)).rate == 16
