"""The mean of the weights of many steps, written out."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bert4rec.checkpoint.run_folder import CHECKPOINTS, found, step_folder
from bert4rec.checkpoint.stored_tensors import LATEST, MODEL_PREFIX
from bert4rec.runtime.errors import DataError
from bert4rec.sharding.optimizer import WeightAverage
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.fixture_types import Patch
from tests.runs import Make, report_of, tensors_of

AGE, POWER = 0.125, 6  # of the step by which weights count, nearly


def trained(n_steps: int, age: float = AGE) -> tuple[nn.Linear, WeightAverage]:
    """A model whose weight is the number of its step, and its mean."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    average = WeightAverage(model.state_dict(), age=age)
    for step in range(1, n_steps + 1):
        model.weight.data.fill_(step)
        average.note(step)
    return model, average


def mean_of(average: WeightAverage) -> float:
    (mean,) = average.tensors().values()
    return float(mean)


def test_weights_count_by_a_power_of_their_step() -> None:
    """As Γ(t + η) / Γ(t) does, which is t (t + 1) … (t + η - 1) for a whole η."""
    n_steps = 50
    _, average = trained(n_steps)
    steps = np.arange(1, n_steps + 1)
    weights = np.prod([steps + k for k in range(POWER)], axis=0)
    assert mean_of(average) == pytest.approx(np.average(steps, weights=weights))


@pytest.mark.parametrize("age", [0.05, 0.1, 0.3])
def test_it_is_as_old_as_it_should_be(age: float) -> None:
    _, average = trained(1000, age)
    assert 1 - mean_of(average) / 1000 == pytest.approx(age, rel=0.02)


def test_the_weights_of_the_start_are_not_in_it() -> None:
    _, average = trained(1)
    assert mean_of(average) == 1


def test_the_model_has_it_for_a_while() -> None:
    model, average = trained(30)
    mean = mean_of(average)
    with suppress(RuntimeError), average.using_average():
        seen = model.weight.item()
        raise RuntimeError("of a validation")
    assert seen == mean
    assert (model.weight.item(), mean_of(average)) == (30, mean)
    average.restart()
    assert mean_of(average) == 30


@pytest.mark.usefixtures("alone")
def test_a_run_saves_tests_and_starts_others_from_the_mean(make: Make, monkeypatch: Patch) -> None:
    """Also where the best is lost: then that of the last steps is tested."""
    averaged = {"training.average_age": AGE, "training.n_epochs": 1}
    folder = run(make(**averaged, **{"run.name": "averaged"}))
    leave_group()
    plain = run(make(**averaged | {"run.name": "plain", "training.average_age": 0.0}))
    leave_group()
    mean, last = (tensors_of(found(path / CHECKPOINTS)[-1]) for path in (folder, plain))
    names = [name.removeprefix(MODEL_PREFIX) for name in last if name.startswith(MODEL_PREFIX)]
    for name in names:
        assert torch.equal(mean[LATEST + name], last[MODEL_PREFIX + name])
        assert not torch.equal(mean[MODEL_PREFIX + name], last[MODEL_PREFIX + name])
    assert not any(name.startswith(LATEST) for name in last)
    assert report_of(folder)["test"] != report_of(plain)["test"]
    one_step = averaged | {"training.max_minutes": 1e-9, "training.learning_rate": 1e-12}
    started = run(make(**one_step, **{"run.init_from": str(folder), "run.name": "started"}))
    best, first = (tensors_of(path / CHECKPOINTS / "best") for path in (folder, started))
    for name in names:
        torch.testing.assert_close(first[LATEST + name], best[MODEL_PREFIX + name])
    leave_group()

    def lost(folder: Path) -> None:
        raise DataError(f"{folder}: is lost")

    monkeypatch.setattr("bert4rec.training.state.verify", lost)
    assert report_of(run(make(**averaged, **{"run.name": "other"})))["test"] == report_of(folder)["test"]


@pytest.mark.usefixtures("alone")
def test_the_mean_of_a_run_takes_in_the_weights_of_every_step(make: Make) -> None:
    each = {"checkpoint.every_steps": 1, "checkpoint.keep": 99, "training.n_epochs": 1}
    folder = run(make(**each, **{"training.average_age": AGE}))
    mean: dict[str, torch.Tensor] = {}
    for step in range(1, 8):
        tensors = tensors_of(step_folder(folder / CHECKPOINTS, step))
        for name in (name.removeprefix(MODEL_PREFIX) for name in tensors if name.startswith(MODEL_PREFIX)):
            share = (POWER + 1) / (step + POWER)
            mean[name] = tensors[LATEST + name] * share + mean.get(name, 0) * (1 - share)
            torch.testing.assert_close(tensors[MODEL_PREFIX + name], mean[name])
