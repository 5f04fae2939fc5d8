"""What of a training goes into a checkpoint, and comes back."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bert4rec.checkpoint.contents import Moments, Owner, RandomState, Weights
from bert4rec.checkpoint.store import save
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.optimizer import Optimizers, OptimizerSettings
from tests.sharding.test_optimizer import Tiny

pytestmark = [
    pytest.mark.usefixtures("group_of_one"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]

WORLD = Processes(rank=0, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
SETTINGS = OptimizerSettings(
    optimizer="adamw", learning_rate=0.1, sparse_optimizer="adagrad", sparse_learning_rate=0.2
)  # fmt: skip


def step(tiny: Tiny, optimizers: Optimizers, gradient: float) -> None:
    optimizers.begin_step(1.0)
    for weight in tiny.parameters():
        weight.grad = torch.full_like(weight, gradient)
    optimizers.step()


def trained(n_steps: int) -> tuple[Tiny, Optimizers]:
    """A table and a dense part of one weight each, after so many steps by different gradients."""
    tiny = Tiny()
    optimizers = Optimizers(tiny, SETTINGS, {"item": "replicated"})
    for number in range(n_steps):
        step(tiny, optimizers, number + 1.0)
    return tiny, optimizers


def owners(tiny: Tiny, optimizers: Optimizers) -> list[Owner]:
    return [Weights(tiny), Moments(optimizers), RandomState(WORLD)]


def tensors_of(tiny: Tiny, optimizers: Optimizers) -> dict[str, Any]:
    return {name: value for owner in owners(tiny, optimizers) for name, value in owner.tensors().items()}


def test_all_of_it_has_names() -> None:
    tensors = tensors_of(*trained(0))
    dense = ["encoder.weight", "encoder.bias"]
    assert {*tensors} == {
        "model.item_table.embeddings.item.weight", *[f"model.{name}" for name in dense], "optimizer.item_table.sum",
        *[f"optimizer.{name}.{slot}" for name in dense for slot in ("exp_avg", "exp_avg_sq")], "random.cpu.0",
    }  # fmt: skip
    assert [part.flatten().tolist() for part in Weights(Tiny()).local_parts()] == [[1.0]] * 3


def test_a_training_goes_on_from_it_bit_by_bit(tmp_path: Path) -> None:
    tiny, optimizers = trained(3)
    save(tmp_path / "one", tensors_of(tiny, optimizers), {})
    drawn = torch.rand(5)
    other, fresh = trained(0)
    for owner in owners(other, fresh):
        owner.load(tmp_path / "one")
    fresh.set_steps(3)
    assert torch.equal(torch.rand(5), drawn)
    for model, its_optimizers in ((tiny, optimizers), (other, fresh)):
        step(model, its_optimizers, 0.5)
    assert [weight.item() for weight in other.parameters()] == [weight.item() for weight in tiny.parameters()]
