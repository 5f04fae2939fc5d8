"""Do work of many requests in one thread: what comes while a batch is done is the next batch."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class TooBusyError(Exception):
    """Too much waits already."""


class _Job(NamedTuple):
    work: Any
    size: int
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class Batches:
    """A thread that calls `do` with the works of a batch, which returns a result or an exception for each.

    A batch has works of together at most `most_in_batch`, or one that is larger; so much as `most_waiting` waits.
    """

    def __init__(
        self, name: str, do: Callable[[Sequence[Any]], Sequence[Any]], *, most_in_batch: int, most_waiting: int
    ) -> None:
        self._do, self._most_in_batch, self._most_waiting = do, most_in_batch, most_waiting
        self._waiting, self.n_waiting = deque[_Job](), 0
        self._is_ending, self._changed = False, threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether work is done."""
        return self._thread.is_alive()

    async def enter(self, work: Any, size: int) -> Any:
        """Return the result of a work of a `size`. Raises `TooBusyError`, and the exception that is the result."""
        loop = asyncio.get_running_loop()
        job = _Job(work, size, loop, loop.create_future())
        with self._changed:
            if self._waiting and self.n_waiting + size > self._most_waiting:
                raise TooBusyError
            self._waiting.append(job)
            self.n_waiting += size
            self._changed.notify()
        return await job.future

    def end(self) -> None:
        """Do what waits, and end the thread."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            jobs = [job for job in batch if not job.future.cancelled()]  # the other clients have gone
            results = self._do([job.work for job in jobs])
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
            for job, result in zip(jobs, results, strict=True):
                by_loop.setdefault(job.loop, []).append((job.future, result))
            for loop, ended in by_loop.items():  # a batch wakes a loop once
                loop.call_soon_threadsafe(_end, ended)

    def _next(self) -> list[_Job]:
        """Wait for a batch and return it; [] at the end."""
        with self._changed:
            while not self._waiting and not self._is_ending:
                self._changed.wait()
            jobs, size = list[_Job](), 0
            while self._waiting and (not jobs or size + self._waiting[0].size <= self._most_in_batch):
                jobs.append(self._waiting.popleft())
                size += jobs[-1].size
            self.n_waiting -= size
            return jobs


def _end(ended: Sequence[tuple["asyncio.Future[Any]", Any]]) -> None:
    """Hand over results; in the event loop."""
    for future, result in ended:
        if future.done():  # the client has gone
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
