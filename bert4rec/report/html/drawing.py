"""How pictures look, and how they are written: PNG for anybody, SVG whose colours are those of the page."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL, POPULARITY, BEST, INK, MUTED, GRID, BAND = (
    "#2563c9", "#b4690e", "#4d7c0f", "#22262e", "#69707d", "#e2e4e9", "#dbe6f8",
)  # fmt: skip
OTHERS = ("#0e7c86", "#8b46c1", "#b5306f")
VARIABLES = {
    MODEL: "model", POPULARITY: "popularity", BEST: "best", INK: "ink", MUTED: "muted", GRID: "grid", BAND: "band",
    **{colour: f"other-{number}" for number, colour in enumerate(OTHERS, 1)},
}  # fmt: skip
"""Colour → its name on the page, which has another value for it in the dark."""

STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9.5, "axes.titlesize": 10, "axes.labelsize": 9.5, "legend.fontsize": 9,
    "xtick.labelsize": 9, "ytick.labelsize": 9,
    "axes.edgecolor": MUTED, "axes.labelcolor": MUTED, "axes.titlecolor": INK, "text.color": INK,
    "xtick.color": MUTED, "ytick.color": MUTED, "grid.color": GRID, "axes.grid": True, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "grid.linewidth": 0.8,
    "xtick.major.width": 0.8, "ytick.major.width": 0.8, "lines.linewidth": 1.8, "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "bert4rec",
}  # fmt: skip
SIZE = (5.0, 3.0)  # inches: text stays readable where a phone shows it, or two stand side by side
DPI = 120

ATTRIBUTE, DIGITS = re.compile(r'="[^"]*"'), re.compile(r"(\.\d\d)\d+")
REWRITTEN = [
    (re.compile(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL), ""),
    (re.compile(r' id="(?![mp][0-9a-f]{10}")[^"]*"'), ""),  # which nothing refers to
    *[(re.compile(rf'(<svg[^>]*?) {name}="[^"]*"'), r"\1") for name in ("width", "height")],
    (re.compile(r" font-family: [^;]*;"), ""),
    (re.compile(r"\s+"), " "),
]


@contextmanager
def new_figure(
    width: float = SIZE[0], height: float = SIZE[1], columns: int = 1
) -> Iterator[tuple["Figure", list["Axes"]]]:
    """A figure with plots side by side, each `width` wide, in inches.

    Without pyplot, which has a screen and figures of whoever calls this.
    """
    from matplotlib import rc_context

    from bert4rec.report.html.picture import Picture

    with rc_context(STYLE):
        figure = Picture(figsize=(columns * width, height), layout="constrained")
        yield figure, list(figure.subplots(1, columns, squeeze=False)[0])


def write_png(figure: "Figure", path: Path) -> None:
    """The picture as it is printed, on white."""
    figure.savefig(path, dpi=DPI)
    figure.set_layout_engine("none")  # what is drawn again keeps its places, which are slow to find


def to_svg(figure: "Figure", name: str, description: str) -> str:
    """The picture as an element of the page: no background, its colours variables, its text the page's font.

    `name` sets the ids of its parts apart from those of other pictures; `description`, in place of it for those who do
    not see it, is to be escaped already.
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for pattern, replacement in REWRITTEN:
        text = pattern.sub(replacement, text)
    text = ATTRIBUTE.sub(lambda match: DIGITS.sub(r"\1", match[0]), text)
    text = re.sub(r'(id="|#)([mp][0-9a-f]{10})', rf"\1{name}-\2", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)
