"""The terminal: lines, and the one progress bar that stays whole whatever its width."""

import os
import sys

from tqdm import tqdm

FOR_CTRL_C = 3  # columns left free at the end of the bar: the terminal writes ^C there, which must not wrap
COLUMNS = 80  # of a terminal that does not say

_open: "list[Bar]" = []


class Bar:
    """A bar at the foot of a terminal, of `total` units; `figures` stand behind it. `done` were made before."""

    def __init__(self, total: int, *, name: str = "", done: int = 0) -> None:
        head = f"{name:8} " if name else ""
        form = head + "{percentage:3.0f} % |{bar}| {desc}"
        self._bar: tqdm[None] | None = None
        _open.append(self)  # first: an interrupt may come as soon as the bar is drawn
        self._bar = tqdm(total=max(1, total), initial=done, bar_format=form, ncols=_columns())

    def show(self, done: int, figures: str) -> None:
        """`done` units so far, and the figures of now."""
        assert self._bar is not None, "the bar is made"
        self._bar.ncols, self._bar.n = _columns(), done
        self._bar.set_description_str(figures, refresh=False)
        self._bar.refresh()

    def write(self, line: str) -> None:
        """A line above the bar."""
        _clear_line()
        with tqdm.external_write_mode():
            show(line)

    def close(self, *, stays: bool) -> None:
        """End the bar: it stays as it was last, on a line of its own, or is taken away."""
        if self in _open:
            _clear_line()
            if self._bar is not None:
                self._bar.leave = stays
                self._bar.close()
            _open.remove(self)  # last: an interrupt may come at any of these lines


def close_bars() -> None:
    """Take away what an interrupt has left: a second one may have come while the first one was closing the bar."""
    for bar in list(_open):
        bar.close(stays=False)


def show(text: str) -> None:
    """A line for the person; where nobody reads any more (`| head`, a closed terminal) that is no reason to end."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the process


def _clear_line() -> None:
    """Of what the terminal itself may have written beside the bar."""
    print("\r\033[K", end="", file=sys.stderr, flush=True)


def _columns() -> int:
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return (columns or COLUMNS) - FOR_CTRL_C
