"""One update of the weights."""

import torch
from torch import nn

from bert4rec.feed.batch import AnyBatch
from bert4rec.models.ranking_model import RankingModel
from bert4rec.runtime.collectives import all_agree
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.optimizer import Optimizers, are_finite
from bert4rec.sharding.parallelize import unwrap


class Step:
    """Updates a parallelized `model` by the mean loss over the positions of the *global* batch.

    If the optimizers can skip a step, one with a loss or gradient that is not finite on any process is skipped by all.
    They agree without a message if a gradient of one is a gradient of all; else by one number.
    """

    def __init__(self, model: nn.Module, optimizers: Optimizers, world: Processes, *, precision: str) -> None:
        self.model, self.optimizers, self._world, self._is_bf16 = model, optimizers, world, precision == "bf16"
        self._ranking_model: RankingModel = unwrap(model)

    def __call__(
        self, batch: AnyBatch, n_positions: int, scale: float, following: AnyBatch | None = None
    ) -> tuple[torch.Tensor, str]:
        """Make one step by a batch with `n_positions` to predict on all processes; `scale` is of the learning rates.

        Meanwhile the ids of the `following` batch travel: the next step must be of the same object, or `discard` be
        called. Both batches are on the device.  Return this rank's sum of the loss; and what was not finite, on any
        process, in a skipped step, else "".
        """
        self.optimizers.begin_step(scale)
        if following is not None:
            self._ranking_model.begin_lookups(following)
        with torch.autocast(self._world.device.type, torch.bfloat16, enabled=self._is_bf16):
            loss: torch.Tensor = self.model(batch)
        self._ranking_model.send_ids()
        # Gradients are averaged over the processes; times their number, the average is the sum. A causal model may have
        # nothing to predict.
        factor: float | torch.Tensor = self._world.world_size / max(1, n_positions)
        if self.optimizers.can_skip:  # of a loss that is not finite no gradient may be
            factor = factor + 0 * loss.detach()
        (loss * factor).backward()
        if self.optimizers.can_skip and (problem := self._problem(loss)):
            return loss, problem
        self.optimizers.step()
        return loss, ""

    def discard(self) -> None:
        """Cancel the step by the following batch."""
        self._ranking_model.discard_lookups()

    def _problem(self, loss: torch.Tensor) -> str:
        """Return what is not finite in this step, on any process, as far as this one knows; "" if all is finite."""
        is_finite = are_finite(self.optimizers.gradients())
        if not self.optimizers.gradients_are_of_all:
            is_finite = all_agree(is_finite)
        return "" if is_finite else "a gradient" if are_finite([loss]) else "the loss"
