"""Progress of the training for a person: on a terminal a bar, which stays, else lines."""

from bert4rec.runtime.console import ProgressBar
from bert4rec.runtime.wording import clock, rounded


class Progress(ProgressBar):
    """How far a training is that has `n_steps` in `n_epochs`; `done` were made by earlier parts of the run.

    `examples`: what it learns from, as they are called.
    """

    def __init__(self, n_steps: int, *, n_epochs: int, done: int, examples: str = "sequences") -> None:
        super().__init__(n_steps, done=done, stays=True)
        self._n_epochs, self._examples = n_epochs, examples

    def update(self, step: int, *, epoch: float, loss: float, learning_rate: float, rate: float, left: float) -> None:
        """After `step` steps at `epoch`: `rate` in examples/s (0: not known yet), `left` in seconds."""
        speed = f"  {rounded(rate)} {self._examples}/s" if rate else ""
        place = f"step {step:>{len(str(self._total))}}/{self._total}  epoch {epoch:5.2f}"
        self.show(
            step,
            f"epoch {epoch:.1f}/{self._n_epochs}  loss {loss:.3f}{speed}  {clock(left)} left",
            line=f"{place}  loss {loss:.4f}  lr {learning_rate:.2e}  {clock(left)} left{speed}",
        )
