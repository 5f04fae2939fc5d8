"""Validation by epoch, the curves of all runs over one another."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert4rec.report.compare.columns import Column

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "NDCG@10"
GREY = "#808080"  # can be read on light and on dark
INCHES = (7, 3.6)


def has_curves(compared: Sequence[Column]) -> bool:
    """Whether there is something to draw."""
    return any(run.curve for column in compared for run in column.runs)


def curves_png(compared: Sequence[Column]) -> bytes:
    """For a page of Markdown, on white."""
    content = io.BytesIO()
    _draw(compared).savefig(content, format="png", dpi=120)
    return content.getvalue()


def curves_svg(compared: Sequence[Column]) -> str:
    """For a page of HTML, on whatever it stands: one element, of which the same curves give the same text."""
    from matplotlib import rc_context

    content = io.StringIO()
    with rc_context({"svg.hashsalt": METRIC, "svg.fonttype": "none"}):
        _draw(compared).savefig(content, format="svg", transparent=True, metadata={"Date": None})
    text = content.getvalue()
    return text[text.index("<svg") :]


def _draw(compared: Sequence[Column]) -> "Figure":
    """A line for each run; those of a column have one colour."""
    from matplotlib.figure import Figure  # here, since it is slow to import

    # Without pyplot, which has a screen and figures of whoever calls this.
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots()
    for number, column in enumerate(compared):
        label = column.letter
        for run in column.runs:
            points = [(epoch, metrics[METRIC]) for epoch, metrics in run.curve if METRIC in metrics]
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", color=f"C{number}", label=label)
                label = "_"  # in the legend once
    axes.set_title(f"Validation {METRIC}, full catalogue", color=GREY)
    axes.set_xlabel("epoch", color=GREY)
    axes.set_ylim(bottom=0)
    axes.tick_params(colors=GREY)
    axes.grid(alpha=0.3)
    axes.legend(labelcolor=GREY, framealpha=0)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    return figure
