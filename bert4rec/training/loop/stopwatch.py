"""Where the time of a run goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up `seconds` by part; the innermost of nested parts counts."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self._running: list[str] = []
        self._since = time.monotonic()

    def add(self, part: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count the block for `part`."""
        self._read()
        self._running.append(part)
        try:
            yield
        finally:
            self._read()
            self._running.pop()

    def _read(self) -> None:
        now = time.monotonic()
        if self._running:
            self.add(self._running[-1], now - self._since)
        self._since = now
