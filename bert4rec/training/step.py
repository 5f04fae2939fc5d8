"""One step: the batch comes to the device, the weights are updated, the processes agree."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert4rec.dataset.format import NO_ITEM
from bert4rec.feed.batch import AnyBatch
from bert4rec.models.ranking_model import RankingModel
from bert4rec.runtime.collectives import all_agree, new_gloo_group
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.signals import SIGNALS, Interruption
from bert4rec.sharding.optimizer import Optimizers, are_finite
from bert4rec.sharding.parallelize import unwrap


class Step:
    """Updates a parallelized `model` by the mean loss over the positions of the *global* batch.

    If the optimizers can skip a step, one with a loss or gradient that is not finite on any process is skipped by all.
    They agree without a message if a gradient of one is a gradient of all; else by one number.
    """

    def __init__(self, model: nn.Module, optimizers: Optimizers, world: Processes, *, precision: str) -> None:
        self.model, self.optimizers, self.world, self._is_bf16 = model, optimizers, world, precision == "bf16"
        self._ranking_model: RankingModel = unwrap(model)

    def __call__(
        self, batch: AnyBatch, n_positions: int, scale: float, following: AnyBatch | None = None
    ) -> tuple[torch.Tensor, str]:
        """Make one step by a batch with `n_positions` to predict on all processes; `scale` is of the learning rates.

        Meanwhile the ids of the `following` batch travel: the next step must be of the same object, or `discard` be
        called. Both batches are on the device.  Return this rank's sum of the loss; and what was not finite, on any
        process, in a skipped step, else "".
        """
        self.optimizers.begin_step(scale)
        if following is not None:
            self._ranking_model.begin_lookups(following)
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self._is_bf16):
            loss: torch.Tensor = self.model(batch)
        self._ranking_model.send_ids()
        # Gradients are averaged over the processes; times their number, the average is the sum. A causal model may have
        # nothing to predict.
        factor: float | torch.Tensor = self.world.world_size / max(1, n_positions)
        if self.optimizers.can_skip:  # of a loss that is not finite no gradient may be
            factor = factor + 0 * loss.detach()
        (loss * factor).backward()
        if self.optimizers.can_skip and (problem := self._problem(loss)):
            return loss, problem
        self.optimizers.step()
        return loss, ""

    def discard(self) -> None:
        """Cancel the step by the following batch."""
        self._ranking_model.discard_lookups()

    def _problem(self, loss: torch.Tensor) -> str:
        """Return what is not finite in this step, on any process, as far as this one knows; "" if all is finite."""
        is_finite = are_finite(self.optimizers.gradients())
        if not self.optimizers.gradients_are_of_all:
            is_finite = all_agree(is_finite)
        return "" if is_finite else "a gradient" if are_finite([loss]) else "the loss"


class Decision(NamedTuple):
    """Holds the positions to predict in the global batch; whether to report, to stop, to save; a signal."""

    positions: int = 0
    report: bool = False
    out_of_time: bool = False
    save: bool = False
    interrupted: int = 0


class Message(NamedTuple):
    """A message on its way: what came of it, when `work` is done, and whether this process told of a signal."""

    work: dist.Work
    sent: torch.Tensor  # which must live as long
    received: torch.Tensor
    tells_of_signal: bool


class StepSync:
    """Lets one process decide for all: `ask` before a step, `answer` after it.

    Meanwhile a small message goes from each process to each other one, between the CPUs of the hosts and apart from
    other messages, so that neither a process nor a GPU waits for it. Every process makes the same calls, and so acts on
    a decision at the same step.
    """

    def __init__(self, interruption: Interruption, minutes: float = 30.0) -> None:
        self._interruption, self._group = interruption, new_gloo_group(minutes)
        self._message: Message | None = None

    def start(
        self, following: AnyBatch | None = None, *, report: bool = False, out_of_time: bool = False, save: bool = False
    ) -> None:
        """Send this process's part; `following` is the batch of the step after the one that begins now."""
        assert self._message is None, "asked twice"
        number = self._interruption.number
        positions = 0 if following is None else (following.targets != NO_ITEM).sum()
        mine = torch.tensor(
            [positions, report, out_of_time, save, *(number == signal for signal in SIGNALS)], dtype=torch.int64
        )
        # Not by an all-reduce, which gloo hands twice around a ring of all processes, one after another.
        sent = mine.repeat(dist.get_world_size())
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)
        self._message = Message(work, sent, received, bool(number))
        if number:  # nothing is as urgent: the others may be gone
            self._wait(self._message)

    def wait(self) -> Decision:
        """Return what the last question found out; nothing if none is open."""
        message, self._message = self._message, None
        if message is None:
            return Decision()
        self._wait(message)
        n_positions, *others = message.received.view(-1, len(SIGNALS) + 4).sum(0).tolist()
        report, out_of_time, save, *signals = map(bool, others)
        interrupted = next(itertools.compress(SIGNALS, signals), 0)
        return Decision(n_positions, report, out_of_time, save, interrupted)

    def interrupted(self) -> int:
        """Return the signal that a process of an evaluation had got before the last batch; 0 for none.

        It leaves a question open; `answer` ends the evaluation.
        """
        number = self.wait().interrupted
        if not number:
            self.start()
        return number

    def _wait(self, message: Message) -> None:
        message.work.wait()
        if message.tells_of_signal:
            self._interruption.answered()


class Prefetcher:
    """Brings batches to `device`, on CUDA from pinned memory and by a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def to_device(self, batch: AnyBatch) -> AnyBatch:
        """Return the batch on the device; on CUDA only the device waits for it."""
        if self._stream is None:
            return batch.to(self._device)
        with torch.cuda.stream(self._stream):
            there = batch.to(self._device)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in tensors_in(there):
            tensor.record_stream(current)  # else its memory would be given to the next batch while a step reads it
        return there


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield all tensors of nested named tuples."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple):
        for part in batch:
            yield from tensors_in(part)
