"""Run the training loop: steps in agreement of all ranks, progress, validation, checkpoints."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert4rec.dataset.format import RATINGS
from bert4rec.evaluation.evaluator import BatchCallback
from bert4rec.evaluation.ranker import Metrics
from bert4rec.feed.batch import AnyBatch, mapped, weights_of
from bert4rec.feed.batches import TrainingBatches
from bert4rec.models.ranking_model import RankingModel
from bert4rec.report.log import MetricsLog
from bert4rec.runtime.collectives import StepSync
from bert4rec.runtime.console import ProgressBar
from bert4rec.runtime.errors import DivergenceError, Interrupted, format_duration, pluralize, rounded
from bert4rec.runtime.memory import release_free_memory, use_memory_again
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.signals import Interruption
from bert4rec.sharding.optimizer import Optimizers, learning_rate_scale
from bert4rec.sharding.parallelize import unwrap
from bert4rec.training.state import Checkpoints, Patience, Stopwatch

WARM_STEPS = 10  # first steps, not counted in sequences_per_second
PROTOCOL_TITLES = {"full": "full catalogue", RATINGS: "held-out ratings"}

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Step:
    """Update a parallelized `model` by the mean loss over the positions of the *global* batch."""

    def __init__(self, model: nn.Module, optimizers: Optimizers, world: Processes, *, precision: str) -> None:
        self.model, self.optimizers, self.world, self._is_bf16 = model, optimizers, world, precision == "bf16"
        self._ranking_model: RankingModel = unwrap(model)

    def __call__(
        self, batch: AnyBatch, n_positions: float, scale: float, following: AnyBatch | None = None
    ) -> torch.Tensor:
        """Make one step, and return this rank's sum of the loss.

        `n_positions` is the number of positions to predict on all ranks, or the sum of their weights, if they differ;
        `scale` multiplies the learning rates. The ids of the `following` batch are sent during the step: the next step
        must get the same tensors, or `discard` must be called. Both batches are on the device.
        """
        self.optimizers.begin_step(scale)
        if following is not None:
            self._ranking_model.begin_lookups(following)
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self._is_bf16):
            loss: torch.Tensor = self.model(batch)
        self._ranking_model.send_ids()
        # Gradients are averaged over the ranks, so the world size makes them a sum. A causal model may have no position
        # to predict.
        (loss * (self.world.world_size / (n_positions or 1))).backward()
        self.optimizers.step()
        return loss

    def discard(self) -> None:
        """Discard the ids that were sent for the following batch."""
        self._ranking_model.discard_lookups()


class Meter:
    """Measure the mean loss since it was last read, and the throughput of the training steps alone."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._steps, self._sequences, self._seconds = 0, 0, 0.0
        self.unread_positions: float = 0

    def add(self, loss: torch.Tensor, n_positions: float, n_sequences: int, seconds: float) -> None:
        """Add a step: this rank's loss sum, the positions and sequences of the global batch, the duration."""
        self._loss += loss.detach()
        self.unread_positions += n_positions
        self._steps += 1
        if self._steps > WARM_STEPS:
            self._sequences += n_sequences
            self._seconds += seconds

    def read_loss(self) -> float:
        """Return the mean loss over the positions of all ranks; every rank calls this at the same step.

        Raises `DivergenceError`, on every rank, for a loss that is not finite.
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
        """Return the sequences/s of all ranks together; 0 during the first `WARM_STEPS` steps."""
        return self._sequences / self._seconds if self._seconds else 0.0


class Prefetcher:
    """Copy batches to `device`; on CUDA from pinned memory, in a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def to_device(self, batch: AnyBatch) -> AnyBatch:
        """Return the batch on the device; on CUDA the host does not wait for the copy."""
        if self._stream is None:
            return batch.to(self._device)
        with torch.cuda.stream(self._stream):
            copy = batch.to(self._device)
        arrived = self._stream.record_event()
        current = torch.cuda.current_stream(self._device)
        current.wait_event(arrived)
        # Else the next batch could reuse the memory while a step reads it.
        mapped(copy, Tensor, lambda tensor: tensor.record_stream(current))
        return copy._replace(arrived=arrived)


class _Stopped(Exception):  # noqa: N818
    """Stop a validation for the signal `number`; the averaged weights must be exchanged back before a save."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """The settings of the loop, named as in [training]; `per_device` is the batch size of a rank."""

    n_epochs: int
    max_minutes: float
    per_device: int
    learning_rate: float
    lr_schedule: str
    warmup_steps: int
    num_workers: int
    eval_every_n_epochs: int
    patience: Patience


class Trainer:
    """Train with one `step` per batch, from the state of the `checkpoints`.

    `measure` returns the validation metrics of the current model (`{}` if nothing is held out), and calls its argument
    between two batches. `log` is None on all ranks but rank zero; `examples` names the training examples in logs.
    Every rank of the run makes the same calls.
    """

    def __init__(
        self, step: Step, batches: TrainingBatches, checkpoints: Checkpoints, settings: TrainerSettings, *,
        measure: Callable[[BatchCallback], Metrics], interruption: Interruption, log: MetricsLog | None,
        examples: str = "sequences",
    ) -> None:  # fmt: skip
        self._step, self._batches, self.checkpoints, self._settings = step, batches, checkpoints, settings
        self._world, self._measure, self._log = step.world, measure, log
        self._consensus, device = StepSync(interruption, step.world.minutes), step.world.device
        self.state, self.meter, self._transfer = checkpoints.state, Meter(device), Prefetcher(device)
        self.stopwatch = Stopwatch(self.state.seconds_by_part)
        self._n_steps, self._examples = batches.start.steps + len(batches), examples
        self._progress = ProgressBar(self._n_steps, done=self.state.step, stays=True)
        self._is_done, self._is_rank_zero = False, step.world.is_rank_zero
        self._has_validation = True  # until a validation has found nothing held out
        self._earlier, self._began = self.state.seconds, time.monotonic()

    def fit(self) -> None:
        """Train until epochs, time or patience are used up, then load the best weights by validation.

        Raises `DivergenceError` for a loss that is not finite, and `Interrupted` after a signal, once all is saved.
        """
        self._began = time.monotonic()
        settings, state = self._settings, self.state
        use_memory_again()
        logger.info(
            f"training on {pluralize(self._world.world_size, 'process')} ({self._world.device.type}): at most "
            f"{pluralize(settings.n_epochs, 'epoch')} of {pluralize(self._batches.steps_per_epoch, 'step')}"
        )
        pin_memory = self._world.device.type == "cuda"
        batches = self._batches.batches(num_workers=settings.num_workers, pin_memory=pin_memory)
        with self._progress, self.stopwatch.of("training"):
            self._end_epoch()  # a resumed run may have been interrupted just before the end of an epoch
            while not (state.stopped_by or state.epochs >= settings.n_epochs):
                self._train_epoch(itertools.islice(batches, self._batches.steps_of(state.epochs)))
                self._end_epoch()
            state.stopped_by = state.stopped_by or "n_epochs"
            with self.stopwatch.of("saving"):
                self.checkpoints.wait()
        logger.info(f"stopped by {state.stopped_by} after {pluralize(self.epoch, 'epoch')}")
        self._is_done = True
        with self.stopwatch.of("saving"):
            self.checkpoints.load_best(self.epoch)

    @property
    def epoch(self) -> float:
        """Return the number of epochs so far, with a fraction."""
        return self.state.epochs + self.state.sequences / self._batches.n_sequences

    def evaluate(self, measure: Callable[[BatchCallback], T]) -> T:
        """Return the result of `measure`, which calls its argument between two batches.

        Raises `Interrupted` on all ranks if a rank has received a signal.
        """
        result = measure(lambda: self._handle_signal(self._consensus.interrupted()))
        self._handle_signal(self._consensus.wait().interrupted)
        return result

    def _train_epoch(self, batches: Iterator[AnyBatch]) -> None:
        """Make the remaining steps of an epoch, or as many as `max_minutes` allows."""
        self._step.model.train()
        state, began = self.state, time.monotonic()
        batch = next(batches, None)
        self._consensus.start(_n_positions(batch), count=_count(batch))
        batch = batch and self._transfer.to_device(batch)
        decision = self._consensus.wait()
        while batch is not None:
            following = next(batches, None)
            self._start_sync(following)
            following = following and self._transfer.to_device(following)
            self._train_step(batch._replace(counts=decision.counts), following, decision.positions, began)
            decision = self._consensus.wait()
            batch = following
            began = time.monotonic()
            if decision.interrupted or decision.out_of_time:
                self._step.discard()
            if decision.report:
                self._report()
            if decision.interrupted:
                self.checkpoints.interrupt(decision.interrupted)
            if decision.save and state.sequences < self._batches.n_sequences:  # else `_end_epoch` saves
                self._save()
                began = time.monotonic()
            if decision.out_of_time:
                state.stopped_by = "max_minutes"
                break
        if state.sequences == self._batches.n_sequences:
            state.epochs, state.sequences = state.epochs + 1, 0

    def _train_step(self, batch: AnyBatch, following: AnyBatch | None, n_positions: float, began: float) -> None:
        """Make one step, and count it; `began` is the time when the previous step ended."""
        loss = self._step(batch, n_positions, self._learning_rate_scale(), following)
        self.state.step += 1
        if self.checkpoints.average:
            self.checkpoints.average.note(self.state.step)
        self.state.sequences += batch.n_sequences
        self.state.seconds = self._seconds()
        self.state.updates = self._step.optimizers.n_updates
        seconds = time.monotonic() - began  # includes the time spent waiting for the loader
        self.meter.add(loss, n_positions, batch.n_sequences, seconds)

    def _end_epoch(self) -> None:
        """Validate if that is due, and save."""
        self._report()
        state, settings = self.state, self._settings
        is_last = state.epochs >= settings.n_epochs or state.stopped_by == "max_minutes"
        is_due = state.sequences == 0 and state.epochs % settings.eval_every_n_epochs == 0
        if (is_last or is_due) and state.validated != self.epoch:
            with self.stopwatch.of("validation"):
                self._validate()
            state.validated = self.epoch
        self._save()

    def _save(self) -> None:
        with self.stopwatch.of("saving"):
            self.checkpoints.save()

    def _validate(self) -> None:
        """Compute and log the validation metrics, and compare them with the best so far."""
        try:
            with self.checkpoints.using_average():
                metrics = self.evaluate(self._measure)
        except _Stopped as stop:
            self.checkpoints.interrupt(stop.number)
        if not metrics:
            self._has_validation = False
            self.state.mark_best(0.0, self.epoch)
            return
        protocol, names, score = _judged(metrics)
        if self._log:
            self._log.add("validation", self.state.step, epoch=self.epoch, **metrics)
            figures = "  ".join(f"{name} {metrics[protocol][name]:.4f}" for name in names)
            logger.info(f"epoch {rounded(self.epoch)}  validation, {PROTOCOL_TITLES[protocol]}  {figures}")
        self.state.note_validation(score, self.epoch, patience=self._settings.patience)

    def _handle_signal(self, number: int) -> None:
        """Stop an evaluation for the signal `number`; 0 is no signal."""
        if number and self._is_done:  # the best weights are loaded, so there is nothing to save
            raise Interrupted(number, "the training is saved, but the test is not done")
        if number:
            raise _Stopped(number)

    def _start_sync(self, following: AnyBatch | None) -> None:
        """Start the exchange of what to do after the step, and of the positions in the `following` batch."""
        limit, is_first = self._settings.max_minutes, self._is_rank_zero
        self._consensus.start(
            _n_positions(following),
            count=_count(following),
            report=is_first and self._progress.is_due(),
            out_of_time=0 < limit <= self._seconds() / 60,
            save=is_first and self.checkpoints.is_due(self.state.step + 1),
        )

    def _report(self) -> None:
        """Show and log the loss since the last report and the throughput; release free memory."""
        release_free_memory()
        if not self.meter.unread_positions:
            return
        loss, step, rate = self.meter.read_loss(), self.state.step, self.meter.rate
        if self._log is None:
            return
        learning_rate = self._settings.learning_rate * self._learning_rate_scale()
        left, speed = self._time_left(), f"  {rounded(rate)} {self._examples}/s" if rate else ""
        place = f"step {step:>{len(str(self._n_steps))}}/{self._n_steps}  epoch {self.epoch:5.2f}"
        self._progress.show(
            step,
            f"epoch {self.epoch:.1f}/{self._settings.n_epochs}  loss {loss:.3f}{speed}  {left}",
            line=f"{place}  loss {loss:.4f}  lr {learning_rate:.2e}  {left}{speed}",
        )
        figures = {"epoch": self.epoch, "loss": loss, "learning_rate": learning_rate}
        self._log.add("train", step, **figures, **({"sequences_per_second": rate} if rate else {}))

    def _seconds(self) -> float:
        """Return the training time of all sessions of the run, in seconds."""
        return self._earlier + time.monotonic() - self._began

    def _time_left(self) -> str:
        """Return the time left as text: from the earliest end by patience to the end of all epochs or minutes."""
        n_steps = max(1, self.state.step - self._batches.start.steps)  # of this session of the run
        per_epoch, settings = self._n_steps / self._settings.n_epochs, self._settings
        per_step = (time.monotonic() - self._began) / n_steps
        most = max(0.0, per_step * (len(self._batches) - n_steps))
        if settings.max_minutes:
            most = max(0.0, min(most, 60 * settings.max_minutes - self._seconds()))
        patience = settings.patience if self._has_validation else 0
        stop = self.state.earliest_stop(self.epoch, patience, every=settings.eval_every_n_epochs, n_steps=per_epoch)
        least = per_step * per_epoch * max(0.0, stop - self.epoch)
        latest = format_duration(most)
        return f"{latest} left" if least >= most else f"{format_duration(least)} to {latest} left"

    def _learning_rate_scale(self) -> float:
        """Return the learning-rate scale for the sequences seen so far, so that a new batch size causes no jump."""
        settings, n_sequences = self._settings, self._batches.n_sequences
        per_step = settings.per_device * self._world.world_size
        return learning_rate_scale(
            self.epoch * n_sequences / per_step,
            n_steps=settings.n_epochs * n_sequences / per_step,
            schedule=settings.lr_schedule,
            warmup_steps=settings.warmup_steps,
        )


def _judged(metrics: Metrics) -> tuple[str, tuple[str, str], float]:
    """Return the protocol to judge by, the names of the metrics to log, and a score (higher is better)."""
    if RATINGS in metrics:
        return RATINGS, ("RMSE", "MAE"), 1 / (1 + metrics[RATINGS]["RMSE"])
    return "full", ("HR@10", "NDCG@10"), metrics["full"]["NDCG@10"]


def _n_positions(batch: AnyBatch | None) -> Tensor | int:
    """Return the number of positions to predict in this rank's batch, or the sum of their weights; 0 for None."""
    if batch is None:
        return 0
    weights = weights_of(batch)
    return weights.sum() if weights.dtype == torch.bool else weights.double().sum()


def _count(batch: AnyBatch | None) -> int:
    """Return the number of all positions of this rank's batch, those without a target included; 0 for None."""
    return 0 if batch is None else len(batch.targets)
