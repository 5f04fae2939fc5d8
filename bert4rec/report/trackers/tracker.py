"""What a tracker is, and how its failures stay its own."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

Numbers = Mapping[str, float]
"""Name, with slashes between its parts → value."""


class Tracker(Protocol):
    """A place for the numbers of one run."""

    def add(self, step: int, numbers: Numbers) -> None:
        """What was measured at `step`."""
        ...

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """What came out of the run, and the files that show it."""
        ...

    def close(self, *, is_finished: bool) -> None:
        """Write what is still held back; `is_finished`: whether the run came to its end."""
        ...


class Guarded:
    """The tracker `name`, opened by `make`, of which the first failure is said, and the last: it gets no more calls.

    A training does not end since somebody else's program fails.
    """

    def __init__(self, name: str, make: Any) -> None:
        self._name, self._tracker = name, None
        with self._alone():
            self._tracker = make()

    def add(self, step: int, numbers: Numbers) -> None:
        """As `Tracker.add`."""
        if self._tracker:
            with self._alone():
                self._tracker.add(step, numbers)

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """As `Tracker.finish`."""
        if self._tracker:
            with self._alone():
                self._tracker.finish(results, files)

    def close(self, *, is_finished: bool) -> None:
        """As `Tracker.close`; once."""
        if self._tracker:
            with self._alone():
                self._tracker.close(is_finished=is_finished)
        self._tracker = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # any: it is another program
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            logger.warning(f"{self._name} fails: {reason}; the training continues, and {self._name} gets no more of it")
            self._tracker = None
