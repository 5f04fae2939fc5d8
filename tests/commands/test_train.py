"""Which process says what, where there are several; whole runs are in end_to_end/."""

import pytest

from bert4rec.commands import train
from bert4rec.runtime.errors import RunInterruptedError, SettingsError


@pytest.mark.parametrize(
    ("rank", "local_rank", "is_on_all", "waits", "said"),
    [
        (0, 0, True, False, "error: no room\n"),
        (1, 1, True, True, ""),
        (2, 0, True, False, "error: no room\n"),  # the first of the second host
        (3, 1, True, True, ""),
        (0, 0, False, False, "error: no room\n"),
        (1, 1, False, True, "error: no room (process 1)\n"),
        (2, 0, False, False, "error: no room (process 2)\n"),
    ],
)
def test_one_process_of_each_host_says_what_all_have_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int, local_rank: int, is_on_all: bool,
    waits: bool, said: str,
) -> None:  # fmt: skip
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    error = SettingsError("no room")
    error.is_on_all = is_on_all
    assert train._show(error) == 2
    assert waited == [5.0] * waits
    assert capsys.readouterr().err == said


def test_a_lost_process_is_said_by_all_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher ends them all promptly: nobody knows who still comes to speak."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert train._show(RunInterruptedError("lost"), is_awaited=False) == 1
    assert capsys.readouterr().err == "error: lost (process 3)\n"
