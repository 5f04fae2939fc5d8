"""A tracker that fails ends nothing, and is told of once."""

from pathlib import Path
from typing import Any

import pytest

from bert4rec.report.trackers.tracker import Guarded


class Failing:
    """Fails in one of its methods, and counts the calls."""

    def __init__(self, method: str) -> None:
        self.calls: list[str] = []
        self._method = method

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self._method:
            raise RuntimeError(f"no server\nfor {name}")

    def add(self, *_: Any) -> None:
        self._call("add")

    def finish(self, *_: Any) -> None:
        self._call("finish")

    def close(self, **_: Any) -> None:
        self._call("close")


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ("add", ["add"]),
        ("finish", ["add", "finish"]),
        ("close", ["add", "finish", "close"]),
        ("", ["add", "finish", "close"]),
    ],
)
def test_after_its_first_failure_it_gets_no_more(
    capsys: pytest.CaptureFixture[str], method: str, calls: list[str]
) -> None:
    failing = Failing(method)
    tracker = Guarded("tracker", lambda: failing)
    tracker.add(1, {"loss": 0.5})
    tracker.finish({}, [Path("report.json")])
    for _ in range(2):
        tracker.close(is_finished=True)
    assert failing.calls == calls
    line = "warning: tracker fails: no server; the training continues, and tracker gets no more of it\n"
    assert capsys.readouterr().out == (line if method else "")


def test_one_that_cannot_be_opened_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError

    tracker = Guarded("tracker", fail)
    tracker.add(1, {})
    tracker.close(is_finished=True)
    assert "tracker fails: ValueError; the training continues" in capsys.readouterr().out
