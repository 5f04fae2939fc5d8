"""Updates of rows that happen in backward, deferred until the gradients were looked at.

TorchRec's fused optimizers update a row as soon as its gradient arrives, so that nobody can refuse it. With this,
backward ends at the looked-up vectors, and goes on into the table when it is told to.
"""

import torch
from torch import Tensor


class DeferredUpdate:
    """Holds the gradients of one step's looked-up vectors."""

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, Tensor]] = []

    def defer(self, vectors: Tensor) -> Tensor:
        """`vectors` as a leaf of its own graph, at which backward ends."""
        if not vectors.requires_grad:
            return vectors
        leaf = vectors.detach().requires_grad_()
        self._held.append((vectors, leaf))
        return leaf

    def gradients(self) -> list[Tensor]:
        """Of all vectors that a loss depends on."""
        return [leaf.grad for _, leaf in self._held if leaf.grad is not None]

    def apply(self) -> None:
        """Go on with backward, into the table."""
        arrived = [(vectors, leaf.grad) for vectors, leaf in self._held if leaf.grad is not None]
        self.discard()
        torch.autograd.backward([vectors for vectors, _ in arrived], [gradient for _, gradient in arrived])

    def discard(self) -> None:
        """What is held never reaches the table."""
        self._held.clear()
