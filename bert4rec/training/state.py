"""The state of a training: where it is, its loss and speed, its averaged weights, its checkpoints."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from bert4rec.checkpoint.contents import CheckpointManager, Moments, Owner, RandomState, Weights
from bert4rec.checkpoint.run_folder import read_metadata
from bert4rec.checkpoint.store import verify
from bert4rec.checkpoint.stored_tensors import LATEST, MODEL
from bert4rec.feed.batches import Position
from bert4rec.runtime.collectives import all_agree, on_rank_zero
from bert4rec.runtime.errors import DataError, DivergenceError, Interrupted, pluralize
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.signals import Interruption
from bert4rec.sharding.optimizer import Optimizers, are_finite
from bert4rec.sharding.torchrec_internals import copy_of, local_parts

Patience: TypeAlias = int | Literal["auto"]

WARM_STEPS = 10  # left out of sequences_per_second
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

    def without_timers(self) -> dict[str, Any]:
        """Return all but the clocks: what a checkpoint of the same step may not differ in."""
        return {**asdict(self), "seconds": 0.0, "seconds_by_part": {}}

    def note_validation(self, ndcg: float, epoch: float, *, patience: Patience) -> None:
        """Mark the current weights as the best so far; or stop if there was no better validation for too long."""
        if ndcg > self.best_ndcg:
            self.mark_best(ndcg, epoch)
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
            return self.patience_exceeded(epoch, LEAST, SHARE, STEPS)
        return 0 < patience <= self.n_worse

    def patience_exceeded(self, epoch: float, least: int, share: float, steps: int) -> bool:
        """Return whether `least` validations in a row were no better, and the best is `share` of all epochs ago.

        Not in the first `steps`.
        """
        return self.step >= steps and self.n_worse >= least and epoch - self.best_epoch >= share * epoch

    def mark_best(self, ndcg: float, epoch: float) -> None:
        """Mark the current weights as the best so far."""
        self.best_ndcg, self.best_epoch, self.best_step, self.n_worse = ndcg, epoch, self.step, 0


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
            raise DivergenceError(f"the training loss is {mean} after {pluralize(self._steps, 'step')}")
        return mean

    @property
    def rate(self) -> float:
        """Return sequences/s on all processes together; 0 during the first steps."""
        return self._sequences / self._seconds if self._seconds else 0.0


class Stopwatch:
    """Adds up `seconds` by part; the innermost of nested parts counts."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self._running: list[str] = []
        self._since = time.monotonic()

    def add(self, part: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count the block for `part`."""
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
    def using_average(self) -> Iterator[None]:
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


logger = logging.getLogger(__name__)


class Checkpoints:
    """Saves and restores a training: `manager` writes, the owners of its parts give and take them.

    With `average_age` the model that is saved and tested is a mean of the weights (`WeightAverage`). `is_lost`: the
    weights that are to be tested are on no disk. Every process makes the same calls.
    """

    def __init__(
        self, model: nn.Module, optimizers: Optimizers, world: Processes, manager: CheckpointManager, *, state: State,
        interruption: Interruption, average_age: float = 0.0,
    ) -> None:  # fmt: skip
        self.state, self._optimizers = state, optimizers
        self._weights = Weights(model, LATEST if average_age else MODEL)
        self.average = WeightAverage(model, age=average_age) if average_age else None
        self._moments, self._random = Moments(optimizers), RandomState(world)
        self._owners: list[Owner] = [self._weights, self._moments, self._random]
        self._owners += [self.average] if self.average else []
        self._manager, self._interruption = manager, interruption
        self._saved = state.without_timers()  # a fresh start needs no checkpoint, and one that is resumed has its own
        self.is_lost = False

    def load_weights_of(self, folder: Path) -> None:
        """Load the model of a verified checkpoint, and nothing else of it."""
        self._weights.load(folder)
        if self.average:
            self.average.restart()

    def restore(self, folder: Path, *, optimizers: bool, random: bool) -> None:
        """Load the weights, the states of `optimizers` and dropout's `random` states of a verified checkpoint."""
        self._weights.load_latest(folder)
        if self.average:
            self.average.load(folder)
        if optimizers:
            self._moments.load(folder)
        if random:
            self._random.load(folder)
        self.state.updates = self.state.updates if optimizers else 0
        self._optimizers.set_steps(self.state.updates)

    def using_average(self) -> AbstractContextManager[None]:
        """Give the model the weights that are saved as the model for a while; nothing may be saved meanwhile."""
        return self.average.using_average() if self.average else nullcontext()

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step` steps; the first process decides."""
        return self._manager.is_due(step)

    def save(self) -> None:
        """Save all that a resumed training needs, unless there is a checkpoint of this state.

        Raises `DivergenceError` for weights that are not finite.
        """
        state = self.state
        if self._manager.last_step == state.step and self._saved == state.without_timers():
            return
        self._optimizers.synchronize()
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
        """Load the best weights by validation; if they are lost, the best that are not, or the last ones."""
        state, expected = self.state, self._manager.path_of(self.state.best_step)
        best = on_rank_zero(lambda: self._manager.best(state.best_step))
        try:
            if best is None:
                raise DataError(f"{expected}: could not be saved")
            verify(best)
            self._weights.load(best)
        except DataError as error:
            logger.info(f"{error}; the last weights are tested in place of the best")
            state.best_step, state.best_epoch = state.step, epoch
            self.is_lost = self._manager.last_step != state.step
            if self.average:
                self.average.exchange()
            return
        if best.name != expected.name:
            logger.info(f"{expected}: could not be saved; the best saved checkpoint is tested instead: {best.name}")
            saved = State(**read_metadata(best)["state"])
            state.best_step, state.best_epoch, state.best_ndcg = saved.best_step, saved.best_epoch, saved.best_ndcg

    def tensors(self) -> dict[str, Any]:
        """Return all tensors of a checkpoint."""
        return {name: value for owner in self._owners for name, value in owner.tensors().items()}
