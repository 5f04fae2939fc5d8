"""The training loop: steps, progress, validation, checkpoints."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bert4rec.checkpoint.contents import load_optimizers, load_random_state, load_weights, tensors_of, weights_in
from bert4rec.checkpoint.manager import Keeper
from bert4rec.checkpoint.store import read_facts, verify
from bert4rec.config.tables import Training
from bert4rec.dataset.schema import PAD_ID
from bert4rec.evaluation.ranker import Metrics
from bert4rec.feed.batch import Batch
from bert4rec.feed.batches import TrainingBatches
from bert4rec.feed.order import Position
from bert4rec.report.log import MetricsLog
from bert4rec.runtime.collectives import all_agree, all_reduce_min, on_rank_zero
from bert4rec.runtime.errors import DataError, DivergenceError, Interrupted
from bert4rec.runtime.memory import release_free_memory
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.signals import SIGNALS, Interruption
from bert4rec.runtime.wording import counted, rounded
from bert4rec.sharding.optimizer import Optimizers, are_finite, learning_rate_scale
from bert4rec.training.meter import Meter
from bert4rec.training.progress import Progress


@dataclass
class State:
    """How far the training is; the same on every process. It goes on from here after a break.

    `epochs` are whole ones, `sequences` those of the one after; `validated` is the one that was validated last;
    `seconds` are those of all parts of the run; `skipped` steps had a loss or a gradient that was not finite;
    `updates` are those since the optimizers were fresh.
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

    @property
    def position(self) -> Position:
        """Where the batches go on."""
        return Position(self.epochs, self.sequences, self.step)


class Trainer:
    """Trains a parallelized `model` on `batches`, from a `state` on, with which they begin.

    `measure` gives the validation metrics of the model as it is (`{}` where there is nobody to validate on), and calls
    what it is given between two batches. `log` is None on all processes but the first, `keeper` writes the checkpoints.
    Every process of the run makes the same calls.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        batches: TrainingBatches,
        *,
        settings: Training,
        world: Processes,
        measure: Callable[[Callable[[], None]], Metrics],
        keeper: Keeper,
        progress: Progress,
        log: MetricsLog | None,
        interruption: Interruption | None = None,
        state: State | None = None,
    ) -> None:
        self._model, self._optimizers, self._settings, self._world = model, optimizers, settings, world
        self._measure, self._log, self._progress = measure, log, progress
        self._keeper, self._interruption = keeper, interruption or Interruption()
        self.state, self.meter = state or State(), Meter(world.device)
        self._saved = self._lasting()
        self._is_done, self.is_lost = False, False  # is_lost: the weights to be tested are on no disk
        self._batches, self._n_sequences = batches, batches.n_sequences
        self._n_steps = batches.start.steps + len(batches)
        self._earlier, self._began = self.state.seconds, time.monotonic()

    def fit(self) -> None:
        """Train until epochs, time or patience are used up, then take the weights that were best on validation.

        Raises `DivergenceError` for a loss that is not finite, `Interrupted` after a signal, when all is saved.
        """
        self._began = time.monotonic()
        settings = self._settings
        self._progress.begin(self._n_steps, n_epochs=settings.n_epochs, done=self.state.step)
        self._progress.say(
            f"training on {counted(self._world.world_size, 'process')} ({self._world.device.type}): at most "
            f"{counted(settings.n_epochs, 'epoch')} of {counted(self._batches.steps_per_epoch, 'step')}"
        )
        on_gpu = self._world.device.type == "cuda"
        batches = self._batches.batches(num_workers=settings.num_workers, pin_memory=on_gpu)
        self._end_epoch()  # which an earlier part of the run may not have come to
        while not (self.state.stopped_by or self.state.epochs >= settings.n_epochs):
            self._train_epoch(itertools.islice(batches, self._batches.steps_of(self.state.epochs)))
            self._end_epoch()
        self.state.stopped_by = self.state.stopped_by or "n_epochs"
        with self._interruption.busy():
            self._keeper.wait()
        self._progress.close()
        self._progress.say(f"stopped by {self.state.stopped_by} after {counted(self.epoch, 'epoch')}")
        self._is_done = True
        self._take_best()

    def _take_best(self) -> None:
        """The weights that were best on validation; where they are lost the best that are not, or the last ones."""
        state, wanted = self.state, self._keeper.path_of(self.state.best_step)
        best = on_rank_zero(lambda: self._keeper.best(state.best_step))
        try:
            if best is None:
                raise DataError(f"{wanted}: could not be saved")
            verify(best)
            load_weights(self._model, best)
        except DataError as error:
            self._progress.say(f"{error}; the last weights are tested in place of the best")
            state.best_step, state.best_epoch = state.step, self.epoch
            self.is_lost = self._keeper.last_step != state.step
            return
        if best.name != wanted.name:
            self._progress.say(f"{wanted}: could not be saved; the best that could is tested in its place: {best.name}")
            then = State(**read_facts(best)["state"])
            state.best_step, state.best_epoch, state.best_ndcg = then.best_step, then.best_epoch, then.best_ndcg

    @property
    def epoch(self) -> float:
        """Epochs so far, with the part of the one that is not whole."""
        return self.state.epochs + self.state.sequences / self._n_sequences

    def restore(self, folder: Path, *, optimizers: bool, random: bool) -> None:
        """Take the weights, and what is wanted besides, of a checkpoint that was verified."""
        load_weights(self._model, folder)
        if optimizers:
            load_optimizers(self._optimizers, folder, n_updates=self.state.updates)
        else:
            self.state.updates = 0
        if random:
            load_random_state(self._world, folder)

    def _train_epoch(self, batches: Iterator[Batch]) -> None:
        """All steps that are left of an epoch, or as many as there is time for."""
        self._model.train()
        began = time.monotonic()
        for batch in batches:
            agreed = self._agree(batch)
            loss = self._train_step(batch.to(self._world.device), agreed.positions)
            self.state.step += 1
            self.state.sequences += batch.n_sequences
            now = time.monotonic()
            self.state.seconds = self._seconds()
            if loss is not None:
                self.state.updates = self._optimizers.n_updates
                self.meter.add(loss, agreed.positions, batch.n_sequences, now - began)  # waiting for the loader counts
            if agreed.say:
                self._say()
            if agreed.interrupted:
                self._leave(agreed.interrupted)
            if agreed.save and self.state.sequences < self._n_sequences:  # else the end of the epoch is to be saved
                self._save()
                now = time.monotonic()
            began = now
            if agreed.out_of_time:
                self.state.stopped_by = "max_minutes"
                break
        if self.state.sequences == self._n_sequences:
            self.state.epochs, self.state.sequences = self.state.epochs + 1, 0

    def _end_epoch(self) -> None:
        """Validate, if it is time to, and save."""
        self._say()
        self._validate_if_due()
        self._save()

    def _agree(self, batch: Batch | None = None) -> "Agreed":
        """What all processes know together: positions to predict; to report or save now; to stop, for what.

        One small message between the hosts' CPUs, so that a GPU need not be waited for.
        """
        minutes = self._seconds() / 60
        signals = [self._interruption.number == number for number in SIGNALS]
        first = self._world.is_first and batch is not None
        mine = [
            0 if batch is None else (batch.targets != PAD_ID).sum(),
            first and self._progress.is_due(),
            0 < self._settings.max_minutes <= minutes,
            first and self._keeper.is_due(self.state.step + 1),
            *signals,
        ]
        together = torch.tensor(mine, dtype=torch.int64)
        dist.all_reduce(together)
        self._interruption.answered()
        positions, *others = together.tolist()
        say, out_of_time, save, *received = map(bool, others)
        interrupted = next((number for number, is_it in zip(SIGNALS, received, strict=True) if is_it), 0)
        return Agreed(positions, say, out_of_time, save, interrupted)

    def leave_if_asked(self) -> None:
        """Between two batches of an evaluation: raise `Interrupted` on all processes where one has got a signal."""
        if number := self._agree().interrupted:
            self._leave(number)

    def _leave(self, number: int) -> None:
        """Save, unless that takes too long, and raise `Interrupted`."""
        if self._is_done:  # the weights are not those of the last step any more
            raise Interrupted(number, "the training is done and saved, its test is still to come")
        self._keeper.wait()
        if self._keeper.last_step != self.state.step:
            self._keeper.refuse_to_take_long(self._tensors(), number)
            self._save()
            self._keeper.wait()
        if self._keeper.last_step != self.state.step:
            raise Interrupted(number, f"not saved after step {self.state.step}: {self._keeper.kept()}")
        raise Interrupted(number, f"saved after step {self.state.step}")

    def _train_step(self, batch: Batch, n_positions: int) -> torch.Tensor | None:
        """One update by the mean loss over the `n_positions` of the *global* batch.

        This rank's sum of the loss; None where the step was left out.
        """
        self._optimizers.begin_step(self._learning_rate_scale())
        bf16 = self._settings.precision == "bf16"
        with torch.autocast(self._world.device.type, torch.bfloat16, enabled=bf16):
            loss: torch.Tensor = self._model(batch)
        # Gradients are averaged over the processes; times their number, the average is the sum.
        (loss * (self._world.world_size / max(1, n_positions))).backward()  # a causal model may have nothing to predict
        if self._settings.max_skipped_steps and (problem := self._problem(loss)):
            self._skip(problem)
            return None
        self._optimizers.step()
        return loss

    def _problem(self, loss: torch.Tensor) -> str:
        """What is not finite in this step, on any of the processes; "" where all is."""
        checks = {"the loss": [loss], "a gradient": self._optimizers.gradients()}
        mine = next((number for number, tensors in enumerate(checks.values()) if not are_finite(tensors)), len(checks))
        return [*checks, ""][all_reduce_min(mine)]

    def _skip(self, problem: str) -> None:
        self.state.skipped += 1
        skipped, budget = self.state.skipped, self._settings.max_skipped_steps
        self._progress.say(f"step {self.state.step + 1}: {problem} is not finite, skipped ({skipped} of {budget})")
        if skipped > budget:
            raise DivergenceError(f"{skipped} steps were not finite, training.max_skipped_steps = {budget}")

    def _validate_if_due(self) -> None:
        state, settings = self.state, self._settings
        is_last = state.epochs >= settings.n_epochs or state.stopped_by == "max_minutes"
        is_due = state.sequences == 0 and state.epochs % settings.eval_every_n_epochs == 0
        if (is_last or is_due) and state.validated != self.epoch:
            self._validate()
            state.validated = self.epoch

    def _validate(self) -> None:
        """Measure; remember whether the weights are the best so far, count if they are not."""
        state, metrics = self.state, self._measure(self.leave_if_asked)
        ndcg = metrics["full"]["NDCG@10"] if metrics else 0.0
        if self._log and metrics:
            self._log.add("validation", state.step, epoch=self.epoch, **metrics)
            hit_rate = metrics["full"]["HR@10"]
            self._progress.say(
                f"epoch {rounded(self.epoch)}  validation, full catalogue  HR@10 {hit_rate:.4f}  NDCG@10 {ndcg:.4f}"
            )
        if ndcg > state.best_ndcg or not metrics:
            state.best_ndcg, state.best_epoch, state.best_step, state.n_worse = ndcg, self.epoch, state.step, 0
            return
        state.n_worse += 1
        if state.n_worse == self._settings.patience:
            state.stopped_by = state.stopped_by or "patience"

    def _save(self) -> None:
        """A checkpoint of all that there is to go on from. Raises `DivergenceError` for weights that are no numbers."""
        if self._keeper.last_step == self.state.step and self._saved == self._lasting():
            return
        tensors = self._tensors()
        if not all_agree(are_finite(weights_in(tensors))):
            raise DivergenceError(f"weights are not finite after {counted(self.state.step, 'step')}")
        with self._interruption.busy():
            self._keeper.save(self.state.step, tensors, {"state": asdict(self.state)}, best_step=self.state.best_step)
        self._saved = self._lasting()

    def _lasting(self) -> dict[str, Any]:
        """The state, without the clock."""
        return {**asdict(self.state), "seconds": 0.0}

    def _tensors(self) -> dict[str, Any]:
        return tensors_of(self._model, self._optimizers, self._world)

    def _say(self) -> None:
        """Loss and speed since the last time, to the person and to the log; tidies up as well."""
        release_free_memory()
        if not self.meter.unread_positions:
            return
        loss, state, rate = self.meter.read_loss(), self.state, self.meter.rate
        if self._log is None:
            return
        learning_rate = self._settings.learning_rate * self._learning_rate_scale()
        here = max(1, state.step - (self._n_steps - len(self._batches)))  # steps of this part of the run
        left = (time.monotonic() - self._began) * (len(self._batches) / here - 1)
        if self._settings.max_minutes:
            left = min(left, 60 * self._settings.max_minutes - self._seconds())
        self._progress.update(
            state.step, epoch=self.epoch, loss=loss, learning_rate=learning_rate, rate=rate, left=max(0.0, left)
        )
        speed = {"sequences_per_second": rate} if rate else {}
        self._log.add("train", state.step, epoch=self.epoch, loss=loss, learning_rate=learning_rate, **speed)

    def _seconds(self) -> float:
        """Of all parts of the run."""
        return self._earlier + time.monotonic() - self._began

    def _learning_rate_scale(self) -> float:
        """By the sequences seen, in global batches of now: no jump where those of an earlier part had another size."""
        settings = self._settings
        per_step = settings.per_device_train_batch_size * self._world.world_size
        return learning_rate_scale(
            self.epoch * self._n_sequences / per_step,
            n_steps=settings.n_epochs * self._n_sequences / per_step,
            schedule=settings.lr_schedule,
            warmup_steps=settings.warmup_steps,
        )


@dataclass(frozen=True)
class Agreed:
    """What all processes know together before a step."""

    positions: int
    say: bool
    out_of_time: bool
    save: bool
    interrupted: int
