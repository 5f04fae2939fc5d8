"""Draw the updates of a models folder by day: scores and decisions, unknown users and items, the data, the minutes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bert4rec.config.kinds import KINDS, POPULARITY
from bert4rec.report.charts import (
    ABOVE,
    BEST_COLOR,
    COLOURS,
    INK_COLOR,
    MODEL_COLOR,
    MUTED_COLOR,
    OTHER_COLORS,
    POPULARITY_COLOR,
    SIZE,
    Chart,
    new_figure,
    show_counts,
)
from bert4rec.report.figures import MODEL
from bert4rec.runtime.arrays import Bools, Float64s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Update: TypeAlias = Mapping[str, Any]
"""A line of `updates.jsonl`."""
Days: TypeAlias = NDArray[np.datetime64]

SHOWN_METRIC = "NDCG@10"
DECISION_MARKS = {
    "blessed": ("o", 5, BEST_COLOR), "cannot tell": ("D", 5, POPULARITY_COLOR),
    "refused": ("X", 7, OTHER_COLORS[3]), "stopped": ("s", 5, INK_COLOR),
}  # fmt: skip
"""Decision → its marker, the size in points, and its colour."""
ROW_LINES = {
    "known": ("there already", OTHER_COLORS[0]), "late": ("late", POPULARITY_COLOR),
    "bad": ("unusable", OTHER_COLORS[3]), "future": ("in the future", OTHER_COLORS[1]),
}  # fmt: skip
STAGE_COLORS = (MUTED_COLOR, OTHER_COLORS[0], MODEL_COLOR, POPULARITY_COLOR, *OTHER_COLORS[1:])
ONE_DAY, ONE_WEEK = np.timedelta64(1, "D"), np.timedelta64(7, "D")
BAR_HOURS = (-9, -9, 9, 9)  # edges of the bar of a day
FEW_POINTS = 60  # up to as many, each day is a point; of more, means of seven days are drawn over the days
LONG_GAP = 7  # a line is interrupted where there was no update for so many times the usual distance


class Score(NamedTuple):
    """The NDCG@10 of one contestant in each update, NaN where it was not measured, and on how many users."""

    kind: str
    title: str
    values: Float64s
    users: Float64s


def figures(updates: Sequence[Update], *keys: str) -> Float64s:
    """Return the number under nested `keys` of each update [n], NaN where a key is missing or null."""
    return np.array([_figure(update, keys) for update in updates], float)


def _figure(update: Update, keys: Sequence[str]) -> float:
    value: Any = update
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float("nan") if value is None else float(value)


def days_of(updates: Sequence[Update]) -> Days:
    """Return the day of the newest row of each update [n], in UTC.

    An update without rows has the day when it began. One that was stopped may have rows with wrong times: if they are
    not within a week after the update before, it is put a day after that.
    """
    days = [_newest_day(update) for update in updates]
    is_stopped = [update["decision"] == "stopped" for update in updates]
    trusted = [day for day, stopped in zip(days, is_stopped, strict=True) if not stopped]
    previous: Any = trusted[0] - ONE_DAY if trusted else days[0] if days else None
    for place, stopped in enumerate(is_stopped):
        if stopped and not previous <= days[place] <= previous + ONE_WEEK:
            days[place] = previous + ONE_DAY
        previous = days[place]
    return np.array(days, "datetime64[D]")


def _newest_day(update: Update) -> Any:
    _, newest = update.get("day") or (None, None)
    if newest is None:
        return np.datetime64(update["time"][:10])
    return np.datetime64(int(newest), "s").astype("datetime64[D]")


def scores(updates: Sequence[Update]) -> list[Score]:
    """Return the scores of the champion, of popularity and of the best simple baseline, if they were measured."""
    users = figures(updates, "score", "users")
    baselines = [(update.get("score") or {}).get("baseline") or {} for update in updates]
    kinds = Counter(baseline["kind"] for baseline in baselines if "kind" in baseline)
    others = [kind for kind, _ in kinds.most_common() if kind != POPULARITY]
    title = KINDS[others[0]].title if len(kinds) == 1 and others and others[0] in KINDS else "best simple baseline"
    found = [
        Score(MODEL, "champion", figures(updates, "score", SHOWN_METRIC), users),
        Score(POPULARITY, "popularity", figures(updates, "score", "popularity", SHOWN_METRIC), users),
    ]
    if others:  # otherwise popularity itself was the best
        found.append(Score(others[0], title, figures(updates, "score", "baseline", SHOWN_METRIC), users))
    return [score for score in found if np.isfinite(score.values).any()]


def mean_over(values: Float64s, users: Float64s, is_chosen: Bools) -> float:
    """Return the mean over the users of the chosen updates, NaN if there are none; an unknown count is one user."""
    is_measured = is_chosen & np.isfinite(values)
    if not is_measured.any():
        return float("nan")
    weights = np.fmax(users[is_measured], 1.0)
    return float(np.average(values[is_measured], weights=weights))


def update_charts(updates: Sequence[Update]) -> Iterator[Chart]:
    """Yield the charts of the updates by day; those without figures are left out."""
    days = days_of(updates)
    order = np.argsort(days, kind="stable")
    updates, days = [updates[place] for place in order], days[order]
    if updates:
        yield _scores(updates, days)
    for draw in (_rows, _unknown, _shift, _lengths, _minutes):
        if chart := draw(updates, days):
            yield chart


def _scores(updates: Sequence[Update], days: Days) -> Chart:
    """Draw the scores, and below them a lane of marks for each decision."""
    found, made = scores(updates), np.array([update["decision"] for update in updates])
    counts = {decision: int((made == decision).sum()) for decision in DECISION_MARKS}
    counts = {decision: count for decision, count in counts.items() if count}
    with new_figure(height=(SIZE[1] if found else 0.8) + 0.2 * len(counts)) as (figure, (axes,)):
        top, ticks, is_many = _top(found), list[float](), len(days) > FEW_POINTS
        for score in found:
            _draw_means(axes, days, score.values, COLOURS.get(score.kind, MUTED_COLOR), score.title, score.users)
        if found:
            from matplotlib.ticker import MaxNLocator

            ticks = [float(tick) for tick in MaxNLocator(5).tick_values(0, top) if 0 <= tick <= 1.02 * top]
            axes.legend(ncols=3, **ABOVE)
        lanes = [-0.11 * top * place for place in range(1, len(counts) + 1)]
        for lane, decision in zip(lanes, counts, strict=True):
            marker, size, colour = DECISION_MARKS[decision]
            chosen = days[made == decision]
            axes.plot(chosen, np.full(len(chosen), lane), linestyle="none", marker=marker, color=colour,
                      markersize=3 if is_many and marker == "o" else size, markeredgewidth=0)  # fmt: skip
        labels = [f"{tick:g}" for tick in ticks] + [f"{decision}: {count:,}" for decision, count in counts.items()]
        axes.set_yticks([*ticks, *lanes], labels)
        axes.set_ylim(min(lanes, default=0) - 0.08 * top, 1.05 * top if found else 0)
        _show_dates(axes, days)
    text = ", ".join(f"{decision}: {count:,}" for decision, count in counts.items())
    text = f"Each day's users are ranked before anything is learnt from that day. Decisions: {text}."
    return Chart("scores", f"{SHOWN_METRIC} by day", text, figure)


def _top(found: Sequence[Score]) -> float:
    return max((float(np.nanmax(score.values)) for score in found), default=0.0) or 1.0


def _unknown(updates: Sequence[Update], days: Days) -> Chart | None:
    shares = {
        f"new {name}": 100 * figures(updates, name, "new") / np.maximum(figures(updates, name, "day"), 1)
        for name in ("users", "items")
    }
    note = "Shares of all users and of all items of the day."
    return _lines("unknown", "Unknown users and items", note, days, shares, "{:.1f}\N{NO-BREAK SPACE}%", "share, %")


def _shift(updates: Sequence[Update], days: Days) -> Chart | None:
    note = "The share of the rows that would have to be of more or less popular items to be as in the dataset before."
    lines = {"shift": figures(updates, "shift")}
    return _lines("shift", "Shift of popularity", note, days, lines, "{:.2f}", "")


def _lengths(updates: Sequence[Update], days: Days) -> Chart | None:
    lines = {name: figures(updates, "lengths", name) for name in ("median", "mean")}
    return _lines("lengths", "How long histories are", "", days, lines, "{:,.1f}", "interactions of a user")


def _lines(
    name: str, title: str, note: str, days: Days, lines: Mapping[str, Float64s], form: str, ylabel: str
) -> Chart | None:
    if not (latest := _latest(days, lines, form)):
        return None
    with new_figure(height=2.6) as (figure, (axes,)):
        for (label, values), colour in zip(lines.items(), (MODEL_COLOR, POPULARITY_COLOR), strict=False):
            _draw_means(axes, days, values, colour, label)
        axes.set_ylabel(ylabel)
        _finish(axes, days, has_legend=len(lines) > 1)
    return Chart(name, title, f"{note} {latest}".lstrip(), figure)


def _rows(updates: Sequence[Update], days: Days) -> Chart | None:
    counts = {"new": figures(updates, "rows", "new")}
    for name, (title, _) in ROW_LINES.items():
        values = figures(updates, "rows", name)
        if np.nansum(values):
            counts[title] = values
    if not (latest := _latest(days, counts, "{:,.0f}")):
        return None
    with new_figure(height=2.6) as (figure, (axes,)):
        _draw_heights(axes, days, np.zeros(len(days)), counts["new"], MODEL_COLOR, "new")
        for title, colour in ROW_LINES.values():
            if title in counts:
                _draw_line(axes, days, counts[title], colour, label=title, linewidth=1.2)
        show_counts(axes)
        _finish(axes, days)
    return Chart("rows", "Rows", latest, figure)


def _minutes(updates: Sequence[Update], days: Days) -> Chart | None:
    stages = dict.fromkeys(stage for update in updates for stage in update.get("seconds") or {})
    minutes = {stage: figures(updates, "seconds", stage) / 60 for stage in stages}
    if not (latest := _latest(days, minutes, "{:.1f}")):
        return None
    with new_figure(height=2.6) as (figure, (axes,)):
        below = np.zeros(len(days))
        for place, (stage, values) in enumerate(minutes.items()):
            _draw_heights(axes, days, below, values, STAGE_COLORS[place % len(STAGE_COLORS)], stage)
            below = below + np.nan_to_num(values)
        _finish(axes, days)
    return Chart("minutes", "Minutes of an update", latest, figure)


def _latest(days: Days, values: Mapping[str, Float64s], form: str) -> str:
    """Return a sentence with the newest day that has a figure, and its figures; "" without any."""
    places = [place for place in range(len(days)) if any(np.isfinite(one[place]) for one in values.values())]
    if not places:
        return ""
    newest = {name: float(one[places[-1]]) for name, one in values.items() if np.isfinite(one[places[-1]])}
    texts = ", ".join(f"{name} {form.format(value)}" for name, value in newest.items())
    return f"On {days[places[-1]].astype('datetime64[D]')}: {texts}."


def _draw_means(
    axes: "Axes", days: Days, values: Float64s, colour: str, label: str, users: Float64s | None = None
) -> None:
    """Draw values by day; of many, thin, and over them the means over the `users` of the seven days up to each."""
    if len(days) > FEW_POINTS:
        _draw_line(axes, days, values, colour, alpha=0.4, linewidth=0.7)
        weights = np.ones(len(days)) if users is None else users
        means = [mean_over(values, weights, (days > day - ONE_WEEK) & (days <= day)) for day in days]
        values = np.where(np.isfinite(values), means, np.nan)
    _draw_line(axes, days, values, colour, label=label)


def _draw_line(axes: "Axes", days: Days, values: Float64s, colour: str, **style: Any) -> None:
    """Draw values by day: interrupted by long gaps, with a point for each of few days and for a day between gaps."""
    is_known = np.isfinite(values)
    days, values = _interrupted(days[is_known], values[is_known])
    is_gap = np.concatenate([[True], np.isnan(values), [True]])
    has_point = (is_gap[:-2] & is_gap[2:]) | (len(values) <= FEW_POINTS)
    axes.plot(days, values, color=colour, marker="o", markersize=3, markevery=has_point, **style)


def _draw_heights(axes: "Axes", days: Days, below: Float64s, values: Float64s, colour: str, label: str) -> None:
    """Draw values by day upon the heights `below`: as bars, or many as an area; one path, which is small and quick."""
    values = np.nan_to_num(values)
    if len(days) > FEW_POINTS:
        edges, tops = _interrupted(days, below + values)
        bottoms = _interrupted(days, below)[1]
    else:
        edges = np.repeat(days, 4) + np.tile(BAR_HOURS, len(days)).astype("timedelta64[h]")
        bottoms = np.repeat(below, 4)
        tops = bottoms + np.repeat(values, 4) * np.tile([0, 1, 1, 0], len(days))
    axes.fill_between(edges, bottoms, tops, color=colour, linewidth=0, label=label)


def _interrupted(days: Days, values: Float64s) -> tuple[Days, Float64s]:
    """Return the days and values with a NaN in each long gap."""
    distances = np.diff(days)
    usual = max(np.median(distances.astype(int)), 1) if len(distances) else 1
    ends = np.flatnonzero(distances.astype(int) > LONG_GAP * usual)
    return np.insert(days, ends + 1, days[ends]), np.insert(values, ends + 1, np.nan)


def _finish(axes: "Axes", days: Days, *, has_legend: bool = True) -> None:
    axes.set_ylim(bottom=0)
    if has_legend:
        axes.legend(ncols=5, columnspacing=1.0, handlelength=1.2, **ABOVE)
    _show_dates(axes, days)


def _show_dates(axes: "Axes", days: Days) -> None:
    """Let the plot go from the first to the last of the `days`, with few labels."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    margin = max(2 * ONE_DAY, (days[-1] - days[0]) // 40)
    axes.set_xlim(days[0] - margin, days[-1] + margin)
    locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
