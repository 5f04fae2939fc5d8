"""Each loss as written-out arithmetic."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.models import losses
from bert4rec.models.losses import SAMPLED_LOSSES, Sampled, softmax_loss
from bert4rec.runtime.collectives import Partition

M, V, D = 7, 13, 4
TARGETS = torch.tensor([3, 0, 12, -1, 5, -2, 3])


@pytest.fixture
def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in ((M, D), (V, D))]


def expected_loss(scores: Tensor) -> Tensor:
    return F.cross_entropy(scores, TARGETS.clamp(min=-1), reduction="sum", ignore_index=-1)


@pytest.mark.parametrize(("scores_at_once", "columns"), [*itertools.product((1, 2 * V, 10_000), (1, 5, 10_000))])
@pytest.mark.parametrize("scale", [1.0, 150.0], ids=["small scores", "scores whose exponentials overflow and vanish"])
@pytest.mark.parametrize("width", [D, D - 2], ids=["without biases", "a bias after each vector"])
def test_softmax_is_cross_entropy_with_its_gradients(
    inputs: list[Tensor], monkeypatch: pytest.MonkeyPatch, scores_at_once: int, columns: int, scale: float, width: int
) -> None:
    monkeypatch.setattr(losses, "SCORES_AT_ONCE", scores_at_once)
    monkeypatch.setattr(losses, "COLUMNS_AT_A_TIME", columns)
    hidden, vectors = inputs = [(inputs[0][:, :width].detach() * scale).requires_grad_(), inputs[1]]
    bias = vectors[:, width] if width < D else 0
    expected = expected_loss(hidden @ vectors[:, :width].T + bias)
    loss = softmax_loss(hidden, vectors, TARGETS, Partition())
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(3 * each, inputs) for each in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_under_autocast_products_are_made_in_bf16_and_sums_in_float32(inputs: list[Tensor]) -> None:
    hidden, vectors = (each.detach().bfloat16().float().requires_grad_() for each in inputs)
    expected = expected_loss((hidden @ vectors.T).bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        loss = softmax_loss(hidden, vectors, TARGETS, Partition())
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)
    gradients = [torch.autograd.grad(each, (hidden, vectors)) for each in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=2e-2, atol=2e-2)


RATE = 2 / (101 - 1)
BETA = RATE * (0.75 * (1 - 1 / RATE) + 1 / RATE)
EXP, SIGMOID = math.exp, [1 / (1 + math.exp(-x)) for x in (0.7, 0.3, -1.0)]


@pytest.mark.parametrize(
    ("loss", "positive", "negative", "counts", "expected"),
    [
        # A negative expected half a time stands for two items.
        ("sampled_softmax", 1.0, [0.2, -math.inf], [0.5, 0.1], -math.log(EXP(1) / (EXP(1) + EXP(0.2) / 0.5))),
        ("sampled_softmax", 0.5, [0.0, 2.0], [0.5, 0.1],
         -math.log(EXP(0.5) / (EXP(0.5) + EXP(0) / 0.5 + EXP(2) / 0.1))),
        # Scores of zero mean the odds of any of the 100 other items.
        ("gbce", 0.7 + math.log(100), [0.3 + math.log(100), -1.0 + math.log(100)], [1, 1],
         -(math.log(SIGMOID[0] ** BETA) + math.log(1 - SIGMOID[1]) + math.log(1 - SIGMOID[2])) / 3),
        ("bpr", 0.7, [0.3, -1.0], [1, 1], -(math.log(1 / (1 + EXP(-0.4))) + math.log(1 / (1 + EXP(-1.7)))) / 2),
    ],
)  # fmt: skip
def test_sampled_losses_written_out(
    loss: str, positive: float, negative: list[float], counts: list[float], expected: float
) -> None:
    scores = Sampled(torch.tensor([positive]), torch.tensor([negative]), torch.tensor(counts).log(), 101, 0.75)
    torch.testing.assert_close(SAMPLED_LOSSES[loss](scores), torch.tensor([expected]))


@pytest.mark.parametrize("loss", SAMPLED_LOSSES)
def test_a_negative_that_is_the_target_has_no_say(loss: str) -> None:
    negative = torch.tensor([[0.3, 5.0]], requires_grad=True)
    hit = negative.masked_fill(torch.tensor([[False, True]]), -torch.inf)
    scores = Sampled(torch.tensor([0.7]), hit, torch.zeros(2), 101, 0.75)
    gradient = torch.autograd.grad(SAMPLED_LOSSES[loss](scores).sum(), negative)[0]
    assert gradient[0, 0] > 0
    assert gradient[0, 1] == 0
