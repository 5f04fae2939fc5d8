"""The mean of the weights over the last steps of a training, which is what is validated, tested and saved as the model.

At a learning rate that does not fall the weights of single steps move around a place that their mean is nearer to, so
that the mean ranks better, and a validation of it says more: that of the weights themselves picks the best of their
noise (Polyak and Juditsky 1992; Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better
Generalization").
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from torch import nn

from bert4rec.checkpoint.contents import Owner, Weights
from bert4rec.sharding.sharded_tensors import copy_of, local_parts


class WeightAverage(Owner):
    """The mean of the weights of a `model`, of mean age `age` as a share of the steps so far; 0 < `age` < 0.5.

    The mean of weights at steps 1 … t with weights that grow as a power of the step, such that they are `age` × t
    steps old on average (Shamir and Zhang 2013, "Stochastic Gradient Descent for Non-smooth Optimization", section 4:
    polynomial-decay averaging). So it has nothing to be tuned: at any time what lies further back has been forgotten.
    It depends on the weights and the number of the step alone, and every process holds that of what it holds.
    """

    def __init__(self, model: nn.Module, *, age: float) -> None:
        weights = Weights(model).tensors()
        self._power = 1 / age - 2
        self._mean = {name: copy_of(value) for name, value in weights.items()}
        # What this process holds: of the mean, and of the weights themselves, which never move in memory.
        means, current = (chain.from_iterable(map(local_parts, of.values())) for of in (self._mean, weights))
        self._parts = [(mean, weight.detach()) for mean, weight in zip(means, current, strict=True)]

    def tensors(self) -> dict[str, Any]:
        """Return the mean as the model of a checkpoint."""
        return self._mean

    def note(self, step: int) -> None:
        """Take the weights after `step`, counted from 1, into the mean."""
        share = (self._power + 1) / (step + self._power)
        for mean, weight in self._parts:
            mean.lerp_(weight, share)

    def restart(self) -> None:
        """Forget all weights but the current ones."""
        for mean, weight in self._parts:
            mean.copy_(weight)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Give the model the mean as its weights for a while; nothing may be trained or saved meanwhile."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def exchange(self) -> None:
        """Exchange the weights of the model and the mean."""
        for mean, weight in self._parts:
            kept = mean.clone()
            mean.copy_(weight)
            weight.copy_(kept)
