"""The terminal: what the package logs, line by line, what libraries do not, and the one progress bar.

The bar stays whole whatever the terminal's width.
"""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any, Self

from tqdm import tqdm

FOR_CTRL_C = 3  # columns left free at the end of the bar: the terminal writes ^C there, which must not wrap
COLUMNS = 80  # of a terminal that does not say
SECONDS_BETWEEN_BARS = 0.5
SECONDS_BETWEEN_LINES = 10.0
BAR = "{percentage:3.0f} % |{bar}| {desc}"
NO_BAR = "{desc}"  # the figures alone, in their place

NOISY = ("torch", "torchrec")  # loggers
EVENTS = "BERT4REC_EVENTS"  # a variable; set: a program has started this process, and reads events on its stdout
EVENT = "\x1e"  # how the line of an event begins: JSON text sequences, RFC 7464

logger = logging.getLogger(__name__)
_open: "list[ProgressBar]" = []


def log_to_terminal(*, is_shown: bool = True, stream: str = "stdout", outlives_reader: bool = False) -> None:
    """Show on `stream` what the package logs from now on: a record is a line, a warning has that word before it.

    Without `is_shown`, as on all processes but the first, there are neither lines nor bars. With `outlives_reader` it
    is no reason to end where nobody reads any more (`| head`, a closed terminal); else that raises `OSError`.
    """
    package = logging.getLogger("bert4rec")
    package.handlers = [_Terminal(stream, outlives_reader)]
    package.setLevel(logging.INFO if is_shown else logging.CRITICAL)
    package.propagate = False  # libraries give the root a handler, which would show every line once more


@contextmanager
def quiet_libraries(*names: str) -> Iterator[None]:
    """Within: no warnings of the libraries about themselves; what their import has set for all is as it was before.

    Those of the `names` are imported first: torchrec gives the root logger a handler, which would show our warnings.
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
            _restore_environment(environment)


def _restore_environment(before: Mapping[str, str]) -> None:
    """Variable by variable, of those that have changed: a thread of a library may read the others meanwhile."""
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def tell(**event: Any) -> None:
    """An event for the program that has started this process, where it reads some: a line of JSON on stdout."""
    if EVENTS in os.environ and logger.isEnabledFor(logging.INFO):
        with suppress(OSError):  # of a program that has died
            print(EVENT + json.dumps(event), flush=True)


class ProgressBar:
    """How far the work of a `with` block is: a bar at the foot of a terminal, else a line now and then.

    Of `total` units, `done` were made before. `form`: what a terminal shows of it (`BAR`, `NO_BAR`). The bar `stays`
    in the end, or is taken away. With `seconds` there are lines on a terminal too, so many seconds apart.
    """

    def __init__(
        self, total: int, *, done: int = 0, form: str = BAR, stays: bool = False, seconds: float | None = None
    ) -> None:
        self._total, self._first, self._form, self._stays = max(1, total), done, form, stays
        self._has_only_lines = seconds is not None
        self._pause = SECONDS_BETWEEN_LINES if seconds is None else seconds
        self._bar: tqdm[None] | None = None
        self._began = self._shown_at = time.monotonic()

    def __enter__(self) -> Self:
        self._began = self._shown_at = time.monotonic()
        if EVENTS in os.environ:
            self._pause = SECONDS_BETWEEN_BARS
        elif not self._has_only_lines and sys.stderr.isatty() and logger.isEnabledFor(logging.INFO):
            self._pause = SECONDS_BETWEEN_BARS
            _open.append(self)  # first: an interrupt may come as soon as the bar is drawn
            self._bar = tqdm(total=self._total, initial=self._first, bar_format=self._form, ncols=_columns())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.monotonic() - self._began

    def seconds_left(self, done: int) -> float:
        """After `done` units, at the pace so far."""
        return self.seconds * max(0, self._total - done) / max(1, done - self._first)

    def is_due(self) -> bool:
        """Whether it is time to `show` something: asked first, since figures may cost something."""
        return time.monotonic() - self._shown_at >= self._pause

    def show(self, done: int, figures: str, *, line: str = "") -> None:
        """`done` units so far: the `figures` behind the bar, or where there is none the `line`, or else the figures."""
        self._shown_at = time.monotonic()
        if EVENTS in os.environ:
            tell(done=done, total=self._total, figures=figures)
            return
        if self._bar is None:
            logger.info(line or figures)
            return
        self._bar.ncols, self._bar.n = _columns(), done
        self._bar.set_description_str(figures, refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        """End the bar: it stays as it was last, on a line of its own, or is taken away."""
        if self in _open:
            _clear_line()
            if self._bar is not None:
                self._bar.leave = self._stays
                self._bar.close()
            _open.remove(self)  # last: an interrupt may come at any of these lines


def close_bars() -> None:
    """Close what an interrupt has left: a second one may have come while the first one was closing the bar."""
    for bar in list(_open):
        bar.close()


class _Terminal(logging.Handler):
    def __init__(self, stream: str, outlives_reader: bool) -> None:
        super().__init__()
        self._stream, self._outlives_reader = stream, outlives_reader

    def emit(self, record: logging.LogRecord) -> None:
        if _open:
            _clear_line()
        try:
            with tqdm.external_write_mode() if _open else nullcontext():  # above the bar
                word = "warning: " if record.levelno == logging.WARNING else ""
                print(word + record.getMessage(), file=getattr(sys, self._stream), flush=True)
        except OSError:
            if not self._outlives_reader:
                raise
            setattr(sys, self._stream, open(os.devnull, "w"))  # noqa: SIM115  # for the rest of the process


def _clear_line() -> None:
    """Of what the terminal itself may have written beside the bar."""
    print("\r\033[K", end="", file=sys.stderr, flush=True)


def _columns() -> int:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return (columns or COLUMNS) - FOR_CTRL_C
