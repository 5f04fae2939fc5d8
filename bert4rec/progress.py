"""Progress of the training for a person: a bar on a terminal, lines under a launcher, from the first process only."""

import os
import sys
import time

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Says how far training is, with loss, learning rate, sequences/s and the time left."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._n_steps = shown, 0
        self._bar: tqdm[None] | None = None
        self._last_line = time.monotonic()

    def begin(self, n_steps: int, *, done: int) -> None:
        """Of `n_steps`, `done` were made by earlier parts of the run."""
        self._n_steps, self._last_line = n_steps, time.monotonic()
        if self._shown and sys.stderr.isatty():
            self._bar = tqdm(total=n_steps, initial=done, unit="step", dynamic_ncols=True)

    def is_due(self) -> bool:
        """Whether `update` would say something now: asked first, since the loss costs a synchronisation."""
        return time.monotonic() - self._last_line >= (0.5 if self._bar else SECONDS_BETWEEN_LINES)

    def update(self, step: int, *, epoch: float, loss: float, learning_rate: float, rate: float, left: float) -> None:
        """After `step` steps at `epoch`: `rate` in sequences/s (0: not known yet), `left` in seconds."""
        self._last_line = time.monotonic()
        speed = f"  {rate:.0f} sequences/s" if rate else ""
        figures = f"loss {loss:.4f}  lr {learning_rate:.2e}{speed}"
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            self._bar.set_postfix_str(f"epoch {epoch:.1f}  {figures}")
        elif self._shown:
            self.say(f"step {step}/{self._n_steps}  epoch {epoch:.2f}  {figures}  {_clock(left)} left")

    def say(self, text: str) -> None:
        """A line of its own, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text)
        elif self._shown:
            show(text)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()


def show(text: str) -> None:
    """A line for the person; where nobody reads any more (`| head`, a closed terminal) that is no reason to end."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the process


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
