"""What of a training goes into a checkpoint, and comes back."""

import pytest
import torch

from bert4rec.checkpoint.contents import Weights, moments, random_states
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.optimizer import Optimizers, OptimizerSettings
from tests.sharding.test_optimizer import Tiny

pytestmark = pytest.mark.usefixtures("group_of_one")

WORLD = Processes(rank=0, local_rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
SETTINGS = OptimizerSettings(
    optimizer="adamw", learning_rate=0.1, sparse_optimizer="adagrad", sparse_learning_rate=0.2
)  # fmt: skip


def test_all_of_it_has_names() -> None:
    tiny = Tiny()
    optimizers = Optimizers(tiny, SETTINGS, {"item": "replicated"})
    tensors = Weights(tiny).tensors() | moments(optimizers) | random_states(WORLD)
    dense = ["encoder.weight", "encoder.bias"]
    assert {*tensors} == {
        "model.item_table.embeddings.item.weight", *[f"model.{name}" for name in dense], "optimizer.item_table.sum",
        *[f"optimizer.{name}.{slot}" for name in dense for slot in ("exp_avg", "exp_avg_sq")], "random.cpu.0",
    }  # fmt: skip
    assert [part.flatten().tolist() for part in Weights(Tiny()).local_parts()] == [[1.0]] * 3
