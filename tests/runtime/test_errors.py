"""What a process says and with which status it ends."""

import signal

import pytest

from bert4rec.runtime.errors import (
    DataError,
    DivergenceError,
    Interrupted,
    RunInterruptedError,
    SettingsError,
    UserError,
)


def test_what_can_be_mended_at_the_keyboard_has_status_2_and_what_came_in_between_1() -> None:
    classes = (UserError, SettingsError, DataError, RunInterruptedError, DivergenceError)
    assert [cls("a line").status for cls in classes] == [2, 2, 2, 1, 1]
    assert [str(cls("a line")) for cls in classes] == ["a line"] * 5
    assert not any(cls("a line").is_on_all for cls in classes)


@pytest.mark.parametrize(
    ("number", "message", "status"),
    [
        (signal.SIGINT, "stopped by SIGINT: saved after step 5", 130),
        (signal.SIGTERM, "stopped by SIGTERM: saved after step 5", 143),
        (signal.SIGHUP, "stopped by SIGHUP: saved after step 5", 129),
    ],
)
def test_a_signal_ends_a_run_as_shells_expect(number: int, message: str, status: int) -> None:
    ended = Interrupted(number, "saved after step 5")
    assert (str(ended), ended.status, ended.advice) == (message, status, "continue with --resume=auto")
