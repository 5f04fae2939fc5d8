"""The errors that a user can fix, each shown as one line, and helpers for the texts of messages."""

import difflib
import shlex
import signal
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """A problem that the user can solve: the message says what failed, where, and what to do."""

    status = 2  # exit status of the process
    is_on_all = False  # whether all processes raise it; then one process per host prints it

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs: not the arguments of the class, which some classes make the message from."""
        return UserError.__new__, (type(self), *self.args), self.__dict__


def in_one_line(error: Exception) -> str:
    """Return the message of a library's error in one line."""
    return " ".join(str(error).split())


class RunInterruptedError(UserError):
    """An interruption from outside, by a full disk or by another process that died."""

    status = 1


class SettingsError(UserError):
    """A setting that is unknown, of the wrong type, or impossible."""


class DataError(UserError):
    """An input or a dataset folder that cannot be used."""


class ArgumentError(DataError, ValueError):
    """A value given to a model that it cannot use: a wrong `k`, an unknown user, a history in another form."""


class DataWarning(UserWarning):
    """A part of the input of a call that was not used, or that has no result of its own."""


class ColumnUnknownError(DataError):
    """A column that must be named: the `field` (user or item), and the `columns` to choose from.

    `options` name the best guesses; `counts` says how many values these columns have.
    """

    def __init__(
        self, path: str, field: str, columns: Sequence[str], likely: Sequence[str], options: Sequence[str], counts: str
    ) -> None:
        several = f" {' or '.join(likely)}?" if likely else ""
        self.question = f"{path}: which column has the {field}s?{several} it has: {', '.join(columns)}"
        self.field, self.columns, self.options, self.counts = field, tuple(columns), tuple(options), counts
        super().__init__(self.with_command(["bert4rec", "prepare", path, *options]))

    def with_command(self, words: Sequence[str], verb: str = "type") -> str:
        """Return the message that ends with the `words` to type, ready for the shell, and the counts."""
        counts = f"   ({self.counts})" if self.counts else ""
        return f"{self.question}; {verb}: {shlex.join(words)}{counts}"


class DivergenceError(UserError):
    """A loss or weights that are no longer finite."""

    status = 1


class Interrupted(UserError):  # noqa: N818  # nothing went wrong
    """An interruption of the run on all processes by the signal `number`; the message says what was saved."""

    def __init__(self, number: int, saved: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}: {saved}")
        self.status = 128 + number
        self.is_by_keyboard = number == signal.SIGINT
        self.advice = "continue with --resume=auto"


def join_names(names: Sequence[object], most: int = 3) -> str:
    """Return the first `most` names with commas, and `, …` if there are more.

    >>> join_names(["a", "b"]), join_names(["a", "b", "c", "d"])
    ('a, b', 'a, b, c, …')
    """
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")


def did_you_mean(names: Sequence[str]) -> str:
    """Return the end of a message: `; did you mean a, b or c?`, or "" without names."""
    if not names:
        return ""
    *others, last = names
    return f"; did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a message: `; did you mean a?` for the one of `names` that is most like `name`, or ""."""
    return did_you_mean(difflib.get_close_matches(name, [*names], n=1))


def rounded(number: float) -> str:
    """Return `number` with three digits, or all digits before the decimal point: 3.66, 0.412, 40, 1,390."""
    return f"{number:,.0f}" if abs(number) >= 100 or number == round(number) else f"{number:.3g}"


def pluralize(number: float, noun: str) -> str:
    """Return a number with its noun in the right form: 1 epoch, 1.5 epochs, 2 processes, 3 histories."""
    text = rounded(number)
    if text == "1":
        return f"1 {noun}"
    is_consonant_y = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{text} {noun[:-1]}ies" if is_consonant_y else f"{text} {noun}{'es' if noun.endswith(('s', 'x')) else 's'}"


def format_duration(seconds: float) -> str:
    """Return `seconds` as `1:02:03`, or as `2:03` below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def format_bytes(n_bytes: float) -> str:
    """Return bytes for people: "1.23 GB", in powers of a thousand."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB" if n_bytes < 999.5 else f"{n_bytes / 1000:,.4g} TB"
