"""The optimizer Muon, for the matrices of transformer blocks."""

from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = 3.4445, -4.775, 2.0315  # of the polynomial that brings all singular values near 1
ITERATIONS = 5
BLOCKS = "encoder.blocks."  # in the names of their weights
LIKE_ADAM = 0.2  # root mean square of a usual update of Adam, per unit of learning rate


class Muon(torch.optim.Optimizer):
    """Move each matrix by its orthogonalized momentum (Jordan et al., "Muon", 2024), with decoupled weight decay.

    An update has the root mean square of one of Adam, so that both take the same learning rate (Liu et al., "Muon is
    Scalable for LLM Training", 2025, section 2.2). It is `torch.optim.Muon` with "match_rms_adamw", but in float32:
    four times as fast on CPU for small matrices, and processes that add gradients in another order stay together.
    """

    def __init__(self, matrices: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        for matrix in (each for group in self.param_groups for each in group["params"]):
            self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all matrices by their gradients, which each of them has."""
        assert closure is None, "the loss is computed before"
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix]["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonalized(matrix.grad.lerp(momentum, MOMENTUM))  # as Nesterov's
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * LIKE_ADAM * max(matrix.shape) ** 0.5)


def orthogonalized(matrix: Tensor) -> Tensor:
    """Return the matrix with its singular values moved near 1, to between about 0.7 and 1.2, and the same vectors.

    These are Newton–Schulz iterations with the coefficients of Jordan et al.
    """
    wide = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    first, third, fifth = COEFFICIENTS
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        square = wide @ wide.mT
        wide = torch.addmm(wide, torch.addmm(square, square, square, beta=third, alpha=fifth), wide, beta=first)
    return wide.mT if matrix.shape[0] > matrix.shape[1] else wide


def is_for_muon(name: str, weight: Tensor) -> bool:
    """Return whether a dense weight is a matrix of a transformer block."""
    return BLOCKS in name and weight.dim() == 2
