"""The errors that a person can mend: each is shown as one line."""

import signal


class UserError(Exception):
    """Something that the person who typed the command can mend: what is wrong, where, what to do."""

    status = 2  # of the process that it ends
    is_on_all = False  # whether all processes have met it, so that one of each host says it for the others


def in_one_line(error: Exception) -> str:
    """What an error says that a library has raised, perhaps over several lines."""
    return " ".join(str(error).split())


class RunInterruptedError(UserError):
    """Something outside has interrupted a run: a full disk, another process that died."""

    status = 1


class SettingsError(UserError):
    """A setting that is unknown, of the wrong type, or impossible."""


class DataError(UserError):
    """Input, or a dataset folder, that cannot be used."""


class DivergenceError(UserError):
    """The training has left the numbers that can be computed with."""

    status = 1


class Interrupted(UserError):  # noqa: N818  # nothing went wrong
    """The signal `number` has ended the run on all processes together; the message says what was saved."""

    def __init__(self, number: int, saved: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}: {saved}")
        self.status = 128 + number
        self.is_by_keyboard = number == signal.SIGINT
        self.advice = "continue with --resume=auto"
