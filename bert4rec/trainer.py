"""The training loop: steps, progress, validation, the best weights."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from bert4rec.checkpoint import load_weights, save_weights
from bert4rec.config import Training
from bert4rec.errors import DivergenceError
from bert4rec.evaluation import Metrics
from bert4rec.feed.batches import Batch, MaskedBatches
from bert4rec.feed.dataset import Split
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.launch import Processes
from bert4rec.memory import release_free_memory
from bert4rec.optimizer import Optimizers, learning_rate_scale
from bert4rec.progress import Progress
from bert4rec.report import MetricsLog
from bert4rec.vocabulary import PAD_ID

WARM_STEPS = 10  # left out of sequences_per_second


@dataclass
class State:
    """How far the training is; the same on every process."""

    step: int = 0
    epoch: float = 0.0
    best_ndcg: float = -1.0
    best_epoch: float = 0.0
    n_worse: int = 0
    stopped_by: str = ""


class Meter:
    """The mean loss since it was last read, and the speed of the training steps alone."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._steps, self._sequences, self._seconds = 0, 0, 0.0
        self.unread_positions = 0

    def add(self, loss: torch.Tensor, n_positions: int, n_sequences: int, seconds: float) -> None:
        """One step: this rank's loss sum; the global batch's positions and sequences; the time since the last step."""
        self._loss += loss.detach()
        self.unread_positions += n_positions
        self._steps += 1
        if self._steps > WARM_STEPS:
            self._sequences += n_sequences
            self._seconds += seconds

    def read_loss(self) -> float:
        """The mean over all positions of all processes; every process calls this at the same step.

        Raises `DivergenceError`, on every process, for a loss that is not finite.
        """
        dist.all_reduce(self._loss)
        mean = float(self._loss) / self.unread_positions
        self._loss.zero_()
        self.unread_positions = 0
        if not math.isfinite(mean):
            raise DivergenceError(f"the training loss is {mean} after {self._steps} steps; {DivergenceError.ADVICE}")
        return mean

    @property
    def rate(self) -> float:
        """Sequences/s on all processes together; 0 during the first steps."""
        return self._sequences / self._seconds if self._seconds else 0.0


class Trainer:
    """Trains a parallelized `model` on the windows of a split.

    `measure` gives the validation metrics of the model as it is (`{}` where there is nobody to validate on), `log` is
    None on all processes but the first, `folder` is the run folder, `sampler` draws what a sampled loss needs. Every
    process of the run makes the same calls.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        windows: Split,
        *,
        n_rows: int,
        settings: Training,
        world: Processes,
        measure: Callable[[], Metrics],
        folder: Path,
        log: MetricsLog | None,
        sampler: NegativeSampler | None = None,
    ) -> None:
        self._model, self._optimizers, self._settings, self._world = model, optimizers, settings, world
        self._measure, self._log = measure, log
        self._folder, self._best_folder = folder, folder / "checkpoints" / "best"
        self.state, self.meter, self.seconds = State(), Meter(world.device), 0.0
        self._source = MaskedBatches(
            windows,
            n_epochs=settings.n_epochs,
            per_device=settings.per_device_train_batch_size,
            rank=world.rank,
            world_size=world.world_size,
            seed=settings.seed,
            n_rows=n_rows,
            sampler=sampler,
            mask_prob=settings.mask_prob,
            last_item_mask_prob=settings.last_item_mask_prob,
            mask_token_share=settings.mask_token_share,
            random_token_share=settings.random_token_share,
        )
        self._progress = Progress(len(self._source), shown=world.is_first)
        self._began = time.monotonic()

    def fit(self) -> None:
        """Train until epochs, time or patience are used up, then take the weights that were best on validation.

        Raises `DivergenceError` for a loss that is not finite.
        """
        self._began = time.monotonic()
        self._progress.say(
            f"{self._world.world_size} x {self._world.device.type}, at most {self._settings.n_epochs} epochs of "
            f"{self._source.steps_per_epoch} steps, into {self._folder}"
        )
        on_gpu = self._world.device.type == "cuda"
        batches = self._source.batches(num_workers=self._settings.num_workers, pin_memory=on_gpu)
        for epoch in range(1, self._settings.n_epochs + 1):
            self._train_epoch(itertools.islice(batches, self._source.steps_per_epoch))
            is_last = epoch == self._settings.n_epochs or self.state.stopped_by
            if is_last or epoch % self._settings.eval_every_n_epochs == 0:
                self._validate()
            if self.state.stopped_by:
                break
        self.state.stopped_by = self.state.stopped_by or "n_epochs"
        self.seconds = time.monotonic() - self._began
        self._progress.close()
        load_weights(self._model, self._best_folder)

    def _train_epoch(self, batches: Iterator[Batch]) -> None:
        """All steps of an epoch, or as many as there is time for."""
        self._model.train()
        began = time.monotonic()
        for batch in batches:
            n_positions, say, out_of_time = self._agree(batch)
            loss = self._train_step(batch.to(self._world.device), n_positions)
            self.state.step += 1
            self.state.epoch = self.state.step / self._source.steps_per_epoch
            now = time.monotonic()
            self.meter.add(loss, n_positions, batch.n_sequences, now - began)  # waiting for the loader counts
            began = now
            if say:
                self._say()
            if out_of_time:
                self.state.stopped_by = "max_minutes"
                return

    def _agree(self, batch: Batch) -> tuple[int, bool, bool]:
        """Positions to predict on all processes; whether to report now; whether the time is up.

        One small message between the hosts' CPUs, so that a GPU need not be waited for.
        """
        minutes = (time.monotonic() - self._began) / 60
        out_of_time = 0 < self._settings.max_minutes <= minutes
        mine = [(batch.targets != PAD_ID).sum(), self._world.is_first and self._progress.is_due(), out_of_time]
        agreed = torch.tensor(mine, dtype=torch.int64)
        dist.all_reduce(agreed)
        return int(agreed[0]), bool(agreed[1]), bool(agreed[2])

    def _train_step(self, batch: Batch, n_positions: int) -> torch.Tensor:
        """One update by the mean loss over the `n_positions` of the *global* batch; this rank's sum of the loss."""
        self._optimizers.begin_step(self._learning_rate_scale())
        bf16 = self._settings.precision == "bf16"
        with torch.autocast(self._world.device.type, torch.bfloat16, enabled=bf16):
            loss: torch.Tensor = self._model(batch)
        # Gradients are averaged over the processes; times their number, the average is the sum.
        (loss * (self._world.world_size / n_positions)).backward()
        self._optimizers.step()
        return loss

    def _validate(self) -> None:
        """Measure; keep the weights if they are the best so far, count if they are not."""
        self._say()
        state, metrics = self.state, self._measure()
        ndcg = metrics["full"]["NDCG@10"] if metrics else 0.0
        if self._log and metrics:
            self._log.add("validation", state.step, epoch=state.epoch, **metrics)
            hit_rate = metrics["full"]["HR@10"]
            self._progress.say(
                f"epoch {state.epoch:.4g}  validation, full catalogue  HR@10 {hit_rate:.4f}  NDCG@10 {ndcg:.4f}"
            )
        if ndcg > state.best_ndcg or not metrics:
            state.best_ndcg, state.best_epoch, state.n_worse = ndcg, state.epoch, 0
            save_weights(self._model, self._best_folder)
            return
        state.n_worse += 1
        if state.n_worse == self._settings.patience:
            state.stopped_by = state.stopped_by or "patience"

    def _say(self) -> None:
        """Loss and speed since the last time, to the person and to the log; tidies up as well."""
        release_free_memory()
        if not self.meter.unread_positions:
            return
        loss, state, rate = self.meter.read_loss(), self.state, self.meter.rate
        if self._log is None:
            return
        learning_rate = self._settings.learning_rate * self._learning_rate_scale()
        left = (time.monotonic() - self._began) * (len(self._source) / max(1, state.step) - 1)
        if self._settings.max_minutes:
            left = min(left, 60 * self._settings.max_minutes - (time.monotonic() - self._began))
        self._progress.update(
            state.step, epoch=state.epoch, loss=loss, learning_rate=learning_rate, rate=rate, left=max(0.0, left)
        )
        speed = {"sequences_per_second": rate} if rate else {}
        self._log.add("train", state.step, epoch=state.epoch, loss=loss, learning_rate=learning_rate, **speed)

    def _learning_rate_scale(self) -> float:
        settings = self._settings
        return learning_rate_scale(
            self.state.step,
            n_steps=len(self._source),
            schedule=settings.lr_schedule,
            warmup_steps=settings.warmup_steps,
        )
