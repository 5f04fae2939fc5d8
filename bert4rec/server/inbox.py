"""Store events of many requests in one transaction: what comes while one is written is in the next."""

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from bert4rec.runtime.errors import DataError
from bert4rec.server.scorer import UNAVAILABLE, Problem, TooBusyError
from bert4rec.serving.events import Event, Events

MOST_IN_TRANSACTION = 10_000  # events in a transaction
MOST_EVENTS_WAITING = 50_000


class _Delivery(NamedTuple):
    events: Sequence[Event]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[int]"


class Inbox:
    """Writes to `events` in a thread of its own."""

    def __init__(self, events: Events) -> None:
        self._events, self._waiting, self._n_waiting = events, deque[_Delivery](), 0
        self._is_ending, self._changed = False, threading.Condition()
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether events are stored."""
        return self._thread.is_alive()

    async def store(self, events: Sequence[Event]) -> int:
        """Return how many of the events were not there, when all of them are on disk.

        Raises `TooBusyError`, and `Problem` if they cannot be stored; the client then sends them again.
        """
        loop = asyncio.get_running_loop()
        delivery = _Delivery(events, loop, loop.create_future())
        with self._changed:
            if self._n_waiting > MOST_EVENTS_WAITING:
                raise TooBusyError
            self._waiting.append(delivery)
            self._n_waiting += len(events)
            self._changed.notify()
        return await delivery.future

    def end(self) -> None:
        """Store what waits, and end the thread."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join()
        self._events.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_ending:
                    self._changed.wait()
                if not self._waiting:
                    return
                deliveries, n = list[_Delivery](), 0
                while self._waiting and (not deliveries or n + len(self._waiting[0].events) <= MOST_IN_TRANSACTION):
                    deliveries.append(self._waiting.popleft())
                    n += len(deliveries[-1].events)
                self._n_waiting -= n
            results = self._store(deliveries)
            for delivery, result in zip(deliveries, results, strict=True):
                delivery.loop.call_soon_threadsafe(_end, delivery.future, result)

    def _store(self, deliveries: Sequence[_Delivery]) -> list[Any]:
        try:
            new = self._events.add([event for delivery in deliveries for event in delivery.events])
        except DataError:
            return [Problem("the events cannot be stored now; send them again later", UNAVAILABLE)] * len(deliveries)
        except Exception as error:  # the thread must go on
            return [error] * len(deliveries)
        counts = []
        for delivery in deliveries:
            mine = new & {event.key for event in delivery.events}
            counts.append(len(mine))
            new -= mine
        return counts


def key_of(user: str, item: str, when: float | None, event: str) -> str:
    """Return the key of an event that came without one: the same for the same event, if it has a time.

    >>> key_of("c-17", "a12", 1_790_000_000, "cart")
    '4:c-173:a121790000000:cart'
    """
    if when is None:
        return uuid.uuid4().hex
    return f"{len(user)}:{user}{len(item)}:{item}{int(when)}:{event}"


def now() -> int:
    """Return the time in seconds."""
    return int(time.time())


def _end(future: "asyncio.Future[int]", result: Any) -> None:
    if future.done():  # the client has gone
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
