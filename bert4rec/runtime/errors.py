"""The errors that a person can mend: each is shown as one line."""

import signal


class UserError(Exception):
    """A problem that the user can solve: what failed, where, what to do."""

    status = 2  # of the process that it ends
    is_on_all = False  # whether all processes have met it, so that one of each host says it for the others


def in_one_line(error: Exception) -> str:
    """Return the message of a library's error in one line."""
    return " ".join(str(error).split())


class RunInterruptedError(UserError):
    """An interruption from outside: a full disk, another process that died."""

    status = 1


class SettingsError(UserError):
    """A setting that is unknown, of the wrong type, or impossible."""


class DataError(UserError):
    """An input or a dataset folder that cannot be used."""


class DivergenceError(UserError):
    """A loss or weights that are not finite any more."""

    status = 1


class Interrupted(UserError):  # noqa: N818  # nothing went wrong
    """An interruption of the run on all processes by the signal `number`; the message says what was saved."""

    def __init__(self, number: int, saved: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}: {saved}")
        self.status = 128 + number
        self.is_by_keyboard = number == signal.SIGINT
        self.advice = "continue with --resume=auto"
