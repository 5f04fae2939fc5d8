"""The line of a stage that takes long, by a clock that is set by hand."""

import pytest

from bert4rec.sources.progress import Stage
from tests.checks import Capture, Patch


@pytest.mark.parametrize(
    ("total", "shown"), [(400, ["25 %", "12 of 109 tasks", "24,500", "2,450", "0:30"]), (0, ["24,500", "2,450"])]
)
def test_a_long_stage_shows_how_far_it_is(monkeypatch: Patch, capsys: Capture, total: int, shown: list[str]) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Stage("read", total) as stage:
        stage.advance(500, 40)
        now[0] = 110.0
        stage.advance(24_000, 100, tasks=(12, 109))
    line = capsys.readouterr().out
    assert [text for text in shown if text not in line] == []
