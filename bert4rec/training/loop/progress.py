"""Progress of the training for a person: a bar on a terminal, lines under a launcher, from the first process only."""

import sys
import time

from bert4rec.runtime.console import Bar, show
from bert4rec.runtime.wording import clock, rounded

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Says how far training is, with loss, sequences/s and the time left."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._n_steps, self._n_epochs = shown, 0, 0
        self._bar: Bar | None = None
        self._last_line = time.monotonic()

    def begin(self, n_steps: int, *, n_epochs: int, done: int) -> None:
        """Of `n_steps` in `n_epochs`, `done` were made by earlier parts of the run."""
        self._n_steps, self._n_epochs, self._last_line = n_steps, n_epochs, time.monotonic()
        if self._shown and sys.stderr.isatty():
            self._bar = Bar(n_steps, done=done)

    def is_due(self) -> bool:
        """Whether `update` would say something now: asked first, since the loss costs a synchronisation."""
        return time.monotonic() - self._last_line >= (0.5 if self._bar else SECONDS_BETWEEN_LINES)

    def update(self, step: int, *, epoch: float, loss: float, learning_rate: float, rate: float, left: float) -> None:
        """After `step` steps at `epoch`: `rate` in sequences/s (0: not known yet), `left` in seconds."""
        self._last_line = time.monotonic()
        speed = f"  {rounded(rate)} sequences/s" if rate else ""
        if self._bar is not None:
            figures = f"epoch {epoch:.1f}/{self._n_epochs}  loss {loss:.3f}{speed}  {clock(left)} left"
            self._bar.show(step, figures)
        elif self._shown:
            place = f"step {step:>{len(str(self._n_steps))}}/{self._n_steps}  epoch {epoch:5.2f}"
            self.say(f"{place}  loss {loss:.4f}  lr {learning_rate:.2e}  {clock(left)} left{speed}")

    def say(self, text: str) -> None:
        """A line of its own, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text)
        elif self._shown:
            show(text)

    def close(self) -> None:
        """End the bar, which stays."""
        if self._bar is not None:
            self._bar.close(stays=True)
            self._bar = None
