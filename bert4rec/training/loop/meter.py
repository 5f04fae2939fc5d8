"""What a training measures of itself: its loss and its speed."""

import math

import torch
import torch.distributed as dist

from bert4rec.runtime.errors import DivergenceError
from bert4rec.runtime.wording import counted

WARM_STEPS = 10  # left out of sequences_per_second


class Meter:
    """Measures the mean loss since it was last read, and the speed of the training steps alone."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._steps, self._sequences, self._seconds = 0, 0, 0.0
        self.unread_positions = 0

    def add(self, loss: torch.Tensor, n_positions: int, n_sequences: int, seconds: float) -> None:
        """Add a step: this rank's loss sum, the global batch's positions and sequences, the seconds it took."""
        self._loss += loss.detach()
        self.unread_positions += n_positions
        self._steps += 1
        if self._steps > WARM_STEPS:
            self._sequences += n_sequences
            self._seconds += seconds

    def read_loss(self) -> float:
        """Return the mean over all positions of all processes; every process calls this at the same step.

        Raises `DivergenceError`, on every process, for a loss that is not finite.
        """
        dist.all_reduce(self._loss)
        mean = float(self._loss) / self.unread_positions
        self._loss.zero_()
        self.unread_positions = 0
        if not math.isfinite(mean):
            raise DivergenceError(f"the training loss is {mean} after {counted(self._steps, 'step')}")
        return mean

    @property
    def rate(self) -> float:
        """Return sequences/s on all processes together; 0 during the first steps."""
        return self._sequences / self._seconds if self._seconds else 0.0
