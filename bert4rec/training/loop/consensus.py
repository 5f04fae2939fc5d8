"""What all processes of a run decide together, by messages that travel while they work."""

import itertools
from typing import NamedTuple

import torch
import torch.distributed as dist

from bert4rec.dataset.schema import PAD_ID
from bert4rec.feed.batch import AnyBatch
from bert4rec.runtime.collectives import group_beside
from bert4rec.runtime.signals import SIGNALS, Interruption


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


class Consensus:
    """Lets one process decide for all: `ask` before a step, `answer` after it.

    Meanwhile a small message goes from each process to each other one, between the CPUs of the hosts and apart from
    other messages, so that neither a process nor a GPU waits for it. Every process makes the same calls, and so acts on
    a decision at the same step.
    """

    def __init__(self, interruption: Interruption, minutes: float = 30.0) -> None:
        self._interruption, self._group = interruption, group_beside(minutes)
        self._message: Message | None = None

    def ask(
        self, following: AnyBatch | None = None, *, report: bool = False, out_of_time: bool = False, save: bool = False
    ) -> None:
        """Send this process's part; `following` is the batch of the step after the one that begins now."""
        assert self._message is None, "asked twice"
        number = self._interruption.number
        positions = 0 if following is None else (following.targets != PAD_ID).sum()
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

    def answer(self) -> Decision:
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
        number = self.answer().interrupted
        if not number:
            self.ask()
        return number

    def _wait(self, message: Message) -> None:
        message.work.wait()
        if message.tells_of_signal:
            self._interruption.answered()
