"""Each loss as written-out arithmetic."""

import math

import pytest
import torch
import torch.nn.functional as F

from bert4rec.models import losses
from bert4rec.models.losses import Sampled, bpr_loss, gbce_loss, sampled_softmax_loss, softmax_loss
from bert4rec.runtime.collectives import Partition

M, V, D = 7, 13, 4


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(M, D), (V, D)]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


TARGETS = torch.tensor([3, 0, 12, -1, 5, -2, 3])


@pytest.mark.parametrize("columns_at_a_time", [1, 5, 10_000])
@pytest.mark.parametrize("scores_at_once", [1, 2 * V, 10_000])
@pytest.mark.parametrize("scale", [1.0, 150.0], ids=["small scores", "scores whose exponentials overflow and vanish"])
def test_softmax_is_cross_entropy_with_its_gradients(
    inputs: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch, scores_at_once: int, columns_at_a_time: int,
    scale: float,
) -> None:  # fmt: skip
    monkeypatch.setattr(losses, "SCORES_AT_ONCE", scores_at_once)
    monkeypatch.setattr(losses, "COLUMNS_AT_A_TIME", columns_at_a_time)
    hidden, vectors = inputs = [(inputs[0].detach() * scale).requires_grad_(), inputs[1]]
    expected = F.cross_entropy(hidden @ vectors.T, TARGETS.clamp(min=-1), reduction="sum", ignore_index=-1)
    loss = softmax_loss(hidden, vectors, TARGETS, Partition())
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    for ours, plain in zip(
        torch.autograd.grad(3 * loss, inputs), torch.autograd.grad(3 * expected, inputs), strict=True
    ):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_hidden_states_meet_a_bias_with_a_one(inputs: list[torch.Tensor]) -> None:
    hidden, vectors = inputs
    expected = F.cross_entropy(
        hidden[:, : D - 2] @ vectors[:, : D - 2].T + vectors[:, D - 2], TARGETS.clamp(min=-1), reduction="sum",
        ignore_index=-1,
    )  # fmt: skip
    loss = softmax_loss(hidden[:, : D - 2], vectors, TARGETS, Partition())
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    for ours, plain in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_under_autocast_products_are_made_in_bf16_and_sums_in_float32(inputs: list[torch.Tensor]) -> None:
    hidden, vectors = (each.detach().bfloat16().float().requires_grad_() for each in inputs)
    expected = F.cross_entropy(
        (hidden @ vectors.T).bfloat16().float(), TARGETS.clamp(min=-1), reduction="sum", ignore_index=-1
    )
    with torch.autocast("cpu", torch.bfloat16):
        loss = softmax_loss(hidden, vectors, TARGETS, Partition())
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)
    plain = torch.autograd.grad(expected, (hidden, vectors))
    for ours, other in zip(torch.autograd.grad(loss, (hidden, vectors)), plain, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, other, rtol=2e-2, atol=2e-2)


def test_nothing_to_predict_costs_nothing(inputs: list[torch.Tensor]) -> None:
    hidden, vectors = inputs
    loss = softmax_loss(hidden[:0], vectors, TARGETS[:0], Partition())
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, vectors)[0].any()


def sampled(
    positive: torch.Tensor, negative: torch.Tensor, log_expected: torch.Tensor | None = None, n_items: int = 101,
    calibration: float = 0.75,
) -> Sampled:  # fmt: skip
    log_expected = torch.zeros(negative.shape[1], dtype=negative.dtype) if log_expected is None else log_expected
    return Sampled(positive, negative, log_expected, n_items, calibration)


def test_sampled_softmax_written_out() -> None:
    positive = torch.tensor([1.0, 0.5])
    negative = torch.tensor([[0.2, -torch.inf], [0.0, 2.0]])
    expected_counts = torch.tensor([0.5, 0.1])  # a negative expected half a time stands for two items
    found = sampled_softmax_loss(sampled(positive, negative, expected_counts.log()))
    first = -math.log(math.exp(1) / (math.exp(1) + math.exp(0.2) / 0.5))
    second = -math.log(math.exp(0.5) / (math.exp(0.5) + math.exp(0) / 0.5 + math.exp(2) / 0.1))
    torch.testing.assert_close(found, torch.tensor([first, second]))


def test_gbce_written_out() -> None:
    """Scores of zero mean the odds of any of the 100 other items."""
    positive, negative = torch.tensor([0.7]) + math.log(100), torch.tensor([[0.3, -1.0]]) + math.log(100)
    rate = 2 / (101 - 1)
    beta = rate * (0.75 * (1 - 1 / rate) + 1 / rate)
    sigmoid = [1 / (1 + math.exp(-x)) for x in (0.7, 0.3, -1.0)]
    expected = -(math.log(sigmoid[0] ** beta) + math.log(1 - sigmoid[1]) + math.log(1 - sigmoid[2])) / 3
    torch.testing.assert_close(gbce_loss(sampled(positive, negative)), torch.tensor([expected]))


def test_bpr_written_out() -> None:
    positive, negative = torch.tensor([0.7]), torch.tensor([[0.3, -1.0]])
    expected = -(math.log(1 / (1 + math.exp(-0.4))) + math.log(1 / (1 + math.exp(-1.7)))) / 2
    torch.testing.assert_close(bpr_loss(sampled(positive, negative)), torch.tensor([expected]))


def test_a_negative_that_is_the_target_has_no_say() -> None:
    positive = torch.tensor([0.7], requires_grad=True)
    negative = torch.tensor([[0.3, 5.0]], requires_grad=True)
    for loss in (sampled_softmax_loss, gbce_loss, bpr_loss):
        hit = negative.masked_fill(torch.tensor([[False, True]]), -torch.inf)
        gradient = torch.autograd.grad(loss(sampled(positive, hit)).sum(), negative)[0]
        assert gradient[0, 0] > 0
        assert gradient[0, 1] == 0
