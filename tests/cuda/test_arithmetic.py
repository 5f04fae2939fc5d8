"""What a GPU computes is what the CPU computes, within the rounding of float32 or of what was asked for."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.cuda.conftest import Train, losses

pytestmark = pytest.mark.cuda

TOLERANCE = 1e-3  # of losses of about 5 over ten steps, and of smaller ones a share: gBCE's are 0.05
LOSSES = ("softmax", "sampled_softmax", "gbce")
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
KERNELS = ("fused", "fused_uvm", "fused_uvm_caching")
SAMPLED = {"training.loss": "sampled_softmax", "parallelism.sparse_optimizer": "rowwise_adagrad"}


def settings(loss: str, optimizer: str) -> dict[str, Any]:
    chosen = {"training.loss": loss, "parallelism.sparse_optimizer": optimizer}
    if optimizer == "adam":
        chosen["parallelism.sparse_learning_rate"] = 0.01
    if optimizer == "sgd":
        scale = 10.0 if loss == "gbce" else 1.0  # it is divided by the number of candidates
        chosen["training.optimizer"] = "sgd"
        chosen |= {"training.learning_rate": 0.1 * scale, "parallelism.sparse_learning_rate": 2.0 * scale}
    return chosen


@pytest.fixture(scope="session")
def on_cpu() -> dict[tuple[str, str], list[float]]:
    """Losses of replicated trainings by loss and optimizer: each is compared with several others."""
    return {}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_sharded_training_has_the_losses_of_a_replicated_one_on_cpu(
    train: Train, on_cpu: dict[tuple[str, str], list[float]], loss: str, optimizer: str, kernel: str
) -> None:
    if (loss, optimizer) not in on_cpu:
        on_cpu[loss, optimizer] = losses(train("cpu", **settings(loss, optimizer) | {"parallelism.mode": "ddp"}))
    expected = on_cpu[loss, optimizer]
    found = losses(train(**settings(loss, optimizer) | {"parallelism.compute_kernel": kernel}))
    assert len(expected) == 10
    tolerance = TOLERANCE * min(1.0, expected[0])
    assert expected[0] - expected[-1] > 10 * tolerance  # the training learns, so equal losses say something
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"training.precision": "tf32"}, 1e-2),
        ({"training.precision": "bf16"}, 0.05),
        ({"training.precision": "bf16", "training.loss": "softmax"}, 0.05),
        ({"parallelism.table_precision": "fp16"}, 0.02),
        ({"parallelism.messages": "fp16"}, 0.02),
        ({"parallelism.messages": "bf16"}, 0.05),
        ({"training.compile": True}, TOLERANCE),
    ],
)
def test_fewer_bits_and_compiled_blocks_train_alike(train: Train, changes: dict[str, Any], tolerance: float) -> None:
    if changes.get("training.precision") == "tf32" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 needs an Ampere GPU")
    full = losses(train(**SAMPLED | {name: value for name, value in changes.items() if name == "training.loss"}))
    fewer = losses(train(**SAMPLED | changes))
    np.testing.assert_allclose(fewer, full, rtol=0, atol=tolerance)
    if changes.keys() & {"training.precision", "parallelism.table_precision"}:  # a lone process sends no messages
        assert fewer != full
