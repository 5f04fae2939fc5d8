"""How a training is shown to whoever has started it from Python: in the cell of a notebook, or as the package logs."""

import html
import logging
import sys

from bert4rec.launch.training import View

MOST_LINES = 12  # of what was said last, in a cell

logger = logging.getLogger(__name__)


class LogView:
    """What the training says is logged, its progress too: `log_to_terminal` shows it."""

    def line(self, text: str) -> None:
        """Log it."""
        logger.info(text)

    def progress(self, done: int, total: int, figures: str) -> None:
        """Log it."""
        logger.info(f"{done:,}/{total:,}  {figures}")


class CellView:
    """One output of a cell of a notebook, which changes in place: a bar, its figures, and what was said last."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._lines = HTML, list[str]()
        self._done, self._total, self._figures = 0, 1, "starting"
        self._handle = display(self._page(), display_id=True)

    def line(self, text: str) -> None:
        """Show it below the bar."""
        if text.strip():
            self._lines.append(text)
            self._show()

    def progress(self, done: int, total: int, figures: str) -> None:
        """Move the bar."""
        self._done, self._total, self._figures = done, total, figures
        self._show()

    def _show(self) -> None:
        self._handle.update(self._page())

    def _page(self) -> object:
        lines = html.escape("\n".join(self._lines[-MOST_LINES:]))
        return self._html(
            f'<progress value="{self._done}" max="{self._total}" style="width: 20em"></progress> '
            f"{100 * self._done / self._total:.0f} % {html.escape(self._figures)}"
            f'<pre style="white-space: pre-wrap">{lines}</pre>'
        )


def make_view() -> View:
    """A cell's, in a notebook."""
    return CellView() if is_notebook() else LogView()


def is_notebook() -> bool:
    """Whether this is the kernel of one: nobody imports IPython before."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell"
