"""The picture of a search: its course above, and below what each setting has to do with the value."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from optuna.trial import FrozenTrial, TrialState

from bert4rec.report.charts import BEST_COLOR, MODEL_COLOR, MUTED_COLOR, POPULARITY_COLOR, STYLE, to_png

COLUMNS = 4
ENOUGH = 10  # finished trials, to say which settings matter
MARGIN = 0.06  # beside the space of a setting
DOTTED = (0, (1, 2))


def draw(study: optuna.Study, metric: str, path: Path) -> None:
    """Write the picture of a study with at least one finished trial as a PNG file, whole or not at all."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.values]
    importances = importances_of(study, trials)
    n_rows = -(-len(importances) // COLUMNS)
    with rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.0 + 2.1 * n_rows), layout="constrained")
        grid = figure.add_gridspec(1 + n_rows, COLUMNS, height_ratios=[1.4, *[1] * n_rows])
        above = figure.add_subplot(grid[0, :])
        draw_course(above, study, trials, metric)
        for place, (name, importance) in enumerate(importances.items()):
            axes = figure.add_subplot(grid[1 + place // COLUMNS, place % COLUMNS], sharey=above)
            draw_setting(axes, name, study, [trial for trial in trials if name in trial.params])
            axes.set_title(name.partition(".")[2], loc="left")
            axes.set_title(importance, loc="right", color=MUTED_COLOR)
            axes.tick_params(labelleft=place % COLUMNS == 0)
        unfinished = path.with_name(f".{os.getpid()}-{path.name}")  # searches side by side draw the same file
        unfinished.write_bytes(to_png(figure))
        unfinished.replace(path)


def importances_of(study: optuna.Study, trials: Sequence[FrozenTrial]) -> dict[str, str]:
    """The settings that are searched, the most important first; "" where there are too few trials to say so."""
    names = {name: "" for trial in trials for name in trial.params}
    if len(finished(trials)) < ENOUGH:
        return names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a setting that few trials have
        shares = optuna.importance.get_param_importances(study)
    return {name: f"{100 * share:.0f} %" for name, share in shares.items()} | {
        name: "" for name in names if name not in shares
    }


def draw_course(axes: Axes, study: optuna.Study, trials: Sequence[FrozenTrial], metric: str) -> None:
    """The values by the numbers of the trials, and the best so far."""
    done = finished(trials)
    so_far = [max(trial.values[0] for trial in done[:n]) for n in range(1, len(done) + 1)]
    numbers = [*(trial.number for trial in done), trials[-1].number]
    axes.step(numbers, [*so_far, so_far[-1]], where="post", color=BEST_COLOR, linewidth=1.2, label="best so far")
    draw_points(axes, [trial.number for trial in trials], study, trials)
    for place, trial in enumerate(study.get_trials(deepcopy=False, states=(TrialState.FAIL,))):
        axes.axvline(trial.number, color=POPULARITY_COLOR, linestyle=DOTTED, label="" if place else "failed")
    axes.set(xlabel="trial", ylabel=f"{metric} on the validation")
    axes.set_ylim(0, 1.08 * max(trial.values[0] for trial in trials) or 1)
    if len(done) >= ENOUGH:
        axes.set_title("below: the importance of each setting (PED-ANOVA)", loc="right", color=MUTED_COLOR)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, borderaxespad=0.2)


def draw_setting(axes: Axes, name: str, study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
    """The values by those of one setting, over all of its space."""
    distribution = trials[0].distributions[name]
    places = [trial.params[name] for trial in trials]
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        choices = distribution.choices
        axes.set_xticks(range(len(choices)), list(map(str, choices)))
        axes.set_xlim(-0.5, len(choices) - 0.5)
        axes.grid(visible=False, axis="x")
        places = [choices.index(value) for value in places]
    else:
        low, high = distribution.low, distribution.high
        if distribution.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlim(low * (low / high) ** MARGIN, high * (high / low) ** MARGIN)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=isinstance(low, int)))
            axes.set_xlim(low - MARGIN * (high - low), high + MARGIN * (high - low))
    draw_points(axes, places, study, trials)


def draw_points(axes: Axes, places: Sequence[float], study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
    """A point for each trial, a star for the best."""
    for state, colour, fill, label in (
        (TrialState.PRUNED, MUTED_COLOR, "white", "stopped early"),
        (TrialState.COMPLETE, MODEL_COLOR, MODEL_COLOR, "finished"),
    ):
        points = [(place, trial.values[0]) for place, trial in zip(places, trials, strict=True) if trial.state == state]
        if points:
            axes.plot(*zip(*points, strict=True), "o", markersize=5, color=colour, markerfacecolor=fill, label=label)
    for place, trial in zip(places, trials, strict=True):
        if trial.number == study.best_trial.number:
            axes.plot(
                place, trial.values[0], "*", markersize=13, color=BEST_COLOR, markeredgecolor="white", label="best"
            )


def finished(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those that were not stopped early."""
    return [trial for trial in trials if trial.state == TrialState.COMPLETE]
