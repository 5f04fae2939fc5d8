"""Store events of many requests in one transaction: what comes while one is written is in the next."""

import uuid
from collections.abc import Sequence
from typing import Any

from bert4rec.runtime.errors import DataError
from bert4rec.server.batches import Batches
from bert4rec.server.scorer import UNAVAILABLE, Problem
from bert4rec.serving.events import Event, Events

MOST_IN_TRANSACTION = 10_000  # events in a transaction
MOST_EVENTS_WAITING = 50_000


class Inbox:
    """Writes to `events` in a thread of its own."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._batches = Batches(
            "inbox", self._store, most_in_batch=MOST_IN_TRANSACTION, most_waiting=MOST_EVENTS_WAITING
        )

    @property
    def is_alive(self) -> bool:
        """Return whether events are stored."""
        return self._batches.is_alive

    async def store(self, events: Sequence[Event]) -> int:
        """Return how many of the events were not there, when all of them are on disk.

        Raises `TooBusyError`, and `Problem` if they cannot be stored; the client then sends them again.
        """
        n_new: int = await self._batches.enter(events, len(events))
        return n_new

    def end(self) -> None:
        """Store what waits, and end the thread."""
        self._batches.end()
        self._events.close()

    def _store(self, deliveries: Sequence[Sequence[Event]]) -> list[Any]:
        try:
            new = self._events.add([event for delivery in deliveries for event in delivery])
        except DataError:
            return [Problem("the events cannot be stored now; send them again later", UNAVAILABLE)] * len(deliveries)
        except Exception as error:  # the thread must go on
            return [error] * len(deliveries)
        counts = []
        for delivery in deliveries:
            mine = new & {event.key for event in delivery}
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
