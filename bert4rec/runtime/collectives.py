"""Collectives between the processes of a run: all make the same calls, in the same order."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from bert4rec.runtime.errors import UserError
from bert4rec.runtime.signals import SIGNALS, Interruption

Group: TypeAlias = dist.ProcessGroup | None
"""Some of the processes; None for all."""

T = TypeVar("T")

# torch 2.13 has given it another name, and warns of the one before.
_gather_into = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor


def on_rank_zero(function: Callable[[], T]) -> T:
    """Return on every process what `function` returns on the first; raise its `UserError` on all."""
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = function()
        except UserError as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    result, failure = outcome
    if failure is not None:
        failure.is_on_all = True
        raise failure
    return cast(T, result)


def gather_or_raise(function: Callable[[], T]) -> list[T]:
    """Return on every process what `function` returns on each, by rank; raise the `UserError` of any on all."""
    outcome: T | UserError
    try:
        outcome = function()
    except UserError as error:
        outcome = error
    outcomes = gather_objects(outcome)
    for failure in outcomes:
        if isinstance(failure, UserError):
            failure.is_on_all = True
            raise failure
    return outcomes


def gather_objects(value: Any, group: Group = None) -> list[Any]:
    """Return the `value` of every process of `group`, by rank, on every process of it."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def all_reduce_min(value: int) -> int:
    """Return the smallest `value` of all processes, on every process."""
    smallest = torch.tensor(value)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest)


def all_agree(value: bool) -> bool:
    """Return whether `value` is true on every process."""
    return bool(all_reduce_min(int(value)))


def new_gloo_group(minutes: float) -> dist.ProcessGroup:
    """Return a gloo group of all processes, for messages apart from others that wait for `minutes` at most."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(minutes=minutes)))


@dataclass(frozen=True)
class Partition:
    """The part of this process, `rank`, of a work that `n_processes` share, those of `group`; by default all of it.

    Of consecutive things it takes the part `place`, by default that of its rank.
    """

    rank: int = 0
    n_processes: int = 1
    group: Group = None
    place: int | None = None

    def of(self, n_things: int) -> range:
        """Return the consecutive things, of `n_things`, of this process; parts differ by one at most."""
        place = self.rank if self.place is None else self.place
        return range(n_things * place // self.n_processes, n_things * (place + 1) // self.n_processes)

    def parts(self, n_things: int) -> list[range]:
        """Return the parts of all processes, by rank; every process calls this."""
        own = torch.tensor([self.rank if self.place is None else self.place])
        places: list[int] = self.stack(own).flatten().tolist()
        return [replace(self, place=place).of(n_things) for place in places]

    def largest(self, n_things: int) -> int:
        """Return the size of the largest part."""
        return -(-n_things // self.n_processes)

    def sum(self, values: Tensor) -> Tensor:
        """Add up the `values` of all processes in place, and return them."""
        if self.n_processes > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def mean(self, values: Tensor) -> Tensor:
        """Average the `values` of all processes in place, and return them."""
        return self.sum(values).div_(self.n_processes) if self.n_processes > 1 else values

    def stack(self, values: Tensor) -> Tensor:
        """Return the `values` [...] of all processes, of one shape, as [n_processes, ...]."""
        if self.n_processes == 1:
            return values[None]
        stacked = values.new_empty(self.n_processes, *values.shape)
        _gather_into(stacked.view(-1), values.reshape(-1), group=self.group)  # in place: no list
        return stacked

    def concatenate(self, rows: Tensor, counts: list[int] | None = None) -> tuple[Tensor, slice]:
        """Return the `rows` [n, ...] of all processes one after another, and the slice of this process's rows.

        `counts`, how many rows each process has, spare a message.
        """
        if self.n_processes == 1:
            return rows, slice(0, len(rows))
        if counts is None:
            counts = cast(list[int], self.stack(torch.tensor([len(rows)], device=rows.device)).flatten().tolist())
        padding = [0, 0] * (rows.dim() - 1) + [0, max(counts) - len(rows)]
        stacked = self.stack(F.pad(rows, padding))
        first = sum(counts[: self.rank])
        together = torch.cat([part[:count] for part, count in zip(stacked, counts, strict=True)])
        return together, slice(first, first + len(rows))

    def exchange(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Return the rows [n, ...] that the processes send to this one, by rank; `counts` of its `rows` go to each."""
        if self.n_processes == 1:
            return rows
        given = torch.tensor(counts, device=rows.device)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self.group)
        received = rows.new_empty(int(taken.sum()), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), taken.tolist(), counts, group=self.group)
        return received


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
    sent: Tensor  # which must live as long
    received: Tensor
    tells_of_signal: bool


class StepSync:
    """Lets one process decide for all: `start` before a step, `wait` after it.

    Meanwhile a small message goes from each process to each other one, between the CPUs of the hosts and apart from
    other messages, so that neither a process nor a GPU waits for it. Every process makes the same calls, and so acts on
    a decision at the same step.
    """

    def __init__(self, interruption: Interruption, minutes: float = 30.0) -> None:
        self._interruption, self._group = interruption, new_gloo_group(minutes)
        self._message: Message | None = None

    def start(
        self, positions: Tensor | int = 0, *, report: bool = False, out_of_time: bool = False, save: bool = False
    ) -> None:
        """Send this process's part; `positions` to predict in the step after the one that begins now."""
        assert self._message is None, "asked twice"
        number = self._interruption.number
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

        It leaves a question open; `wait` ends the evaluation.
        """
        number = self.wait().interrupted
        if not number:
            self.start()
        return number

    def _wait(self, message: Message) -> None:
        message.work.wait()
        if message.tells_of_signal:
            self._interruption.answered()
