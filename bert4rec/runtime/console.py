"""The terminal: log lines of the package, silence of libraries, and the one progress bar."""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any, Self

FOR_CTRL_C = 3  # free columns behind the bar: the terminal writes ^C there, which must not wrap
COLUMNS = 80  # of a terminal that does not say how wide it is
SECONDS_BETWEEN_BARS = 0.5
SECONDS_BETWEEN_LINES = 10.0
BAR = "{percentage:3.0f} % |{bar}| {desc}"
NO_BAR = "{desc}"  # only the figures

NOISY = ("torch", "torchrec")  # loggers
EVENTS = "BERT4REC_EVENTS"  # environment variable: set if the program that started this process reads events
EVENT = "\x1e"  # start of an event line: JSON text sequences, RFC 7464

logger = logging.getLogger(__name__)
_bars: list[Any] = []  # those of tqdm that are open: one at most


def log_to_terminal(*, is_shown: bool = True, stream: str = "stdout", outlives_reader: bool = False) -> None:
    """Show on `stream` what the package logs from now on: a line a record, with "warning: " before a warning.

    Without `is_shown` (all processes but the first) there are neither lines nor bars. If the reader goes away, as with
    `| head` or a closed terminal, logging raises `OSError`, or goes on in silence with `outlives_reader`.
    """
    package = logging.getLogger("bert4rec")
    package.handlers = [_Terminal(stream, outlives_reader)]
    package.setLevel(logging.INFO if is_shown else logging.CRITICAL)
    package.propagate = False  # libraries give the root a handler, which would show every line once more


@contextmanager
def quiet_libraries(*names: str) -> Iterator[None]:
    """Silence the libraries' warnings in a block, and restore loggers and environment variables after it.

    The packages `names` are imported first: torchrec gives the root logger a handler, which would repeat our warnings.
    """
    root, environment = logging.getLogger(), dict(os.environ)
    handlers, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in NOISY}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in names:
                import_module(name)
            # fbgemm calls logging.info, which gives a root without any handler one that shows our warnings.
            root.handlers = list(handlers) or [logging.NullHandler()]
            for name in NOISY:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
        finally:
            for name, before in levels.items():
                logging.getLogger(name).setLevel(before)
            root.handlers, root.level = handlers, level
            # Only variables that have changed: a thread of a library may be reading the other ones.
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})


def emit_event(**event: Any) -> None:
    """Write an event as a line of JSON on stdout if the program that started this process reads events."""
    if EVENTS in os.environ and logger.isEnabledFor(logging.INFO):
        with suppress(OSError):  # that program has died
            print(EVENT + json.dumps(event), flush=True)


class ProgressBar:
    """Shows the progress of a `with` block: a bar at the foot of a terminal, else a line every few seconds, or events.

    `done` of the `total` units were made before. `form` is the format of the bar (`BAR`, `NO_BAR`). The bar `stays` at
    the end, or is removed. With `seconds` there are lines on a terminal too, so many seconds apart.
    """

    def __init__(
        self, total: int, *, done: int = 0, form: str = BAR, stays: bool = False, seconds: float | None = None
    ) -> None:
        self._total, self._first, self._form, self._stays = max(1, total), done, form, stays
        self._seconds_between_lines = seconds
        self._bar: Any = None

    def __enter__(self) -> Self:
        self._began = self._shown_at = time.monotonic()
        has_events, seconds = EVENTS in os.environ, self._seconds_between_lines
        if not has_events and seconds is None and sys.stderr.isatty() and logger.isEnabledFor(logging.INFO):
            from tqdm import tqdm  # no command should wait for it that shows no bar

            options: dict[str, Any] = {"bar_format": self._form, "ncols": _columns(), "leave": self._stays}
            self._bar = tqdm(total=self._total, initial=self._first, delay=1e-9, **options)  # draws nothing yet
            _bars.append(self._bar)  # first, so that an interrupt while it is drawn finds it
            self._bar.delay = 0
            self._bar.refresh()
        self._pause = SECONDS_BETWEEN_LINES if seconds is None else seconds
        if has_events or self._bar is not None:
            self._pause = SECONDS_BETWEEN_BARS
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            close_bars()

    @property
    def seconds(self) -> float:
        """Return the seconds since the block began."""
        return time.monotonic() - self._began

    def seconds_left(self, done: int) -> float:
        """Return the seconds that the rest takes after `done` units, at the speed so far."""
        return self.seconds * max(0, self._total - done) / max(1, done - self._first)

    def is_due(self) -> bool:
        """Return whether it is time to `show` something."""
        return time.monotonic() - self._shown_at >= self._pause

    def show(self, done: int, figures: str, *, line: str = "") -> None:
        """Show the `figures` of `done` units behind the bar; without a bar the `line`, if any, instead of them."""
        self._shown_at = time.monotonic()
        if EVENTS in os.environ:
            emit_event(done=done, total=self._total, figures=figures)
        elif self._bar is None:
            logger.info(line or figures)
        else:
            self._bar.ncols, self._bar.n = _columns(), done
            self._bar.set_description_str(figures)


def close_bars() -> None:
    """Close the open bar, also one whose drawing or closing an interrupt has broken off."""
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
                print(word + record.getMessage(), file=getattr(sys, self._stream), flush=True)
        except OSError:
            if not self._outlives_reader:
                raise
            setattr(sys, self._stream, open(os.devnull, "w"))  # noqa: SIM115  # for the rest of the process


def _clear_line() -> None:
    """Clear what the terminal itself may have written beside the bar: ^C."""
    print("\r\033[K", end="", file=sys.stderr, flush=True)


def _columns() -> int:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:  # stderr was replaced by something without a terminal
        columns = 0
    return (columns or COLUMNS) - FOR_CTRL_C
