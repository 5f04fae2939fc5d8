"""Updates of rows that happen in backward, deferred until the gradients were looked at.

TorchRec's fused optimizers update a row as soon as its gradient arrives, so that nobody can refuse it. With this,
backward ends at the looked-up vectors, and continues into the table in `apply`.
"""

import torch
from torch import Tensor


class DeferredUpdate:
    """The looked-up vectors of one step, with the leaves at which their gradients arrive."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def defer(self, vectors: Tensor) -> Tensor:
        """Return `vectors` as a leaf of its own graph, at which backward ends."""
        if not vectors.requires_grad:
            return vectors
        leaf = vectors.detach().requires_grad_()
        self._pairs.append((vectors, leaf))
        return leaf

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all vectors that a loss depends on."""
        return [leaf.grad for _, leaf in self._pairs if leaf.grad is not None]

    def apply(self) -> None:
        """Continue backward, into the table."""
        arrived = [(vectors, leaf.grad) for vectors, leaf in self._pairs if leaf.grad is not None]
        self.discard()
        torch.autograd.backward([vectors for vectors, _ in arrived], [gradient for _, gradient in arrived])

    def discard(self) -> None:
        """Discard the gradients before they reach the table."""
        self._pairs.clear()
