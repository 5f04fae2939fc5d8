"""Schedules and optimizers as written-out arithmetic."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from bert4rec.models.tables.table import Table
from bert4rec.sharding.optimizer import Optimizers, OptimizerSettings, learning_rate_scale


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5]),
        ("cosine", [0.5, 1.0, 1.0, (1 + math.sqrt(0.5)) / 2, 0.5]),
    ],
)
def test_warm_up_then_decay(schedule: str, expected: list[float]) -> None:
    scales = [learning_rate_scale(step, n_steps=6, schedule=schedule, warmup_steps=2) for step in range(5)]
    assert scales == pytest.approx(expected)


def test_a_schedule_ends_at_zero_and_stays_there() -> None:
    assert learning_rate_scale(6, n_steps=6, schedule="linear") == 0.0
    assert learning_rate_scale(7, n_steps=6, schedule="cosine") == pytest.approx(0.0)


@pytest.mark.parametrize("n_steps", [4, 10, 101])
def test_one_cycle_is_the_schedule_of_torch(n_steps: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, n_steps, cycle_momentum=False)
    for step in range(n_steps):
        assert learning_rate_scale(step, n_steps=n_steps, schedule="one_cycle") == pytest.approx(
            schedule.get_last_lr()[0]
        )
        optimizer.step()
        if step < n_steps - 1:
            schedule.step()


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


def step(gradient: float, **settings: Any) -> dict[str, float]:
    """Every weight after one step from 1 with the same gradient."""
    tiny = Tiny()
    usual = {"optimizer": "sgd", "learning_rate": 0.1, "sparse_optimizer": "sgd", "sparse_learning_rate": 0.2}
    scale = settings.pop("scale", 1.0)
    optimizers = Optimizers(tiny, OptimizerSettings(**usual | settings), {"item": "replicated"})
    optimizers.begin_step(scale)
    for weight in tiny.parameters():
        weight.grad = torch.full_like(weight, gradient)
    optimizers.step()
    return {name: weight.item() for name, weight in tiny.named_parameters()}


def test_the_table_and_the_dense_part_have_their_own_rates() -> None:
    after = step(1.0, scale=0.5)
    assert after == pytest.approx({TABLE: 0.9, "encoder.weight": 0.95, "encoder.bias": 0.95})


def test_only_the_dense_gradient_is_clipped() -> None:
    after = step(10.0, max_grad_norm=1.0)
    clipped = 1 - 0.1 / math.sqrt(2)
    assert after == pytest.approx({TABLE: -1.0, "encoder.weight": clipped, "encoder.bias": clipped}, rel=1e-4)


def test_weight_decay_is_for_dense_matrices_only() -> None:
    after = step(0.0, optimizer="adamw", weight_decay=0.5)
    assert after == pytest.approx({TABLE: 1.0, "encoder.weight": 0.95, "encoder.bias": 1.0})


@pytest.mark.parametrize(("sparse_optimizer", "moved"), [("sgd", 0.4), ("adam", 0.2)])
def test_a_table_decays_by_its_rate_before_it_is_updated(sparse_optimizer: str, moved: float) -> None:
    after = step(2.0, sparse_optimizer=sparse_optimizer, sparse_weight_decay=0.5)
    assert after[TABLE] == pytest.approx(1 * (1 - 0.2 * 0.5) - moved)


@pytest.mark.parametrize(
    ("sparse_optimizer", "expected"), [("sgd", 0.6), ("adagrad", 0.8), ("rowwise_adagrad", 0.8), ("adam", 0.8)]
)
def test_sparse_optimizers(sparse_optimizer: str, expected: float) -> None:
    """After one step an adaptive optimizer has moved by its rate, whatever the gradient."""
    assert step(2.0, sparse_optimizer=sparse_optimizer)[TABLE] == pytest.approx(expected)
