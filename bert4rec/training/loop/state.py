"""How far a training is: what a resumed training needs apart from tensors."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from bert4rec.feed.order import Position

Patience: TypeAlias = int | Literal["auto"]

LEAST, SHARE, STEPS = 5, 0.4, 2000  # by `python -m benchmarks.early_stopping`


@dataclass
class State:
    """Holds how far the training is; the same on every process.

    `epochs` are whole ones, `sequences` those of the one after; `validated` is the epoch that was validated last;
    `seconds` are those of all parts of the run, `seconds_by_part` where they went, with what came before and after the
    training; `skipped` steps had a loss or a gradient that was not finite; `updates` are those since the optimizers
    were fresh.
    """

    step: int = 0
    epochs: int = 0
    sequences: int = 0
    validated: float = 0.0
    best_ndcg: float = -1.0
    best_epoch: float = 0.0
    best_step: int = 0
    n_worse: int = 0
    stopped_by: str = ""
    seconds: float = 0.0
    skipped: int = 0
    updates: int = 0
    seconds_by_part: dict[str, float] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        """Return where the next batch starts."""
        return Position(self.epochs, self.sequences, self.step)

    def lasting(self) -> dict[str, Any]:
        """Return all but the clocks: what a checkpoint of the same step may not differ in."""
        return {**asdict(self), "seconds": 0.0, "seconds_by_part": {}}

    def note_validation(self, ndcg: float, epoch: float, *, patience: Patience) -> None:
        """Mark the current weights as the best so far; or stop if there was no better validation for too long."""
        if ndcg > self.best_ndcg:
            self.keep_as_best(ndcg, epoch)
            return
        self.n_worse += 1
        if self.is_stuck(epoch, patience):
            self.stopped_by = self.stopped_by or "patience"

    def is_stuck(self, epoch: float, patience: Patience) -> bool:
        """Return whether early stopping is due at the validation of `epoch`: `patience` of them were no better.

        0: never. "auto": `LEAST` of them, in no less than the share `SHARE` of all epochs so far, since a training of
        hundreds of epochs improves in steps as far apart; and after `STEPS` steps, since a masked model may first learn
        what is popular, and seem to stand still before it learns more.
        """
        if patience == "auto":
            return self.has_waited(epoch, LEAST, SHARE, STEPS)
        return 0 < patience <= self.n_worse

    def has_waited(self, epoch: float, least: int, share: float, steps: int) -> bool:
        """Return whether `least` validations in a row were no better, and the best is `share` of all epochs ago.

        Not in the first `steps`.
        """
        return self.step >= steps and self.n_worse >= least and epoch - self.best_epoch >= share * epoch

    def keep_as_best(self, ndcg: float, epoch: float) -> None:
        """Mark the current weights as the best so far."""
        self.best_ndcg, self.best_epoch, self.best_step, self.n_worse = ndcg, epoch, self.step, 0
