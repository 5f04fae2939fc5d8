"""How far a check of minutes is."""

import sys
import time

SECONDS_BETWEEN_LINES = 10.0
SECONDS_ON_A_TERMINAL = 0.5


class Ticker:
    """Says now and then on stderr how much of `total` is done: in place on a terminal, else in lines."""

    def __init__(self, verb: str, total: int, unit: str) -> None:
        self._verb, self._total, self._unit = verb, total, unit
        self._terminal = sys.stderr.isatty()
        self._started = self._last = time.monotonic()

    def at(self, done: int) -> None:
        """Say that `done` of `total` are done, if some time has passed since it was last said."""
        now = time.monotonic()
        if now - self._last < (SECONDS_ON_A_TERMINAL if self._terminal else SECONDS_BETWEEN_LINES):
            return
        self._last = now
        share = done / max(1, self._total)
        text = f"{self._verb} {done:,} of {self._total:,} {self._unit} ({share:.0%}, {now - self._started:.0f} s)"
        print(f"\r\033[K{text}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def close(self) -> None:
        """Clear the line of a terminal for what comes next."""
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
