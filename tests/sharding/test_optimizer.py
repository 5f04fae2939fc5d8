"""Schedules and optimizers as written-out arithmetic."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from bert4rec.models.tables import Table
from bert4rec.sharding.optimizer import Optimizers, OptimizerSettings, learning_rate_scale


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", [0.5, 1.0, 1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0, 0.0]),
    ],
)
def test_warm_up_then_decay_to_zero(schedule: str, expected: list[float]) -> None:
    scales = [learning_rate_scale(n, n_steps=6, schedule=schedule, warmup_steps=2) for n in range(len(expected))]
    assert scales == pytest.approx(expected)


@pytest.mark.parametrize("n_steps", [4, 10, 101])
def test_one_cycle_is_the_schedule_of_torch(n_steps: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, expected = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, n_steps, cycle_momentum=False), []
    for _ in range(n_steps):
        expected += schedule.get_last_lr()
        optimizer.step()
        if len(expected) < n_steps:
            schedule.step()
    scales = [learning_rate_scale(step, n_steps=n_steps, schedule="one_cycle") for step in range(n_steps)]
    assert scales == pytest.approx(expected)


TABLE = "item_table.collection.embeddings.item.weight"


class Tiny(nn.Module):
    """A table and a dense part of one weight each, under the names of the real model's."""

    def __init__(self) -> None:
        super().__init__()
        self.item_table = Table("item", n_rows=1, width=1, features=["item"], device="cpu")
        self.tables = [self.item_table]
        self.encoder = nn.Linear(1, 1)
        for weight in self.parameters():
            nn.init.constant_(weight, 1.0)


USUAL: dict[str, Any] = {
    "optimizer": "sgd", "learning_rate": 0.1, "sparse_optimizer": "sgd", "sparse_learning_rate": 0.2,
}  # fmt: skip


def step(gradient: float, **settings: Any) -> dict[str, float]:
    tiny = Tiny()
    scale = settings.pop("scale", 1.0)
    optimizers = Optimizers(tiny, OptimizerSettings(**USUAL | settings), {"item": "replicated"})
    optimizers.begin_step(scale)
    for weight in tiny.parameters():
        weight.grad = torch.full_like(weight, gradient)
    optimizers.step()
    return {name: weight.item() for name, weight in tiny.named_parameters()}


CLIPPED = 1 - 0.1 / math.sqrt(2)


@pytest.mark.parametrize(
    ("gradient", "settings", "weights"),
    [
        (1.0, {"scale": 0.5}, [0.9, 0.95, 0.95]),  # the table and the dense part have their own rates
        (10.0, {"max_grad_norm": 1.0}, [-1.0, CLIPPED, CLIPPED]),  # only the dense gradient is clipped
        (0.0, {"optimizer": "adamw", "weight_decay": 0.5}, [1.0, 0.95, 1.0]),  # only dense matrices decay
    ],
)
def test_the_table_and_the_dense_part_are_updated_apart(
    gradient: float, settings: dict[str, Any], weights: list[float]
) -> None:
    expected = dict(zip((TABLE, "encoder.weight", "encoder.bias"), weights, strict=True))
    assert step(gradient, **settings) == pytest.approx(expected, rel=1e-4 if "max_grad_norm" in settings else None)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("sparse_optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_a_table_decays_by_its_rate_before_it_is_updated(sparse_optimizer: str, decay: float) -> None:
    after = step(2.0, sparse_optimizer=sparse_optimizer, sparse_weight_decay=decay)
    moved = 0.4 if sparse_optimizer == "sgd" else 0.2  # an adaptive one moves by its rate, whatever the gradient
    assert after[TABLE] == pytest.approx(1 * (1 - 0.2 * decay) - moved)


def test_two_states_of_one_name_are_refused() -> None:
    tiny = Tiny()
    tiny.tables = [tiny.item_table, Table("item", n_rows=2, width=1, features=["twin"], device="cpu")]
    optimizers = Optimizers(tiny, OptimizerSettings(**USUAL | {"sparse_optimizer": "adagrad"}), {"item": "replicated"})
    with pytest.raises(ValueError, match=r"item_table\.sum"):
        optimizers.tensors()
