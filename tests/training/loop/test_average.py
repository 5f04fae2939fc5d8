"""The mean of the weights of many steps, written out."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from bert4rec.checkpoint.contents import Weights
from bert4rec.checkpoint.run_folder import CHECKPOINTS, found, step_folder
from bert4rec.checkpoint.stored_tensors import LATEST, MODEL
from bert4rec.training.loop.average import STEPS_BETWEEN, WeightAverage
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.runs import Make, edit_facts, tensors_of

AGE = 0.125  # so that weights count by the sixth power of their step, nearly


def trained(n_steps: int, age: float = AGE) -> tuple[nn.Linear, WeightAverage]:
    """A model whose weight is the number of its step, and its mean."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    average = WeightAverage(Weights(model, LATEST), age=age)
    for step in range(1, n_steps + 1):
        model.weight.data.fill_(step)
        average.note(step)
    return model, average


def mean_of(average: WeightAverage) -> float:
    (mean,) = average.tensors().values()
    return float(mean)


def test_weights_count_by_a_power_of_their_step() -> None:
    """As Γ(t + η) / Γ(t) does, which is t (t + 1) … (t + η - 1) for a whole η."""
    n = 50
    _, average = trained(n * STEPS_BETWEEN)
    turns = np.arange(1, n + 1)
    weights = np.prod([turns + k for k in range(round(1 / AGE) - 2)], axis=0)
    assert mean_of(average) == pytest.approx(np.average(STEPS_BETWEEN * turns, weights=weights))


@pytest.mark.parametrize("age", [0.05, 0.1, 0.3])
def test_it_is_as_old_as_it_should_be(age: float) -> None:
    n_steps = 1000 * STEPS_BETWEEN
    _, average = trained(n_steps, age)
    assert 1 - mean_of(average) / n_steps == pytest.approx(age, rel=0.02)


def test_the_first_weights_are_forgotten() -> None:
    """Those of the start are not in it at all: the first mean is that of one step."""
    _, average = trained(STEPS_BETWEEN)
    assert mean_of(average) == STEPS_BETWEEN
    _, average = trained(2 * STEPS_BETWEEN - 1)
    assert mean_of(average) == STEPS_BETWEEN


def test_the_model_has_it_for_a_while() -> None:
    model, average = trained(30)
    mean = mean_of(average)
    with suppress(RuntimeError), average.in_place_of_weights():
        seen = model.weight.item()
        raise RuntimeError("of a validation")
    assert seen == mean
    assert (model.weight.item(), mean_of(average)) == (30, mean)
    average.restart()
    assert mean_of(average) == 30


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_run_saves_tests_and_starts_others_from_the_mean(make: Make) -> None:
    """With 7 steps an epoch: of the weights after step 10 alone, and of those after 20 nearly alone."""
    folder = run(make(**{"training.n_epochs": 2, "run.name": "averaged", "training.average_age": 0.1}))
    leave_group()
    plain = run(make(**{"training.n_epochs": 2, "run.name": "plain", "training.average_age": 0.0}))
    leave_group()
    averaged, last = (tensors_of(found(path / CHECKPOINTS)[-1]) for path in (folder, plain))
    names = [name.removeprefix(MODEL) for name in last if name.startswith(MODEL)]
    for name in names:
        torch.testing.assert_close(averaged[LATEST + name], last[MODEL + name])
        assert not torch.equal(averaged[MODEL + name], last[MODEL + name])
    assert not any(name.startswith(LATEST) for name in last)
    one_step = {"training.max_minutes": 1e-9, "training.average_age": 0.1}
    started = run(make(**{"run.init_from": str(folder), "run.name": "started", **one_step}))
    best, first = (tensors_of(path / CHECKPOINTS / "best") for path in (folder, started))
    for name in names:  # after a single step
        torch.testing.assert_close(first[LATEST + name], best[MODEL + name], atol=2e-3, rtol=0)
        assert torch.equal(first[MODEL + name], best[MODEL + name])


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_run_of_an_earlier_version_is_resumed_with_a_mean(make: Make) -> None:
    """It begins at the weights that there are, after step 14, and counts those after step 20 three times as much."""
    folder = run(make(**{"training.n_epochs": 2, "run.name": "old", "training.average_age": 0.0}))
    leave_group()
    edit_facts(found(folder / CHECKPOINTS)[-1], lambda facts: facts["config"]["training"].pop("average_age"))
    changes = {"run.resume": str(folder), "training.average_age": 0.25, "checkpoint.every_steps": 10}
    run(make(**changes))
    before, after = (tensors_of(step_folder(folder / CHECKPOINTS, step)) for step in (14, 20))
    for name in (name.removeprefix(LATEST) for name in after if name.startswith(LATEST)):
        mean = 0.25 * before[MODEL + name] + 0.75 * after[LATEST + name]
        torch.testing.assert_close(after[MODEL + name], mean)
