"""Write a comparison of runs, with sentences and tables, as Markdown text and as one HTML file with the curves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bert4rec.dataset.format import TEST
from bert4rec.evaluation.intervals import CONFIDENCE, PERMUTATIONS, RESAMPLES
from bert4rec.report.charts import new_figure, to_svg
from bert4rec.report.compared_runs import (
    EMPTY_CELL,
    SEPARATOR,
    Column,
    Differences,
    Run,
    columns,
    differing_settings,
    pairs,
)
from bert4rec.report.figures import Report
from bert4rec.report.pages import markdown_table
from bert4rec.report.summary import SHORT_TITLES, heading, rules, unknown_items
from bert4rec.report.templates import render, sentence
from bert4rec.runtime.errors import rounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FINDING = "NDCG@10"  # the metric of the first sentence, in the first protocol that was measured
OVERVIEW = ("HR@10", FINDING)
TITLE = f"Validation {FINDING}, full catalogue"
LEVEL = f"{100 * CONFIDENCE:.0f} %"
SMALLEST = 1 / (1 + PERMUTATIONS)  # p-value that the test can give
COST: Mapping[str, Callable[[Report], float]] = {
    "minutes of training": lambda training: training["seconds"] / 60,
    "epochs": lambda training: training["epochs"],
    "sequences a second": lambda training: training["sequences_per_second"],
    "peak memory, MiB a process": lambda training: max(training["peak_memory_bytes"]) / 2**20,
}


@dataclass(frozen=True)
class Table:
    """Rows of cells below a title and a `header`."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Comparison:
    """The columns that are compared, the results in `sentences` and tables, and `notes` on how to read them.

    `overview` has one row for each column, with the metrics that are read first.
    """

    columns: Sequence[Column]
    sentences: Sequence[str]
    overview: Table
    tables: Sequence[Table]
    notes: Sequence[str]


def compare(runs: Sequence[Run], *, split: str = TEST) -> Comparison:
    """Return the comparison of `runs` on a `split`. Raises `DataError` for files that cannot be read."""
    compared = columns(runs)
    found = {other.letter: pairs(compared[0], other, _cut_offs(compared, split), split=split) for other in compared[1:]}
    differences = {letter: pair.differences for letter, pair in found.items() if not pair.problem}
    sentences = [_finding(compared[0].letter, letter, pair) for letter, pair in differences.items()]
    sentences += [
        f"no paired comparison of {compared[0].letter} and {letter}: {pair.problem}."
        for letter, pair in found.items()
        if pair.problem
    ]
    sentences += [f"{column.letter}: {text}" for column in compared if (text := unknown_items(column.first.report))]
    tables = [_runs(compared), _settings(compared), *_metrics(compared, differences, split), _cost(compared)]
    shown = [table for table in tables if table.rows]
    return Comparison(
        compared, list(filter(None, sentences)), _overview(compared, split), shown, _notes(compared, differences)
    )


def _notes(compared: Sequence[Column], differences: Mapping[str, Differences]) -> list[str]:
    protocol_rules = dict.fromkeys(rules(column.first.report) for column in compared)
    has_seeds, is_paired = any(len(column.runs) > 1 for column in compared), any(differences.values())
    notes = [
        sentence("note_on_intervals", level=LEVEL, n_draws=RESAMPLES),
        sentence("note_on_seeds") if has_seeds else "",
        sentence("note_on_differences", n_choices=PERMUTATIONS) if is_paired else "",
    ]
    return [*filter(None, [*protocol_rules, *notes])]


def _overview(compared: Sequence[Column], split: str) -> Table:
    """Return the first metrics of each column, in the first protocol that was measured."""
    protocols = [
        name for name in SHORT_TITLES if any(name in column.first.report.get(split, {}) for column in compared)
    ]
    protocol = next(iter(protocols), "")
    rows = [
        [column.letter, column.model, *(_figure(column, split, protocol, name) for name in OVERVIEW), _folders(column)]
        for column in compared
    ]
    title = f"{split.capitalize()}, {SHORT_TITLES[protocol]}" if protocol else split.capitalize()
    return Table(title, ["", "model", *OVERVIEW, "folder"], rows)


def _folders(column: Column) -> str:
    return ", ".join(str(run.folder) for run in column.runs)


def _runs(compared: Sequence[Column]) -> Table:
    rows = []
    for column in compared:
        dataset = column.first.report["dataset"]
        rows.append([column.letter, column.model, f"{dataset['source']}, {dataset['split']}", _folders(column)])
    return Table("Runs", ["", "model", "dataset", "folder"], rows)


def _settings(compared: Sequence[Column]) -> Table:
    rows = [[name, *values] for name, values in differing_settings(compared).items()]
    return Table("Settings that differ", ["", *(column.title for column in compared)], rows)


def _metrics(compared: Sequence[Column], differences: Mapping[str, Differences], split: str) -> Iterator[Table]:
    """Yield for each protocol the metrics side by side, and the differences of the paired columns."""
    first, header = compared[0].letter, ["", *(column.title for column in compared)]
    for protocol in SHORT_TITLES:
        measured = [column for column in compared if all(protocol in run.report.get(split, {}) for run in column.runs)]
        if not measured:
            continue
        title = heading(measured[0].first.report, split, protocol)
        names = dict.fromkeys(name for column in measured for name in column.first.report[split][protocol])
        rows = [[name, *(_figure(column, split, protocol, name) for column in compared)] for name in names]
        yield Table(f"{split.capitalize()}: {title}", header, rows)
        paired = {letter: found[protocol] for letter, found in differences.items() if protocol in found}
        tested = next(iter(paired.values()), {})
        rows = [
            [name, *(sentence("difference", found=found[name], smallest=SMALLEST) for found in paired.values())]
            for name in tested
        ]
        yield Table(f"Differences: {title}", ["", *(f"{letter} − {first}" for letter in paired)], rows)


def _figure(column: Column, split: str, protocol: str, name: str) -> str:
    """Return a metric with its interval, or the mean of several runs with the standard deviation."""
    run_metrics = [run.report.get(split, {}).get(protocol, {}) for run in column.runs]
    values = [metrics[name] for metrics in run_metrics if name in metrics]
    if not values:
        return EMPTY_CELL
    if name == "users":
        return SEPARATOR.join(dict.fromkeys(f"{value:,}" for value in values))
    mean = float(np.mean(values))
    digits = 4 if abs(mean) < 100 else 1
    if len(values) > 1:
        return f"{mean:,.{digits}f} ± {np.std(values, ddof=1):,.{digits}f}"
    interval = column.first.report.get("intervals", {}).get(split, {}).get(protocol, {}).get(name)
    bounds = ", ".join(f"{bound:,.{digits}f}" for bound in interval or [])
    return f"{mean:,.{digits}f} [{bounds}]" if bounds else f"{mean:,.{digits}f}"


def _finding(first: str, other: str, differences: Differences) -> str:
    """Return a sentence on which column is better; "" if nothing can be paired."""
    protocol = next((name for name in SHORT_TITLES if name in differences), "")
    found = differences.get(protocol, {}).get(FINDING)
    if found is None:
        return ""
    where = f"{FINDING} ({SHORT_TITLES[protocol]})"
    return sentence("finding", first=first, other=other, where=where, found=found, level=LEVEL, smallest=SMALLEST)


def _cost(compared: Sequence[Column]) -> Table:
    """Return the costs of the trainings, as means over the runs of a column."""
    rows = []
    for name, cost in COST.items():
        column_costs = [[cost(training) for training in column.trainings] for column in compared]
        rows.append([name, *(rounded(float(np.mean(costs))) if costs else EMPTY_CELL for costs in column_costs)])
    rows.append(["processes", *(str(column.first.report["world_size"]) for column in compared)])
    has_any = any(column.trainings for column in compared)
    return Table("Cost", ["", *(column.title for column in compared)], rows if has_any else [])


def _cut_offs(compared: Sequence[Column], split: str) -> dict[str, list[int]]:
    """Return protocol → the cut-offs that are common to all runs measured in it on the `split`."""
    cut_offs = {}
    for protocol in SHORT_TITLES:
        run_cut_offs = [
            {int(name[3:]) for name in run.report[split][protocol] if name.startswith("HR@")}
            for column in compared
            for run in column.runs
            if protocol in run.report.get(split, {})
        ]
        if run_cut_offs:
            cut_offs[protocol] = sorted(set.intersection(*run_cut_offs))
    return cut_offs


def short_text(comparison: Comparison) -> str:
    """Return the sentences and the overview as Markdown."""
    overview = comparison.overview
    table = markdown_table(overview.header, overview.rows, is_numeric=False)
    return f"{_list(comparison.sentences)}\n\n## {overview.title}\n\n{table}\n".lstrip()


def text_page(comparison: Comparison, *, picture: str = "") -> str:
    """Return Markdown whose tables are aligned for a terminal; `picture`: the file of the curves."""
    sections = [_list(comparison.sentences)]
    for table in comparison.tables:
        sections.append(f"## {table.title}\n\n{markdown_table(table.header, table.rows, is_numeric=False)}")
    if picture:
        sections.append(f"## Learning curves\n\n![Validation {FINDING} by epoch]({picture})")
    sections.append(f"## How to read this\n\n{_list(comparison.notes)}")
    return "\n\n".join(filter(None, sections)) + "\n"


def html_page(comparison: Comparison) -> str:
    """Return one HTML file without scripts, in light or dark mode like the reader's system; all text is escaped."""
    has_picture = has_curves(comparison.columns)
    picture = to_svg(draw_curves(comparison.columns), "curves", TITLE) if has_picture else ""
    return render("comparison.html.j2", comparison=comparison, picture=picture)


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def has_curves(compared: Sequence[Column]) -> bool:
    """Return whether a run has validations to draw."""
    return any(run.curve for column in compared for run in column.runs)


def draw_curves(compared: Sequence[Column]) -> "Figure":
    """Return a figure of the validations with a line for each run; the runs of a column share a colour."""
    with new_figure(7, 3.6) as (figure, (axes,)):
        for number, column in enumerate(compared):
            label = column.letter
            for run in column.runs:
                points = [(epoch, metrics[FINDING]) for epoch, metrics in run.curve if FINDING in metrics]
                if points:
                    axes.plot(*zip(*points, strict=True), marker=".", color=f"C{number}", label=label)
                    label = "_"  # so that the legend lists the column only once
        axes.set(title=TITLE, xlabel="epoch", ylim=(0, None))
        axes.legend()
    return figure
