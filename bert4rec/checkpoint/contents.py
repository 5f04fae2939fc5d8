"""Name the tensors of a checkpoint, load them in place, and save checkpoints when they are due."""

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from bert4rec.checkpoint.run_folder import BEST_LINK, UNFINISHED, found, step_folder
from bert4rec.checkpoint.store import Copies, SaveError, Tensors, load, save
from bert4rec.checkpoint.stored_tensors import MODEL_PREFIX
from bert4rec.models.tables import saved_name
from bert4rec.runtime.collectives import all_agree, all_reduce_min, gather_objects, new_gloo_group
from bert4rec.runtime.errors import DataError, Interrupted, in_one_line
from bert4rec.runtime.host import host_memory
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.optimizer import Optimizers
from bert4rec.sharding.parallelize import unwrap
from bert4rec.sharding.torchrec_internals import local_bytes, local_parts, placed_parts

MARGIN = 1.2  # required free memory for an automatic copy, as a multiple of its size
BYTES_PER_SECOND = 100e6  # assumed speed of a save until one has been measured
logger = logging.getLogger(__name__)


class Weights:
    """Save and load the weights of a parallelized model, independent of its sharding.

    `name` is `MODEL_PREFIX`, or `LATEST` if the model of the checkpoint is the moving average of the weights.
    """

    def __init__(self, model: nn.Module, name: str = MODEL_PREFIX) -> None:
        self._model, self._name = unwrap(model), name

    def tensors(self) -> dict[str, Any]:
        """Return the weights by parameter."""
        return _named(self._name, self._model.state_dict())

    def load(self, folder: Path, *, latest: bool = False) -> None:
        """Load the model of a checkpoint or, with `latest`, its weights after the last step."""
        state = self._model.state_dict()
        load(folder, _named(self._name if latest else MODEL_PREFIX, state))
        self._model.load_state_dict(state)

    def load_package(self, file: Path) -> None:
        """Load the safetensors of a model package. Raises `DataError`, on every rank, if they do not fit."""
        state, problem = self._model.state_dict(), ""
        try:
            with safe_open(file, "pt") as stored:
                for name, value in state.items():
                    rows = stored.get_slice(saved_name(name))
                    for part, *corner in placed_parts(value):
                        if part.numel():
                            ends = zip(corner, part.shape, strict=False)  # a part has at most two dimensions
                            part.copy_(rows[tuple(slice(first, first + size) for first, size in ends)])
        except (OSError, SafetensorError, RuntimeError) as error:
            problem = in_one_line(error)
        if first_problem := next(filter(None, gather_objects(problem)), ""):
            raise DataError(f"{file}: does not hold the weights of this model: {first_problem}")
        self._model.load_state_dict(state)

    def local_parts(self) -> Iterator[Tensor]:
        """Yield the shards and replicated tensors of this rank."""
        return (part for value in self._model.state_dict().values() for part in local_parts(value))


def moments(optimizers: Optimizers) -> dict[str, Any]:
    """Return the state of the optimizers by parameter and slot, without the step counts."""
    return _named("optimizer.", optimizers.tensors())


def random_states(world: Processes) -> dict[str, Any]:
    """Return the random states for dropout on this rank; they fit the same world size and type of device only."""
    states = {f"random.cpu.{world.rank}": torch.get_rng_state()}
    if world.device.type == "cuda":
        states[f"random.cuda.{world.rank}"] = torch.cuda.get_rng_state(world.device)
    return states


def load_random_states(folder: Path, world: Processes) -> None:
    """Restore the random states of dropout on this rank from a checkpoint."""
    states = random_states(world)
    load(folder, states)
    torch.set_rng_state(states[f"random.cpu.{world.rank}"])
    if world.device.type == "cuda":
        torch.cuda.set_rng_state(states[f"random.cuda.{world.rank}"], world.device)


def _named(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {prefix + saved_name(name): value for name, value in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """The schedule of checkpoints, every `every_steps` or `every_minutes` (0: never), and how many to `keep`.

    `asynchronous`: a thread writes a copy in memory; "auto": if every rank has memory for the copy.
    `seconds_on_signal`: the most that a save on a signal may take.
    """

    every_steps: int
    every_minutes: float
    keep: int
    asynchronous: bool | Literal["auto"]
    seconds_on_signal: float


class CheckpointManager:
    """Write checkpoints into `folder`, and remove old ones, except for the last ones and the best.

    `about` is metadata of every checkpoint, `last_step` the step of the checkpoint that the run resumes from. Every
    rank makes the same calls.
    """

    def __init__(
        self, folder: Path, settings: CheckpointSettings, world: Processes, *, about: Mapping[str, Any],
        last_step: int = 0,
    ) -> None:  # fmt: skip
        self._folder, self._settings, self._world, self._about = folder, settings, world, about
        self._asynchronous = settings.asynchronous
        self._group = new_gloo_group(world.minutes)  # the thread must not mix its messages with the training's
        self._thread, self._copies = ThreadPoolExecutor(max_workers=1), Copies()
        self._writing: Future[None] | None = None
        self._bytes_per_second = BYTES_PER_SECOND
        self.last_step = last_step  # of the last checkpoint that is complete or being written; 0 = none
        self._saved_at = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step` steps; rank zero decides."""
        every_steps, every_seconds = self._settings.every_steps, 60 * self._settings.every_minutes
        by_time = 0 < every_seconds <= time.monotonic() - self._saved_at
        return by_time or bool(every_steps and step % every_steps == 0)

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any], *, best_step: int) -> None:
        """Save `tensors` and `metadata` as they are after `step` steps; `best_step` is the best step so far."""
        self.wait()
        self.last_step, self._saved_at = step, time.monotonic()
        is_asynchronous = self._is_asynchronous(tensors)
        tensors = self._copies.of(tensors) if is_asynchronous else tensors
        self._writing = self._thread.submit(self._write, step, tensors, {**self._about, **metadata}, best_step)
        if not is_asynchronous:
            self.wait()

    def wait(self) -> None:
        """Wait until the current checkpoint is written; warn if it cannot be."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except SaveError as error:
            self.last_step = 0
            logger.warning(f"cannot save: {error}; {self.kept()}")

    def require_time_to_save(self, tensors: Tensors, number: int) -> None:
        """Raise `Interrupted` if a save may take longer than `seconds_on_signal` after signal `number`.

        The duration is estimated from the speed of the last save, for the slowest rank. The first checkpoint is never
        refused.
        """
        milliseconds = all_reduce_min(-round(1e3 * local_bytes(tensors.values()) / self._bytes_per_second))
        seconds, most = -milliseconds / 1e3, self._settings.seconds_on_signal
        if self.last_step and seconds > most:
            raise Interrupted(
                number,
                f"a checkpoint would take about {seconds:.0f} s, more than checkpoint.seconds_on_signal = "
                f"{most:g}; the last one is of step {self.last_step}",
            )

    def kept(self) -> str:
        """Return a clause that names the last checkpoint."""
        paths = found(self._folder)
        return f"{paths[-1].name} is the last checkpoint" if paths else "there is no checkpoint"

    def path_of(self, step: int) -> Path:
        """Return the folder for the checkpoint of `step`."""
        return step_folder(self._folder, step)

    def best(self, step: int) -> Path | None:
        """Return the checkpoint of the best `step`, or the best one that was saved; None if there is none."""
        best, link = self.path_of(step), self._folder / BEST_LINK
        return best if best.is_dir() else link.resolve() if link.is_dir() else None

    def _write(self, step: int, tensors: Tensors, metadata: Mapping[str, Any], best_step: int) -> None:
        if self._world.device.type == "cuda":
            torch.cuda.set_device(self._world.device)  # a new thread starts with the host's first GPU
        began = time.monotonic()
        save(self.path_of(step), tensors, metadata, group=self._group)
        self._bytes_per_second = local_bytes(tensors.values()) / max(1e-3, time.monotonic() - began)
        if self._world.is_rank_zero:
            self._link(best_step)  # first, so that it never points to a removed checkpoint
            self._remove_old(best_step)

    def _is_asynchronous(self, tensors: Tensors) -> bool:
        if self._asynchronous == "auto":
            room = host_memory() // self._world.local_world_size - MARGIN * local_bytes(tensors.values())
            self._asynchronous = all_agree(room >= 0)
            in_background, waits = "in the background, from a copy", "while the training waits: no memory for a copy"
            when = in_background if self._asynchronous else waits
            logger.info(f"checkpoints of {local_bytes(tensors.values()) / 1e6:,.1f} MB a process are written {when}")
        return self._asynchronous

    def _link(self, best_step: int) -> None:
        """Make the link `best` point to the best checkpoint, for people and other programs."""
        if not self.path_of(best_step).is_dir():
            return
        link = self._folder / BEST_LINK
        new = link.with_name(BEST_LINK + UNFINISHED)
        try:
            new.unlink(missing_ok=True)
            new.symlink_to(self.path_of(best_step).name)
            new.replace(link)
        except OSError as error:
            logger.info(f"{link}: cannot be made: {error.strerror}; the best checkpoint is of step {best_step}")

    def _remove_old(self, best_step: int) -> None:
        paths = found(self._folder)
        kept = {path.name for path in [*paths[-self._settings.keep :], self.best(best_step)] if path}
        for path in paths:
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)
