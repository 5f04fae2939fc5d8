"""The pictures of a report, each from the figures that it shows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bert4rec.report.contestants import BEST_POSSIBLE, MODEL, contestants, main_protocol
from bert4rec.report.curve import curve_of
from bert4rec.report.html.contents import Contents
from bert4rec.report.html.drawing import BAND, BEST, GRID, INK, MUTED, OTHERS, POPULARITY, new_figure
from bert4rec.report.html.drawing import MODEL as MODEL_COLOUR
from bert4rec.runtime.wording import counted, rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {
    "full": (("HR@10", OTHERS[0]), ("NDCG@10", MODEL_COLOUR)),
    "ratings": (("MAE", OTHERS[0]), ("RMSE", MODEL_COLOUR)),
}
COLOURS = {
    MODEL: MODEL_COLOUR, "popularity": POPULARITY, BEST_POSSIBLE: BEST, "markov": OTHERS[0],
    "recent_popularity": OTHERS[1], "transition_graph": OTHERS[2],
}  # fmt: skip
"""Kind → its colour, which is that of its dot in the tables."""
MOST_POINTS = 600  # of a curve: more are not seen, and make the file large
MOST_PROCESSES = 16  # that are drawn

Record = Mapping[str, Any]


class Chart(NamedTuple):
    """A picture: its `name` for files, its `title`, and in a sentence what it shows, for those who do not see it."""

    name: str
    title: str
    description: str
    figure: "Figure"


def charts(contents: Contents) -> Iterator[Chart]:
    """All for which the run has figures."""
    for draw in (_comparison, _loss, _validation, _hits, _scores, _lengths, _plan):
        if chart := draw(contents):
            yield chart


def learning_curve(train: Sequence[Record], validations: Sequence[Record], report: Record) -> "Figure":
    """Loss and validation side by side, by epoch."""
    with new_figure(5, 3.6, columns=2 if validations else 1) as (figure, (left, *right)):
        _draw_loss(left, train)
        left.set_title("Training loss")
        for axes in right:
            _draw_validation(axes, validations, report)
            axes.set_title(_validation_title(validations))
    return figure


def _comparison(contents: Contents) -> Chart | None:
    """The model and its baselines as points on a line, with intervals where they are known."""
    protocol, metric = main_protocol(contents.report), "NDCG@10"
    found = [one for one in contestants(contents.report) if protocol and metric in one.metrics.get(protocol, {})]
    if protocol is None or len(found) < 2:
        return None
    found.sort(key=lambda one: one.metrics[protocol][metric])
    with new_figure(height=0.75 + 0.36 * len(found)) as (figure, (axes,)):
        for place, one in enumerate(found):
            value, colour = one.metrics[protocol][metric], COLOURS.get(one.kind, MUTED)
            if interval := one.interval(protocol, metric):
                axes.plot(interval, [place, place], color=colour, linewidth=5, alpha=0.35, solid_capstyle="round")
            axes.plot(value, place, marker="o", markersize=7, color=colour)
            axes.annotate(f"{value:.4f}", (max(value, interval[1]) if interval else value, place), xytext=(9, 0),
                          textcoords="offset points", va="center", color=INK)  # fmt: skip
        axes.set_yticks(range(len(found)), [one.title for one in found])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set(xlabel=f"{metric} on the test", ylim=(-0.6, len(found) - 0.4))
        axes.set_xlim(0, 1.22 * max(one.metrics[protocol][metric] for one in found) or 1)
        axes.grid(visible=False, axis="y")
    values = ", ".join(f"{one.title} {one.metrics[protocol][metric]:.4f}" for one in reversed(found))
    return Chart("comparison", "Beside the baselines", f"{metric} on the test: {values}.", figure)


def _loss(contents: Contents) -> Chart | None:
    if not contents.train:
        return None
    with new_figure() as (figure, (axes,)):
        _draw_loss(axes, contents.train)
    first, last = contents.train[0]["loss"], contents.train[-1]["loss"]
    text = f"The training loss went from {first:.3f} to {last:.3f} at {_epochs(contents.train[-1])}."
    return Chart("loss", "Training loss", text, figure)


def _validation(contents: Contents) -> Chart | None:
    records = contents.validations
    if not records or not contents.train:  # what is not trained is measured once
        return None
    with new_figure() as (figure, (axes,)):
        _draw_validation(axes, records, contents.report)
    curve = curve_of(records)
    assert curve is not None, "there are validations"
    text = (
        f"The best of {counted(len(records), 'validation')} was at {_epochs(records[curve.best])}: {curve.metric} "
        f"{curve.values[curve.best]:.4f}."
    )
    return Chart("validation", _validation_title(records), text, figure)


def _validation_title(records: Sequence[Record]) -> str:
    return f"Validation, {'full catalogue' if 'full' in records[0] else 'held-out ratings'}"


def _draw_loss(axes: "Axes", train: Sequence[Record]) -> None:
    records = _thinned(train)
    axes.plot([_x(r) for r in records], [r["loss"] for r in records], color=MODEL_COLOUR)
    axes.set(xlabel=_x_label(records), ylabel="loss")
    _integers(axes)


def _draw_validation(axes: "Axes", records: Sequence[Record], report: Record) -> None:
    """The metrics, the best marked, and popularity's as lines."""
    curve, key = curve_of(records), "full" if "full" in records[0] else "ratings"
    assert curve is not None, "there are validations"
    best, thinned = records[curve.best], _thinned(records)
    popularity = report.get("popularity_baseline", {}).get(key, {})
    for metric, colour in METRICS[key]:
        axes.plot([_x(r) for r in thinned], [r[key][metric] for r in thinned], color=colour, label=metric,
                  marker="o" if len(thinned) < 60 else None, markersize=3)  # fmt: skip
        axes.plot(_x(best), best[key][metric], marker="*", markersize=13, color=colour, zorder=5,
                  markeredgecolor="white", markeredgewidth=0.8)  # fmt: skip
        if metric in popularity:
            axes.axhline(popularity[metric], color=colour, linestyle=(0, (4, 3)), linewidth=1.1)
    handles, labels = axes.get_legend_handles_labels()
    if popularity:
        handles += axes.plot([], [], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1)
        labels += ["popularity (test)"]
    handles += axes.plot([], [], color=MUTED, marker="*", markersize=9, linestyle="none")
    labels += [f"best ({_epochs(best)})"]
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    axes.set(xlabel=_x_label(records))
    if key == "full":
        axes.set_ylim(bottom=0)
    _integers(axes)


def _hits(contents: Contents) -> Chart | None:
    """HR@k over k."""
    hits = contents.report.get("hits_by_rank") or {}
    if not hits:
        return None
    ks = hits["ks"]
    found = {one.kind: one for one in contestants(contents.report)}
    names = {"test": MODEL, "popularity_baseline": "popularity", BEST_POSSIBLE: BEST_POSSIBLE}
    with new_figure() as (figure, (axes,)):
        for key, shares in hits.items():
            kind = names.get(key, key)
            if key != "ks" and kind in found:
                axes.plot(ks, shares, color=COLOURS.get(kind, MUTED), label=found[kind].title)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set(xlabel="length of the list", ylabel="share of users", ylim=(0, 1.02))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
    text = "The share of test users whose next item stands within a list, by its length: " + ", ".join(
        f"{100 * share:.1f} % within {k:,}"
        for k, share in zip(ks, hits["test"], strict=True)
        if k in (1, 10, 100, 1000)
    )
    return Chart("hits_by_rank", "Hits by the length of the list", f"{text}.", figure)


def _scores(contents: Contents) -> Chart | None:
    """What the model gives to the items that it recommends, by their places."""
    users = [user for user in contents.examples.get("users", []) if user["recommendations"]]
    if not users:
        return None
    with new_figure() as (figure, (axes,)):
        for user in users:
            scores = [item["score"] for item in user["recommendations"]]
            axes.plot(range(1, len(scores) + 1), scores, color=MODEL_COLOUR, linewidth=1.2, alpha=0.55)
            if user["rank"] <= len(scores) and user["rank"] > 0:
                axes.plot(user["rank"], scores[user["rank"] - 1], marker="o", markersize=6, color=POPULARITY, zorder=5)
        handles = [*axes.plot([], [], color=MODEL_COLOUR), *axes.plot([], [], "o", color=POPULARITY)]
        axes.legend(handles, ["a user", "the item that came next"], loc="lower left", bbox_to_anchor=(0, 1), ncols=2,
                    borderaxespad=0.2)  # fmt: skip
        axes.set(xlabel="place in the list", ylabel="score")
        _integers(axes)
    n_hits = sum(0 < user["rank"] <= len(user["recommendations"]) for user in users)
    of = counted(len(users), "user")
    text = f"The scores of the recommendations of {of}; {n_hits} of them have their next item there."
    return Chart("score_by_rank", "Score by place", text, figure)


def _lengths(contents: Contents) -> Chart | None:
    lengths = contents.report["dataset"].get("lengths")
    if not lengths:
        return None
    bars = lengths["histogram"]
    with new_figure(height=2.6) as (figure, (axes,)):
        axes.bar(range(len(bars)), [n for *_, n in bars], color=MODEL_COLOUR, width=0.8)
        axes.set_xticks(range(len(bars)), [f"{low:,}–{high:,}" if low < high else f"{low:,}" for low, high, _ in bars])
        if len(bars) > 6:
            axes.tick_params(axis="x", labelrotation=30)
        axes.tick_params(axis="x", length=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set(xlabel="interactions of a user", ylabel="users")
        axes.grid(visible=False, axis="x")
    text = (
        f"Users have {lengths['min']:,} to {lengths['max']:,} interactions, the median is {lengths['median']:,.0f}, "
        f"the mean {lengths['mean']:,.1f}."
    )
    return Chart("history_lengths", "How long histories are", text, figure)


def _plan(contents: Contents) -> Chart | None:
    """Each process as a band, in which each table lies on its side: its rows to the right, its columns downwards."""
    plan = contents.report.get("plan") or {}
    tables, shards = plan.get("tables"), plan.get("shards")
    if not tables or not shards:
        return None
    n_processes = contents.report["world_size"]
    n_shown, starts, total = min(n_processes, MOST_PROCESSES), {}, 0
    for name, table in tables.items():
        starts[name] = total
        total += table["rows"] * 1.04
    with new_figure(height=1.0 + 0.42 * n_shown) as (figure, (axes,)):
        for rank in range(n_shown):
            for name, table in tables.items():
                axes.add_patch(_rectangle(starts[name], rank, table["rows"], 1.0, BAND))
        for part in shards:
            if part["rank"] < n_shown:
                height, top = (part[key] / tables[part["table"]]["columns"] for key in ("n_columns", "column"))
                left = starts[part["table"]] + part["row"]
                axes.add_patch(_rectangle(left, part["rank"], part["n_rows"], height, MODEL_COLOUR, top=top))
        axes.set_xlim(-0.005 * total, total)
        axes.set_ylim(n_shown - 0.3, -0.7)
        axes.set_yticks(range(n_shown), [f"process {rank}" for rank in range(n_shown)])
        middles = [starts[name] + table["rows"] / 2 for name, table in tables.items()]
        axes.set_xticks(middles, [f"{name} table: {t['rows']:,} rows × {t['columns']}" for name, t in tables.items()])
        axes.tick_params(length=0, labelcolor=INK)
        axes.grid(visible=False)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    more = f" {n_processes - n_shown} more processes are not drawn." if n_processes > n_shown else ""
    held = {part["rank"] for part in shards}
    text = (
        f"{counted(len(shards), 'shard')} of {counted(len(tables), 'table')} on {len(held)} of "
        f"{counted(n_processes, 'process')}: the filled part is what a process holds.{more}"
    )
    return Chart("sharding_plan", "Who holds which part of the tables", text, figure)


def _rectangle(left: float, rank: int, width: float, height: float, colour: str, top: float = 0.0) -> Any:
    from matplotlib.patches import Rectangle

    band = 0.72  # of the distance between two processes
    return Rectangle(
        (left, rank + band * (top - 0.5)), width, band * height, facecolor=colour, edgecolor=GRID, linewidth=0.5
    )


def _thinned(records: Sequence[Record]) -> Sequence[Record]:
    step = -(-len(records) // MOST_POINTS)
    return [*records[::step], *([records[-1]] if (len(records) - 1) % step else [])] if records else records


def _x(record: Record) -> float:
    return float(record.get("epoch", record["step"]))


def _x_label(records: Sequence[Record]) -> str:
    return "epoch" if records and "epoch" in records[0] else "step"


def _epochs(record: Record) -> str:
    return f"epoch {rounded(record['epoch'])}" if "epoch" in record else f"step {record['step']:,}"


def _integers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
