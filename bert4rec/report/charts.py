"""Draw the charts of a report, as PNG and as SVG in the colours of the page."""

import html
import io
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from bert4rec.evaluation import BEST_POSSIBLE
from bert4rec.report.figures import MODEL, Contents, Report, contestants, curve_of, main_protocol
from bert4rec.report.templates import sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL_COLOR, POPULARITY_COLOR, BEST_COLOR, INK_COLOR, MUTED_COLOR, GRID_COLOR, BAND_COLOR = (
    "#2563c9", "#b4690e", "#4d7c0f", "#22262e", "#69707d", "#e2e4e9", "#dbe6f8",
)  # fmt: skip
OTHER_COLORS = ("#0e7c86", "#8b46c1", "#b5306f", "#be3a2b", "#6f5a3c")
VARIABLES = {
    MODEL_COLOR: "model", POPULARITY_COLOR: "popularity", BEST_COLOR: "best", INK_COLOR: "ink",
    MUTED_COLOR: "muted", GRID_COLOR: "grid", BAND_COLOR: "band",
    **{colour: f"other-{number}" for number, colour in enumerate(OTHER_COLORS, 1)},
}  # fmt: skip
"""Colour → its CSS variable, which has another value in dark mode."""

STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9.5, "axes.titlesize": 10, "axes.labelsize": 9.5, "legend.fontsize": 9,
    "xtick.labelsize": 9, "ytick.labelsize": 9,
    "axes.edgecolor": MUTED_COLOR, "axes.labelcolor": MUTED_COLOR, "axes.titlecolor": INK_COLOR,
    "text.color": INK_COLOR,
    "xtick.color": MUTED_COLOR, "ytick.color": MUTED_COLOR, "grid.color": GRID_COLOR,
    "axes.grid": True, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "grid.linewidth": 0.8,
    "xtick.major.width": 0.8, "ytick.major.width": 0.8, "lines.linewidth": 1.8, "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "bert4rec",
}  # fmt: skip
SIZE = (5.0, 3.0)  # inches: text stays readable on a phone, and with two pictures in a row
DPI = 120
ABOVE: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}  # position of a legend

ATTRIBUTE, DIGITS = re.compile(r'="[^"]*"'), re.compile(r"(\.\d\d)\d+")
REWRITTEN = [
    (re.compile(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL), ""),
    (re.compile(r' id="(?![mp][0-9a-f]{10}")[^"]*"'), ""),  # without a reference to them
    *[(re.compile(rf'(<svg[^>]*?) {name}="[^"]*"'), r"\1") for name in ("width", "height")],
    (re.compile(r" font-family: [^;]*;"), ""),
    (re.compile(r"\s+"), " "),
]

CHART_METRICS = {
    "full": (("HR@10", OTHER_COLORS[0]), ("NDCG@10", MODEL_COLOR)),
    "ratings": (("MAE", OTHER_COLORS[0]), ("RMSE", MODEL_COLOR)),
}
COLOURS = {
    MODEL: MODEL_COLOR, "popularity": POPULARITY_COLOR, BEST_POSSIBLE: BEST_COLOR, "markov": OTHER_COLORS[0],
    "recent_popularity": OTHER_COLORS[1], "transition_graph": OTHER_COLORS[2], "content_neighbours": OTHER_COLORS[3],
    "ease": OTHER_COLORS[4],
}  # fmt: skip
"""Kind → its colour, also that of its dot in the tables."""
MAX_POINTS = 600  # points of a curve; more are invisible and make the file large
MOST_DRAWN = 16  # largest number of processes to draw


@contextmanager
def new_figure(
    width: float = SIZE[0], height: float = SIZE[1], columns: int = 1
) -> Iterator[tuple["Figure", list["Axes"]]]:
    """Yield a figure, which a notebook shows, with plots side by side, each `width` × `height` inches.

    Does not use pyplot, whose state belongs to the caller.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its warnings where a home folder is read-only
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that Jupyter can show; without this method it shows only figures of pyplot."""

        def _repr_png_(self, **_: Any) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png")
            return content.getvalue()

    with rc_context(STYLE):
        figure = Picture(figsize=(columns * width, height), layout="constrained")
        yield figure, list(figure.subplots(1, columns, squeeze=False)[0])


def to_png(figure: "Figure") -> bytes:
    """Return the picture as PNG on white."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    figure.set_layout_engine("none")  # a second drawing keeps the layout, which is slow to compute
    return content.getvalue()


def to_svg(figure: "Figure", name: str, description: str) -> str:
    """Return the picture as an element of the page: no background, its colours CSS variables, its font the page's.

    `name` makes the ids of its parts unique on the page; `description` is its alternative text, already escaped.
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


class Chart(NamedTuple):
    """A picture: the `name` of its file, its `title`, and a sentence as its alternative text."""

    name: str
    title: str
    description: str
    figure: "Figure"


def page_values(chart: Chart) -> dict[str, Any]:
    """Return what a page shows of a chart: its `title`, its `description` and the picture as `svg`."""
    from markupsafe import Markup

    svg = to_svg(chart.figure, chart.name, html.escape(chart.description))
    return {"title": chart.title, "description": chart.description, "svg": Markup(svg)}


def _chart(name: str, title: str, figure: "Figure", **values: Any) -> Chart:
    return Chart(name, title, sentence(f"chart_{name}", **values), figure)


def charts(contents: Contents) -> Iterator[Chart]:
    """Yield the charts that the run has figures for."""
    for draw in (_comparison, _loss, _validation, _hits, _lengths, _plan):
        if chart := draw(contents):
            yield chart


def learning_curve(train: Sequence[Report], validations: Sequence[Report], report: Report) -> "Figure":
    """Return a figure of the loss and of the validations by epoch, side by side."""
    with new_figure(5, 3.6, columns=2 if validations else 1) as (figure, (left, *right)):
        _draw_loss(left, train)
        left.set_title("Training loss")
        for axes in right:
            _draw_validation(axes, validations, report)
            axes.set_title(_validation_title(validations), pad=38)  # above the two lines of the legend
    return figure


def _comparison(contents: Contents) -> Chart | None:
    """Draw the model and its baselines as points on lines, with their intervals."""
    protocol, metric = main_protocol(contents.report), "NDCG@10"
    found = [one for one in contestants(contents.report) if protocol and metric in one.metrics.get(protocol, {})]
    if protocol is None or len(found) < 2:
        return None
    found.sort(key=lambda one: one.metrics[protocol][metric])
    with new_figure(height=0.75 + 0.36 * len(found)) as (figure, (axes,)):
        for place, one in enumerate(found):
            value, colour = one.metrics[protocol][metric], COLOURS.get(one.kind, MUTED_COLOR)
            if interval := one.interval(protocol, metric):
                axes.plot(interval, [place, place], color=colour, linewidth=5, alpha=0.35, solid_capstyle="round")
            axes.plot(value, place, marker="o", markersize=7, color=colour)
            axes.annotate(f"{value:.4f}", (max(value, interval[1]) if interval else value, place), xytext=(9, 0),
                          textcoords="offset points", va="center", color=INK_COLOR)  # fmt: skip
        axes.set_yticks(range(len(found)), [one.title for one in found])
        axes.tick_params(axis="y", length=0, labelcolor=INK_COLOR)
        axes.set(xlabel=f"{metric} on the test", ylim=(-0.6, len(found) - 0.4))
        axes.set_xlim(0, 1.22 * max(one.metrics[protocol][metric] for one in found) or 1)
        axes.grid(visible=False, axis="y")
    values = [(one.title, one.metrics[protocol][metric]) for one in reversed(found)]
    return _chart("comparison", "Comparison with the baselines", figure, metric=metric, values=values)


def _loss(contents: Contents) -> Chart | None:
    if not contents.train:
        return None
    with new_figure() as (figure, (axes,)):
        _draw_loss(axes, contents.train)
    return _chart("loss", "Training loss", figure, first=contents.train[0], last=contents.train[-1])


def _validation(contents: Contents) -> Chart | None:
    records = contents.validations
    if not records or not contents.train:  # a model without training is measured once
        return None
    with new_figure() as (figure, (axes,)):
        _draw_validation(axes, records, contents.report)
    return _chart("validation", _validation_title(records), figure, curve=curve_of(records))


def _validation_title(records: Sequence[Report]) -> str:
    return f"Validation, {'full catalogue' if 'full' in records[0] else 'held-out ratings'}"


def _draw_loss(axes: "Axes", train: Sequence[Report]) -> None:
    records = _thinned(train)
    axes.plot([r["epoch"] for r in records], [r["loss"] for r in records], color=MODEL_COLOR)
    axes.set(xlabel="epoch", ylabel="loss")
    _integers(axes)


def _draw_validation(axes: "Axes", records: Sequence[Report], report: Report) -> None:
    """Draw the metrics, with a star on the best validation, and popularity's as lines."""
    curve, key = curve_of(records), "full" if "full" in records[0] else "ratings"
    assert curve is not None, "there are validations"
    best, thinned = records[curve.best], _thinned(records)
    popularity = report.get("popularity_baseline", {}).get(key, {})
    for metric, colour in CHART_METRICS[key]:
        axes.plot([r["epoch"] for r in thinned], [r[key][metric] for r in thinned], color=colour, label=metric,
                  marker="o" if len(thinned) < 60 else None, markersize=3)  # fmt: skip
        axes.plot(best["epoch"], best[key][metric], marker="*", markersize=13, color=colour, zorder=5,
                  markeredgecolor="white", markeredgewidth=0.8)  # fmt: skip
        if metric in popularity:
            axes.axhline(popularity[metric], color=colour, linestyle=(0, (4, 3)), linewidth=1.1)
    handles, labels = axes.get_legend_handles_labels()
    if popularity:
        handles += axes.plot([], [], color=MUTED_COLOR, linestyle=(0, (4, 3)), linewidth=1.1)
        labels += ["popularity (test)"]
    handles += axes.plot([], [], color=MUTED_COLOR, marker="*", markersize=9, linestyle="none")
    labels += [f"best (epoch {curve.epochs[curve.best]})"]
    axes.legend(handles, labels, ncols=2, **ABOVE)
    axes.set(xlabel="epoch")
    if key == "full":
        axes.set_ylim(bottom=0)
    _integers(axes)


def _hits(contents: Contents) -> Chart | None:
    """Draw HR@k over k."""
    if not (hits := contents.report.get("hits_by_rank")):
        return None
    ks = hits["ks"]
    found = {one.kind: one for one in contestants(contents.report)}
    names = {"test": MODEL, "popularity_baseline": "popularity", BEST_POSSIBLE: BEST_POSSIBLE}
    with new_figure() as (figure, (axes,)):
        for key, shares in hits.items():
            kind = names.get(key, key)
            if key != "ks" and kind in found:
                axes.plot(ks, shares, color=COLOURS.get(kind, MUTED_COLOR), label=found[kind].title)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set(xlabel="length of the list", ylabel="share of users", ylim=(0, 1.02))
        axes.legend(ncols=3, **ABOVE)
    return _chart(
        "hits_by_rank", "Hits by the length of the list", figure, shares=dict(zip(ks, hits["test"], strict=True))
    )


def _lengths(contents: Contents) -> Chart | None:
    lengths = contents.report["dataset"].get("lengths")
    return draw_lengths(lengths) if lengths else None


def draw_lengths(lengths: Mapping[str, Any]) -> Chart:
    """Return the chart of the histogram of the histories' `lengths`, as `metadata.json` has it."""
    bars = lengths["histogram"]
    with new_figure(height=2.6) as (figure, (axes,)):
        axes.bar(range(len(bars)), [n for *_, n in bars], color=MODEL_COLOR, width=0.8)
        labels = [f"{low:,}–{high:,}" if low < high else f"{low:,}" for low, high, _ in bars]
        axes.set_xticks(range(len(bars)), labels)
        if len(bars) > 6:
            axes.tick_params(axis="x", labelrotation=30)
        axes.tick_params(axis="x", length=0)
        show_counts(axes)
        axes.set(xlabel="interactions of a user", ylabel="users")
        axes.grid(visible=False, axis="x")
    return _chart("history_lengths", "How long histories are", figure, lengths=lengths)


def _plan(contents: Contents) -> Chart | None:
    """Draw each process as a band with its shards: table rows to the right, table columns downwards."""
    if not (plan := contents.report.get("plan")):
        return None
    from matplotlib.patches import Rectangle

    tables, shards = plan["tables"], plan["shards"]
    band = 0.72  # of the distance between two processes
    n_processes = contents.report["world_size"]
    n_shown, starts, total = min(n_processes, MOST_DRAWN), {}, 0
    for name, table in tables.items():
        starts[name] = total
        total += table["rows"] * 1.04
    with new_figure(height=1.0 + 0.42 * n_shown) as (figure, (axes,)):

        def add_rectangle(left: float, rank: int, width: float, height: float, colour: str, top: float = 0.0) -> None:
            corner = (left, rank + band * (top - 0.5))
            axes.add_patch(
                Rectangle(corner, width, band * height, facecolor=colour, edgecolor=GRID_COLOR, linewidth=0.5)
            )

        for rank in range(n_shown):
            for name, table in tables.items():
                add_rectangle(starts[name], rank, table["rows"], 1.0, BAND_COLOR)
        for part in shards:
            if part["rank"] < n_shown:
                height, top = (part[key] / tables[part["table"]]["columns"] for key in ("n_columns", "column"))
                left = starts[part["table"]] + part["row"]
                add_rectangle(left, part["rank"], part["n_rows"], height, MODEL_COLOR, top)
        axes.set_xlim(-0.005 * total, total)
        axes.set_ylim(n_shown - 0.3, -0.7)
        axes.set_yticks(range(n_shown), [f"process {rank}" for rank in range(n_shown)])
        middles = [starts[name] + table["rows"] / 2 for name, table in tables.items()]
        axes.set_xticks(middles, [f"{name} table: {t['rows']:,} rows × {t['columns']}" for name, t in tables.items()])
        axes.tick_params(length=0, labelcolor=INK_COLOR)
        axes.grid(visible=False)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    return _chart(
        "sharding_plan", "Tables by process", figure, plan=plan, n_processes=n_processes,
        n_hidden=n_processes - n_shown,
    )  # fmt: skip


def _thinned(records: Sequence[Report]) -> Sequence[Report]:
    step = -(-len(records) // MAX_POINTS)
    return [*records[::step], *([records[-1]] if (len(records) - 1) % step else [])] if records else records


def show_counts(axes: "Axes") -> None:
    """Write the numbers beside the plot as 12,000."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _integers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
