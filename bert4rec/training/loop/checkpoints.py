"""The checkpoints of a training: what is saved when, what is taken back, and which weights are tested in the end."""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from bert4rec.checkpoint.contents import Moments, Owner, RandomState, Weights
from bert4rec.checkpoint.manager import CheckpointManager
from bert4rec.checkpoint.store import read_metadata, verify
from bert4rec.checkpoint.stored_tensors import LATEST, MODEL
from bert4rec.runtime.collectives import all_agree, on_rank_zero
from bert4rec.runtime.errors import DataError, DivergenceError, Interrupted
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.signals import Interruption
from bert4rec.runtime.wording import counted
from bert4rec.sharding.optimizer import Optimizers, are_finite
from bert4rec.training.loop.average import WeightAverage
from bert4rec.training.loop.state import State

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
        self._saved = state.lasting()  # a fresh start needs no checkpoint, and one that is resumed has its own
        self.is_lost = False

    def start_from(self, folder: Path) -> None:
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

    def averaged(self) -> AbstractContextManager[None]:
        """Give the model the weights that are saved as the model for a while; nothing may be saved meanwhile."""
        return self.average.in_place_of_weights() if self.average else nullcontext()

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step` steps; the first process decides."""
        return self._manager.is_due(step)

    def save(self) -> None:
        """Save all that a resumed training needs, unless there is a checkpoint of this state.

        Raises `DivergenceError` for weights that are not finite.
        """
        state = self.state
        if self._manager.last_step == state.step and self._saved == state.lasting():
            return
        self._optimizers.synchronize()
        if not all_agree(are_finite(self._weights.local_parts())):
            raise DivergenceError(f"weights are not finite after {counted(state.step, 'step')}")
        with self._interruption.busy():
            self._manager.save(state.step, self.tensors(), {"state": asdict(state)}, best_step=state.best_step)
        self._saved = state.lasting()

    def wait(self) -> None:
        """Wait until the current checkpoint is written."""
        with self._interruption.busy():
            self._manager.wait()

    def interrupt(self, number: int) -> NoReturn:
        """Save, unless that takes too long, and raise `Interrupted` for the signal `number`."""
        manager, step = self._manager, self.state.step
        manager.wait()
        if manager.last_step != step:
            manager.refuse_to_take_long(self.tensors(), number)
            self.save()
            manager.wait()
        if manager.last_step != step:
            raise Interrupted(number, f"not saved after step {step}: {manager.kept()}")
        raise Interrupted(number, f"saved after step {step}")

    def take_best(self, epoch: float) -> None:
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
