"""The figures of a run as a picture."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench.record import Record
from benchmarks.bench.table import PARTS, ratios
from benchmarks.bench.timing import OURS, WHOLE, Figure
from bert4rec.report.charts import (
    BAND_COLOR,
    INK_COLOR,
    MODEL_COLOR,
    MUTED_COLOR,
    OTHER_COLORS,
    POPULARITY_COLOR,
    new_figure,
    to_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "bench.png"
COLOURS = (MODEL_COLOR, POPULARITY_COLOR, OTHER_COLORS[0], MUTED_COLOR)


def draw(record: Record, folder: Path) -> None:
    """Ratios to the plain ways as points, with their ranges; beside them the parts of a step, where there are any."""
    plain = [
        figure for figure in record.figures if figure.step == WHOLE and figure.contestant.startswith(("plain", "as "))
    ]
    steps = [figure for figure in record.figures if figure.contestant == OURS and figure.step in PARTS]
    n_steps = len({figure.part for figure in steps})
    with new_figure(7, 1.2 + 0.32 * max(len(plain), n_steps), columns=2 if steps else 1) as (figure, (left, *right)):
        _draw_ratios(left, plain, record)
        for axes in right:
            _draw_steps(axes, steps)
        (folder / FILE).write_bytes(to_png(figure))


def _draw_ratios(axes: "Axes", plain: list[Figure], record: Record) -> None:
    for place, figure in enumerate(reversed(plain)):
        found = ratios(figure, record.figures)
        median = statistics.median(found)
        axes.plot([min(found), max(found)], [place, place], color=BAND_COLOR, linewidth=7, solid_capstyle="round")
        axes.plot(median, place, marker="o", markersize=6, color=MODEL_COLOR)
        axes.annotate(f"{median:.3g}", (max(found), place), xytext=(9, 0), textcoords="offset points", va="center")
    axes.axvline(1, color=MUTED_COLOR, linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(plain)), [f"{figure.part}: {figure.contestant}" for figure in reversed(plain)])
    axes.tick_params(axis="y", length=0, labelcolor=INK_COLOR)
    axes.set(xlabel="bert4rec is × as fast, median and range of the rounds", ylim=(-0.7, len(plain) - 0.3))
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")


def _draw_steps(axes: "Axes", steps: list[Figure]) -> None:
    shapes = list(dict.fromkeys(figure.part for figure in reversed(steps)))
    ends = dict.fromkeys(shapes, 0.0)
    totals = {shape: sum(figure.median for figure in steps if figure.part == shape) for shape in shapes}
    for name, colour in zip(PARTS, COLOURS, strict=True):
        for figure in (figure for figure in steps if figure.step == name):
            share, place = figure.median / totals[figure.part], shapes.index(figure.part)
            axes.barh(place, share, left=ends[figure.part], height=0.6, color=colour, label=name if not place else None)
            ends[figure.part] += share
    axes.set_yticks(range(len(shapes)), [f"{shape}, {1000 * totals[shape]:.0f} ms" for shape in shapes])
    axes.tick_params(axis="y", length=0, labelcolor=INK_COLOR)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PARTS), borderaxespad=0.2)
    axes.set(xlabel="share of bert4rec's step", xlim=(0, 1))
    axes.grid(visible=False, axis="y")
