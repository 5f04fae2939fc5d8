"""Seconds of contestants that take turns, and what they amount to."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

WHOLE = "whole"
OURS = "bert4rec"

Seconds: TypeAlias = Mapping[str, float]
"""Part of a piece of work → its seconds; `WHOLE` is all of it."""


class Case(NamedTuple):
    """One piece of work that several contestants do, `OURS` among them: each call does all of it once.

    `amount` counts what it consists of, in `unit`; `flops` are the floating-point operations that it needs, 0 where
    nobody counts them.
    """

    part: str
    what: str
    unit: str
    amount: float
    contestants: Mapping[str, Callable[[], Seconds]]
    flops: float = 0.0


class Figure(NamedTuple):
    """The seconds of one contestant at one piece of work, or of a part of that, one number a round."""

    part: str
    what: str
    contestant: str
    step: str
    unit: str
    amount: float
    flops: float
    seconds: Sequence[float]

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same figure in another run."""
        return self.part, self.what, self.contestant, self.step

    @property
    def median(self) -> float:
        """Of the rounds, in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """From the fastest round to the slowest, in seconds."""
        return max(self.seconds) - min(self.seconds)

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.amount / self.median


def measure(case: Case, rounds: int, least_seconds: float, tell: Callable[[str], None]) -> list[Figure]:
    """All contestants in turn, `rounds` times, after one call of each that is not counted.

    In a round a contestant goes on until `least_seconds` have passed: what takes milliseconds is a mean of many calls.
    """
    for name, work in case.contestants.items():
        tell(f"{name} warms up")
        work()
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(1, rounds + 1):
        for name, work in case.contestants.items():
            tell(f"round {number} of {rounds}: {name}")
            for step, seconds in _mean(work, least_seconds).items():
                found.setdefault((name, step), []).append(seconds)
    return [
        Figure(case.part, case.what, name, step, case.unit, case.amount, case.flops, seconds)
        for (name, step), seconds in found.items()
    ]


def _mean(work: Callable[[], Seconds], least_seconds: float) -> dict[str, float]:
    began, calls = time.perf_counter(), [work()]
    while time.perf_counter() - began < least_seconds:
        calls.append(work())
    return {step: statistics.fmean(call[step] for call in calls) for step in calls[0]}


def timed(work: Callable[[], object]) -> Callable[[], Seconds]:
    """`work` as a contestant without parts."""

    def run() -> Seconds:
        began = time.perf_counter()
        work()
        return {WHOLE: time.perf_counter() - began}

    return run


class Clock:
    """Tells how long the parts of a piece of work take on `device`.

    On a GPU by events in its own queue: nothing waits for the GPU before the end.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def start(self) -> None:
        """Forget what was."""
        self._marks = [("", self._now())]

    def mark(self, part: str) -> None:
        """What has been done since the last mark was `part`."""
        self._marks.append((part, self._now()))

    def seconds(self) -> dict[str, float]:
        """Of each part, and of the whole."""
        if self._is_gpu:
            torch.cuda.synchronize()
        found: dict[str, float] = {}
        for (_, before), (part, after) in zip(self._marks, self._marks[1:], strict=False):
            found[part] = found.get(part, 0.0) + self._between(before, after)
        return found | {WHOLE: self._between(self._marks[0][1], self._marks[-1][1])}

    def _now(self) -> Any:
        if not self._is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, before: Any, after: Any) -> float:
        return float(before.elapsed_time(after) / 1000 if self._is_gpu else after - before)
