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


def trained(n_steps: int, age: float = AGE) -> tuple[nn.Linear, WeightAverage, float]:
    """A model whose weight is the number of its step, its mean, and the value of that."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    average = WeightAverage(model.state_dict(), age=age)
    for step in range(1, n_steps + 1):
        model.weight.data.fill_(step)
        average.note(step)
    (mean,) = average.tensors().values()
    return model, average, mean.item()


def test_weights_count_by_a_power_of_their_step() -> None:
    """As Γ(t + η) / Γ(t) does, which is t (t + 1) … (t + η - 1) for a whole η."""
    steps = np.arange(1, 51)
    weights = np.prod([steps + k for k in range(POWER)], axis=0)
    assert trained(50)[2] == pytest.approx(np.average(steps, weights=weights))
    assert trained(1)[2] == 1  # the weights of the start do not count
    for age in (0.05, 0.1, 0.3):
        assert 1 - trained(1000, age)[2] / 1000 == pytest.approx(age, rel=0.02)


def test_the_model_has_it_for_a_while() -> None:
    model, average, mean = trained(30)
    with suppress(RuntimeError), average.using_average():
        assert model.weight.item() == mean
        raise RuntimeError("of a validation")
    (kept,) = average.tensors().values()
    assert (model.weight.item(), kept.item()) == (30, mean)
    average.restart()
    assert next(iter(average.tensors().values())).item() == 30


@pytest.mark.usefixtures("alone")
def test_a_run_saves_tests_and_starts_others_from_the_mean(make: Make, monkeypatch: Patch) -> None:
    def ran(name: str, **changes: object) -> Path:
        folder = run(make(**averaged | {"run.name": name} | changes))
        leave_group()
        return folder

    averaged = {"training.average_age": AGE, "training.n_epochs": 1, "checkpoint.every_steps": 1, "checkpoint.keep": 99}
    folder, plain = ran("averaged"), ran("plain", **{"training.average_age": 0.0})
    kept, last = (tensors_of(found(path / CHECKPOINTS)[-1]) for path in (folder, plain))
    names = [name.removeprefix(MODEL_PREFIX) for name in last if name.startswith(MODEL_PREFIX)]
    mean: dict[str, torch.Tensor] = {}
    for step in range(1, 8):
        tensors, share = tensors_of(step_folder(folder / CHECKPOINTS, step)), (POWER + 1) / (step + POWER)
        mean = {name: tensors[LATEST + name] * share + mean.get(name, 0) * (1 - share) for name in names}
        for name in names:
            torch.testing.assert_close(tensors[MODEL_PREFIX + name], mean[name])
    for name in names:
        assert torch.equal(kept[LATEST + name], last[MODEL_PREFIX + name])
        assert not torch.equal(kept[MODEL_PREFIX + name], last[MODEL_PREFIX + name])
    assert not any(name.startswith(LATEST) for name in last)
    assert report_of(folder)["test"] != report_of(plain)["test"]
    one_step = {"training.max_minutes": 1e-9, "training.learning_rate": 1e-12, "run.init_from": str(folder)}
    best, first = (tensors_of(path / CHECKPOINTS / "best") for path in (folder, ran("started", **one_step)))
    for name in names:
        torch.testing.assert_close(first[LATEST + name], best[MODEL_PREFIX + name])

    def lost(folder: Path) -> None:
        raise DataError(f"{folder}: is lost")

    monkeypatch.setattr("bert4rec.training.state.verify", lost)  # then the mean of the last steps is tested
    assert report_of(ran("other"))["test"] == report_of(folder)["test"]
