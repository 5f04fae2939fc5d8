"""The terminal: log lines of the package, silence of libraries, and the one progress bar."""

import inspect
import json
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any, Self

from bert4rec.runtime.errors import DataWarning

FOR_CTRL_C = 3  # free columns after the bar: the terminal writes ^C there, which must not wrap
TERMINAL_COLUMNS = 80  # of a terminal of unknown width
SECONDS_BETWEEN_BARS = 0.5
SECONDS_BETWEEN_LINES = 10.0
BAR = "{percentage:3.0f} % |{bar}| {desc}"
NO_BAR = "{desc}"  # figures without a bar

NOISY = ("torch", "torchrec")  # loggers
EVENTS_VARIABLE = "BERT4REC_EVENTS"  # environment variable: set if the program that started this process reads events
CALLED_FROM = ("bert4rec", "torch")  # packages whose lines are not those of a caller; torch has decorators
EVENT = "\x1e"  # start of an event line: JSON text sequences, RFC 7464

HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")  # also what turns text around

logger = logging.getLogger(__name__)
_bars: list[Any] = []  # the open tqdm bars: at most one


def visible(text: str, *, keep: str = "\n") -> str:
    """Return `text` with its control characters, except for those of `keep`, as a terminal can show them.

    >>> print(visible(f"a{chr(27)}[2J{chr(13)}b"))
    a\\x1b[2J\\rb
    """
    return HIDDEN.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], text)


def log_to_terminal(*, is_shown: bool = True, stream: str = "stdout", outlives_reader: bool = False) -> None:
    """Show the log records of the package on `stream`: one line per record, with "warning: " before a warning.

    Without `is_shown` (all processes except rank zero), neither lines nor bars are shown. If the reader closes the
    stream, as `| head` or a closed terminal does, logging raises `OSError`, or with `outlives_reader` continues
    silently.
    """
    package = logging.getLogger("bert4rec")
    package.handlers = [_Terminal(stream, outlives_reader)]
    package.setLevel(logging.INFO if is_shown else logging.CRITICAL)
    package.propagate = False  # libraries add a handler to the root logger, which would repeat every line


def warn(message: str) -> None:
    """Show one warning: as a line of the log if it goes to the terminal, else as a `DataWarning` at the caller's line.

    The caller is the first function outside of the package.
    """
    if any(isinstance(handler, _Terminal) for handler in logging.getLogger("bert4rec").handlers):
        logger.warning(message)
        return
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in CALLED_FROM:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DataWarning, stacklevel=level)


def hide_warnings() -> None:
    """Hide the warnings of libraries, but not their errors."""
    warnings.simplefilter("ignore")
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def quiet_libraries(*names: str) -> Iterator[None]:
    """Silence the warnings of libraries in a block, and restore loggers and environment variables after it.

    The packages `names` are imported first: torchrec adds a handler to the root logger, which would repeat our
    warnings.
    """
    root, environment = logging.getLogger(), dict(os.environ)
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in NOISY}
    with warnings.catch_warnings():
        hide_warnings()
        try:
            for name in names:
                import_module(name)
            # fbgemm calls logging.info, which adds a handler to a root logger without any; it would show our warnings.
            root.handlers = list(handlers) or [logging.NullHandler()]
            hide_warnings()  # imports change the levels
            yield
        finally:
            for name, before in levels.items():
                logging.getLogger(name).setLevel(before)
            root.handlers, root.level = handlers, level
            # Restore only changed variables: a thread of a library may be reading the rest.
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})


def emit_event(**event: Any) -> None:
    """Write an event as a line of JSON on stdout if the program that started this process reads events."""
    if EVENTS_VARIABLE in os.environ and logger.isEnabledFor(logging.INFO):
        with suppress(OSError):  # that program has ended
            print(EVENT + json.dumps(event), flush=True)


class ProgressBar:
    """Shows the progress of a `with` block: a bar at the bottom of a terminal, else regular lines, or events.

    `done` of the `total` units were finished before. `form` is the format of the bar (`BAR`, `NO_BAR`). At the end the
    bar `stays` or is removed.
    """

    def __init__(self, total: int, *, done: int = 0, form: str = BAR, stays: bool = False) -> None:
        self._total, self._first, self._form, self._stays = max(1, total), done, form, stays
        self._bar: Any = None

    def __enter__(self) -> Self:
        self._began = self._shown_at = time.monotonic()
        has_events = EVENTS_VARIABLE in os.environ
        if not has_events and sys.stderr.isatty() and logger.isEnabledFor(logging.INFO):
            from tqdm import tqdm  # imported only by commands that show a bar

            options: dict[str, Any] = {"bar_format": self._form, "ncols": _columns(), "leave": self._stays}
            self._bar = tqdm(total=self._total, initial=self._first, delay=1e-9, **options)  # draws nothing yet
            _bars.append(self._bar)  # first, so that an interrupt while it is drawn finds it
            self._bar.delay = 0
            self._bar.refresh()
        self._pause = SECONDS_BETWEEN_BARS if has_events or self._bar is not None else SECONDS_BETWEEN_LINES
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            close_bars()

    @property
    def seconds(self) -> float:
        """Return the seconds since the block began."""
        return time.monotonic() - self._began

    def seconds_left(self, done: int) -> float:
        """Return the remaining seconds after `done` units, at the speed so far."""
        return self.seconds * max(0, self._total - done) / max(1, done - self._first)

    def is_due(self) -> bool:
        """Return whether it is time to `show` something."""
        return time.monotonic() - self._shown_at >= self._pause

    def show(self, done: int, figures: str, *, line: str = "") -> None:
        """Show the `figures` of `done` units after the bar; without a bar log the `line`, if given, or the figures."""
        self._shown_at = time.monotonic()
        if EVENTS_VARIABLE in os.environ:
            emit_event(done=done, total=self._total, figures=figures)
        elif self._bar is None:
            logger.info(line or figures)
        else:
            self._bar.ncols, self._bar.n = _columns(), done
            self._bar.set_description_str(figures)


def close_bars() -> None:
    """Close the open bar, even if an interrupt has stopped its drawing or closing."""
    while _bars:
        _clear_line()
        _bars[-1].close()
        _bars.pop()


class _Terminal(logging.Handler):
    def __init__(self, stream: str, outlives_reader: bool) -> None:
        super().__init__()
        self._stream, self._outlives_reader = stream, outlives_reader

    def emit(self, record: logging.LogRecord) -> None:
        if _bars:
            _clear_line()
        try:
            with _bars[-1].external_write_mode() if _bars else nullcontext():  # above the bar
                word = "warning: " if record.levelno == logging.WARNING else ""
                print(word + visible(record.getMessage()), file=getattr(sys, self._stream), flush=True)
        except OSError:
            if not self._outlives_reader:
                raise
            setattr(sys, self._stream, open(os.devnull, "w"))  # noqa: SIM115  # for the rest of the process


def _clear_line() -> None:
    """Clear the line of the bar, where the terminal may have written ^C."""
    print("\r\033[K", end="", file=sys.stderr, flush=True)


def _columns() -> int:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:  # stderr was replaced by something without a terminal
        columns = 0
    return (columns or TERMINAL_COLUMNS) - FOR_CTRL_C
