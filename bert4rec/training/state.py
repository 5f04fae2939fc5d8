"""The state of a training: its parts are measured, its checkpoints saved and restored."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

from torch import nn

from bert4rec.checkpoint.contents import CheckpointManager, Weights, load_random_states, moments, random_states
from bert4rec.checkpoint.run_folder import read_metadata
from bert4rec.checkpoint.store import load, verify
from bert4rec.checkpoint.stored_tensors import LATEST, MODEL_PREFIX
from bert4rec.feed.batches import Position
from bert4rec.runtime.collectives import all_agree, on_rank_zero
from bert4rec.runtime.errors import DataError, DivergenceError, Interrupted, pluralize
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.signals import Interruption
from bert4rec.sharding.optimizer import Optimizers, WeightAverage, are_finite

Patience: TypeAlias = int | Literal["auto"]

LEAST_LOOK_BACK, LOOK_BACK_SHARE, LOOK_BACK_STEPS = 5, 0.4, 2000  # chosen with `python -m benchmarks.early_stopping`
logger = logging.getLogger(__name__)


@dataclass
class State:
    """The progress of the training; it is the same on every rank.

    `epochs` counts completed epochs, `sequences` those of the current epoch. `validated` is the epoch of the last
    validation. `seconds` is the training time of all sessions of the run; `seconds_by_part` divides the time by
    activity, and also counts what happens before and after the training. `updates` counts the optimizer steps since the
    optimizers were initialized. `prior` are the weights of the prior from the last validation, `best_prior` those of
    the best one.
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
    updates: int = 0
    seconds_by_part: dict[str, float] = field(default_factory=dict)
    prior: dict[str, list[float]] = field(default_factory=dict)
    best_prior: dict[str, list[float]] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        """Return where the next batch starts."""
        return Position(self.epochs, self.sequences, self.step)

    def without_timers(self) -> dict[str, Any]:
        """Return the state with all times set to zero; two checkpoints of one state are equal in it."""
        return {**asdict(self), "seconds": 0.0, "seconds_by_part": {}}

    def note_validation(self, ndcg: float, epoch: float, *, patience: Patience) -> None:
        """Mark the current weights as the best if `ndcg` is higher; else stop the training if patience is exceeded."""
        if ndcg > self.best_ndcg:
            self.mark_best(ndcg, epoch)
            return
        self.n_worse += 1
        if self.is_stuck(epoch, patience):
            self.stopped_by = self.stopped_by or "patience"

    def is_stuck(self, epoch: float, patience: Patience) -> bool:
        """Return whether early stopping is due at the validation of `epoch`: `patience` validations were no better.

        0: never. "auto": at least `LEAST_LOOK_BACK` validations were no better, and they cover at least the share
        `LOOK_BACK_SHARE` of all epochs so far, since a training of hundreds of epochs improves at long intervals. Never
        in the first `LOOK_BACK_STEPS` steps: a masked model may first learn only the popularity of items, and stay on
        that plateau for a while.
        """
        if patience == "auto":
            return self.patience_exceeded(epoch, LEAST_LOOK_BACK, LOOK_BACK_SHARE, LOOK_BACK_STEPS)
        return 0 < patience <= self.n_worse

    def patience_exceeded(self, epoch: float, least: int, share: float, steps: int) -> bool:
        """Return whether `least` validations in a row were no better, and the best is `share` of all epochs ago.

        False during the first `steps` steps.
        """
        return self.step >= steps and self.n_worse >= least and epoch - self.best_epoch >= share * epoch

    def earliest_stop(self, epoch: float, patience: Patience, *, every: float, n_steps: float) -> float:
        """Return the first epoch at which `patience` ends the training if nothing gets better from `epoch` on.

        `every`: epochs between two validations; `n_steps`: steps of an epoch. Infinite without patience.

        >>> State(best_epoch=6.0, n_worse=1).earliest_stop(8.0, 3, every=2, n_steps=100)
        12.0
        """
        if patience == 0:
            return math.inf
        n_more = max(0, (LEAST_LOOK_BACK if patience == "auto" else patience) - self.n_worse)
        by_validations = epoch + n_more * every
        return (
            max(by_validations, self.best_epoch / (1 - LOOK_BACK_SHARE), LOOK_BACK_STEPS / n_steps)
            if patience == "auto"
            else by_validations
        )

    def mark_best(self, ndcg: float, epoch: float) -> None:
        """Mark the current weights as the best so far."""
        self.best_ndcg, self.best_epoch, self.best_step, self.n_worse = ndcg, epoch, self.step, 0
        self.best_prior = self.prior


class Stopwatch:
    """Add up `seconds` by part; nested time counts for the innermost part only."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self._running: list[str] = []
        self._since = time.monotonic()

    def add(self, part: str, seconds: float) -> None:
        """Add `seconds` that the caller measured."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count the time of the `with` block for `part`."""
        self._read()
        self._running.append(part)
        try:
            yield
        finally:
            self._read()
            self._running.pop()

    def _read(self) -> None:
        now = time.monotonic()
        if self._running:
            self.add(self._running[-1], now - self._since)
        self._since = now


class Checkpoints:
    """Save and restore a training; `manager` writes the tensors.

    With `average_age`, the model that is saved and tested is the moving average of the weights (`WeightAverage`).
    `is_lost`: the weights to test could not be saved. Every rank makes the same calls.
    """

    def __init__(
        self, model: nn.Module, optimizers: Optimizers, world: Processes, manager: CheckpointManager, *, state: State,
        interruption: Interruption, average_age: float = 0.0,
    ) -> None:  # fmt: skip
        self.state, self._optimizers, self._world = state, optimizers, world
        self._weights = Weights(model, LATEST if average_age else MODEL_PREFIX)
        self.average = WeightAverage(Weights(model).tensors(), age=average_age) if average_age else None
        self._manager, self._interruption, self.is_due = manager, interruption, manager.is_due
        self._saved = state.without_timers()  # a new run needs no checkpoint yet, and a resumed run has one
        self.is_lost = False

    def load_weights_of(self, folder: Path) -> None:
        """Load only the model of a verified checkpoint."""
        self._weights.load(folder)
        if self.average:
            self.average.restart()

    def restore(self, folder: Path, *, random: bool) -> None:
        """Load the weights and optimizer states of a verified checkpoint and, with `random`, its random states."""
        self._weights.load(folder, latest=True)
        if self.average:
            load(folder, self.average.tensors())
        load(folder, moments(self._optimizers))
        if random:
            load_random_states(folder, self._world)
        self._optimizers.set_steps(self.state.updates)

    def using_average(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the averaged weights, if any; do not save inside it."""
        return self.average.using_average() if self.average else nullcontext()

    def save(self) -> None:
        """Save everything that a resumed training needs, unless this state has a checkpoint.

        Raises `DivergenceError` if weights are not finite.
        """
        state = self.state
        if self._manager.last_step == state.step and self._saved == state.without_timers():
            return
        if not all_agree(are_finite(self._weights.local_parts())):
            raise DivergenceError(f"weights are not finite after {pluralize(state.step, 'step')}")
        with self._interruption.busy():
            self._manager.save(state.step, self.tensors(), {"state": asdict(state)}, best_step=state.best_step)
        self._saved = state.without_timers()

    def wait(self) -> None:
        """Wait until the current checkpoint is written."""
        with self._interruption.busy():
            self._manager.wait()

    def interrupt(self, number: int) -> NoReturn:
        """Save, unless that takes too long, and raise `Interrupted` for the signal `number`."""
        manager, step = self._manager, self.state.step
        manager.wait()
        if manager.last_step != step:
            manager.require_time_to_save(self.tensors(), number)
            self.save()
            manager.wait()
        if manager.last_step != step:
            raise Interrupted(number, f"not saved after step {step}: {manager.kept()}")
        raise Interrupted(number, f"saved after step {step}")

    def load_best(self, epoch: float) -> None:
        """Load the best weights by validation; if they are lost, the best saved ones, or keep the last ones."""
        state, expected = self.state, self._manager.path_of(self.state.best_step)
        best = on_rank_zero(lambda: self._manager.best(state.best_step))
        try:
            if best is None:
                raise DataError(f"{expected}: could not be saved")
            verify(best)
            self._weights.load(best)
        except DataError as error:
            logger.warning(f"{error}; the last weights are tested instead of the best")
            state.best_step, state.best_epoch, state.best_prior = state.step, epoch, state.prior
            self.is_lost = self._manager.last_step != state.step
            if self.average:
                self.average.exchange()
            return
        if best.name != expected.name:
            logger.warning(f"{expected}: could not be saved; the best saved checkpoint is tested instead: {best.name}")
            saved = State(**read_metadata(best)["state"])
            state.best_step, state.best_epoch, state.best_ndcg = saved.best_step, saved.best_epoch, saved.best_ndcg
            state.best_prior = saved.best_prior

    def tensors(self) -> dict[str, Any]:
        """Return all tensors of a checkpoint."""
        tensors = self._weights.tensors() | moments(self._optimizers) | random_states(self._world)
        return tensors | (self.average.tensors() if self.average else {})
