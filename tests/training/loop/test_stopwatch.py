"""Seconds by part, by a clock of the test's own."""

from contextlib import suppress

import pytest

from bert4rec.training.loop import stopwatch
from bert4rec.training.loop.stopwatch import Stopwatch


def test_of_parts_within_one_another_the_innermost_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now[0])
    seconds = {"training": 7.0}  # of an earlier part of the run
    watch = Stopwatch(seconds)
    now[0] += 50  # belongs to nothing
    with watch.of("training"):
        now[0] += 1
        with watch.of("saving"):
            now[0] += 2
        now[0] += 4
        with suppress(ZeroDivisionError), watch.of("validation"):
            now[0] += 8
            now[0] /= 0
        now[0] += 16
    now[0] += 50
    watch.add("start", 3.0)
    assert seconds == {"training": 7 + 1 + 4 + 16, "saving": 2, "validation": 8, "start": 3}
