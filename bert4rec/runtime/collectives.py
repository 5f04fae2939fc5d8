"""Collectives between the processes of a run; all processes make the same calls, in the same order."""

import itertools
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from bert4rec.runtime.errors import UserError
from bert4rec.runtime.signals import SIGNALS, Interruption

Group: TypeAlias = dist.ProcessGroup | None
"""A process group; None for all processes."""

T = TypeVar("T")

DIRECT_PROCESSES = 32  # up to this many processes, direct messages to every other one take less CPU time than rounds

# torch 2.13 renamed this function, and warns of the old name.
_gather_into = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor


def on_rank_zero(function: Callable[[], T]) -> T:
    """Return on every process the result of `function` on rank zero; raise its `UserError` on all."""
    outcome: list[Any] = [_outcome(function) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(outcome, src=0)
    return cast(T, _result(outcome[0]))


def gather_or_raise(function: Callable[[], T]) -> list[T]:
    """Return on every process the results of `function` by rank; raise the first `UserError` of a process on all."""
    return [_result(outcome) for outcome in gather_objects(_outcome(function))]


def _outcome(function: Callable[[], T]) -> T | UserError:
    try:
        return function()
    except UserError as error:
        return error


def _result(outcome: T | UserError) -> T:
    """Return the outcome of a function that all processes have; raise it if it is an error."""
    if isinstance(outcome, UserError):
        outcome.is_on_all = True
        raise outcome
    return outcome


def gather_objects(value: Any, group: Group = None) -> list[Any]:
    """Return the `value` of every process of `group`, by rank, on each of its processes."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def exchange_objects(values: Sequence[T]) -> list[T]:
    """Return what each process has sent to this one, by rank; it sends one of the `values` to each process."""
    sent = [np.frombuffer(pickle.dumps(value, protocol=5), np.uint8) for value in values]
    counts, received_counts = torch.tensor([*map(len, sent)]), torch.empty(len(sent), dtype=torch.int64)
    dist.all_to_all_single(received_counts, counts)
    received = torch.empty(int(received_counts.sum()), dtype=torch.uint8)
    content = torch.from_numpy(np.concatenate(sent))
    dist.all_to_all_single(received, content, received_counts.tolist(), counts.tolist())
    return [pickle.loads(part.numpy().tobytes()) for part in received.split(received_counts.tolist())]


def all_reduce_min(value: int) -> int:
    """Return the smallest `value` of all processes, on every process."""
    smallest = torch.tensor(value)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest)


def all_agree(value: bool) -> bool:
    """Return whether `value` is true on every process."""
    return bool(all_reduce_min(int(value)))


def new_gloo_group(minutes: float) -> dist.ProcessGroup:
    """Return a separate gloo group of all processes, with a timeout of `minutes`."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(minutes=minutes)))


@dataclass(frozen=True)
class Partition:
    """The part of the process `rank` in work shared by the `n_processes` of `group`; by default all of the work.

    Consecutive things are divided evenly; the process gets the part number `place`, by default its rank.
    """

    rank: int = 0
    n_processes: int = 1
    group: Group = None
    place: int | None = None

    def of(self, n_things: int) -> range:
        """Return this process's consecutive part of range(`n_things`); the sizes of parts differ by at most one."""
        place = self.rank if self.place is None else self.place
        return range(n_things * place // self.n_processes, n_things * (place + 1) // self.n_processes)

    def parts(self, n_things: int) -> list[range]:
        """Return the parts of all processes, by rank; every process calls this."""
        local_place = torch.tensor([self.rank if self.place is None else self.place])
        places: list[int] = self.stack(local_place).flatten().tolist()
        return [replace(self, place=place).of(n_things) for place in places]

    def largest(self, n_things: int) -> int:
        """Return the size of the largest part."""
        return -(-n_things // self.n_processes)

    def select(self, values: Sequence[T]) -> list[T]:
        """Return those of the `values`, one for each rank of the run, that are of the processes of this partition."""
        return [values[rank] for rank in dist.get_process_group_ranks(self.group)]

    def sum(self, values: Tensor) -> Tensor:
        """Add up the `values` of all processes in place, and return them."""
        if self.n_processes > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def mean(self, values: Tensor) -> Tensor:
        """Average the `values` of all processes in place, and return them."""
        return self.sum(values).div_(self.n_processes) if self.n_processes > 1 else values

    def stack(self, values: Tensor) -> Tensor:
        """Return the `values` [...] of all processes, which have the same shape, as [n_processes, ...]."""
        if self.n_processes == 1:
            return values[None]
        stacked = values.new_empty(self.n_processes, *values.shape)
        _gather_into(stacked.view(-1), values.reshape(-1), group=self.group)  # in place: no list
        return stacked

    def counts(self, n_rows: int, device: torch.device) -> list[int]:
        """Return the `n_rows` of each process; waits for the `device`, over which they are sent."""
        return cast(list[int], self.stack(torch.tensor([n_rows], device=device)).flatten().tolist())

    def concatenate(self, rows: Tensor, counts: list[int] | None = None) -> tuple[Tensor, slice]:
        """Return the concatenated `rows` [n, ...] of all processes, and the slice of this process's rows.

        Passing `counts`, the number of rows of each process, saves a message.
        """
        if self.n_processes == 1:
            return rows, slice(0, len(rows))
        if counts is None:
            counts = self.counts(len(rows), rows.device)
        padding = [0, 0] * (rows.dim() - 1) + [0, max(counts) - len(rows)]
        stacked = self.stack(F.pad(rows, padding))
        first = sum(counts[: self.rank])
        all_rows = torch.cat([part[:count] for part, count in zip(stacked, counts, strict=True)])
        return all_rows, slice(first, first + len(rows))

    def exchange(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Return the rows [n, ...] sent to this process, by rank; it sends `counts` of its `rows` to each process."""
        if self.n_processes == 1:
            return rows
        sent_counts = torch.tensor(counts, device=rows.device)
        received_counts = torch.empty_like(sent_counts)
        dist.all_to_all_single(received_counts, sent_counts, group=self.group)
        received = rows.new_empty(int(received_counts.sum()), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), received_counts.tolist(), counts, group=self.group)
        return received


class Decision(NamedTuple):
    """The positions to predict in the global batch; whether to report, to stop, to save; a signal or 0.

    Positions count by their weights in the loss. `counts` are the positions of each rank's batch, those without a
    target included; empty if no rank has any.
    """

    positions: float = 0
    report: bool = False
    out_of_time: bool = False
    save: bool = False
    interrupted: int = 0
    counts: tuple[int, ...] = ()


class Message(NamedTuple):
    """A pending message: `received` is valid after `work`; whether this process has sent a signal number."""

    work: "dist.Work | GatheringInRounds"
    sent: Tensor  # must not be freed before `work` is done
    received: Tensor  # a row of each process
    tells_of_signal: bool


class GatheringInRounds(threading.Thread):
    """Gather a row of each of N processes in ⌈log2 N⌉ rounds of one message (Bruck et al. 1997), in the background.

    gloo's own collectives send N - 1 messages, some of them in turn, or tell one process alone.
    """

    def __init__(self, row: Tensor, received: Tensor, group: Group) -> None:
        super().__init__(name="decisions", daemon=True)
        self._row, self._received, self._group = row, received, group
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Gather the rows; each round doubles the number of rows that a process has."""
        try:
            rank, n = dist.get_rank(self._group), len(self._received)
            rows = torch.empty_like(self._received)
            rows[0], n_known = self._row, 1
            while n_known < n:
                n_new = min(n_known, n - n_known)
                sent = dist.isend(rows[:n_new], (rank - n_known) % n, group=self._group)
                dist.recv(rows[n_known : n_known + n_new], (rank + n_known) % n, group=self._group)
                assert sent is not None, "this process is in the group"
                sent.wait()
                n_known += n_new
            self._received.copy_(rows.roll(rank, 0))
        except Exception as error:
            self._error = error

    def wait(self) -> None:
        """Wait for the rows of all processes. Raises the error of a lost process."""
        self.join()
        if self._error is not None:
            raise self._error


class StepSync:
    """Lets any process decide for all: call `start` before a step, and `wait` after it.

    During the step, processes exchange small messages, between the CPUs of the hosts and in a separate group, so that
    neither a process nor a GPU waits for them. Every process makes the same calls, and so acts on a decision at the
    same step.
    """

    def __init__(self, interruption: Interruption, minutes: float = 10.0) -> None:
        self._interruption, self._group = interruption, new_gloo_group(minutes)
        self._message: Message | None = None

    def start(
        self, positions: Tensor | float = 0, *, count: int = 0, report: bool = False, out_of_time: bool = False,
        save: bool = False,
    ) -> None:  # fmt: skip
        """Send this process's requests, and what it has in the step after the current one.

        These are its `positions` to predict, and the `count` of all positions of its batch.
        """
        assert self._message is None, "the previous message is still pending"
        number = self._interruption.number
        signals = (number == signal for signal in SIGNALS)
        mine = torch.tensor([positions, count, report, out_of_time, save, *signals], dtype=torch.float64)
        n = dist.get_world_size()
        sent = mine.repeat(n, 1)
        received = torch.empty_like(sent)
        work: dist.Work | GatheringInRounds
        if n > DIRECT_PROCESSES:
            work = GatheringInRounds(mine, received, self._group)
        else:  # not an all-reduce: gloo passes it twice around a ring of all processes
            work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)
        self._message = Message(work, sent, received, bool(number))
        if number:  # wait at once: other processes may have ended
            self._wait(self._message)

    def wait(self) -> Decision:
        """Return the decision of the pending message; an empty one if no message is pending."""
        message, self._message = self._message, None
        if message is None:
            return Decision()
        self._wait(message)
        n_positions, n_counted, *votes = message.received.sum(0).tolist()
        report, out_of_time, save, *signals = map(bool, votes)
        interrupted = next(itertools.compress(SIGNALS, signals), 0)
        counts = tuple(map(int, message.received[:, 1].tolist())) if n_counted else ()
        return Decision(n_positions, report, out_of_time, save, interrupted, counts)

    def interrupted(self) -> int:
        """Return the signal that a process had received before the last batch of an evaluation; 0 for none.

        Without a signal a new message is pending; call `wait` at the end of the evaluation.
        """
        number = self.wait().interrupted
        if not number:
            self.start()
        return number

    def _wait(self, message: Message) -> None:
        message.work.wait()
        if message.tells_of_signal:
            self._interruption.answered()
