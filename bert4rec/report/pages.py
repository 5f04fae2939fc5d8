"""Write the pages of a run: `report.md`, `report.html` (one file with everything), and Markdown tables."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.checkpoint import run_folder
from bert4rec.checkpoint.run_folder import HTML_PAGE, PICTURE, PICTURES
from bert4rec.config.kinds import KINDS
from bert4rec.evaluation import BEST_POSSIBLE
from bert4rec.report import tables
from bert4rec.report.charts import charts, learning_curve, page_values, to_png
from bert4rec.report.figures import MODEL, Contents, Report, Settings, kind_of, read_contents
from bert4rec.report.summary import checks, missing_figures, order, prior, ratings_line, rules, summary, verdict
from bert4rec.report.templates import render
from bert4rec.runtime.files import atomic_write

if TYPE_CHECKING:
    from markupsafe import Markup

LISTS_TITLE = f"Their lists of the {tables.LISTED_AT} best items:"
LAST_ROWS = {MODEL: 1, BEST_POSSIBLE: 2}  # rows, in this order; the baselines come first
OPTION_PART = re.compile(r"--\w+\.?|(?<=\.)\w+(?==)")  # "--preprocessing." and "ties" of "--preprocessing.ties=shuffle"
MAX_PLAN = 4000  # characters: the plan of a thousand processes is shown in its own file only


def report_page(report: Report) -> str:
    """Return the report as Markdown."""
    page = render(
        "report.md.j2", **_shared_values(report), rules=rules(report), metrics_table=metrics_table,
        features_table=_features_table(report), prior_table=_prior_table(report), ratings_line=ratings_line,
        files=run_folder,
    )  # fmt: skip
    return page + "\n"


def _shared_values(report: Report) -> dict[str, Any]:
    """Return the values that both pages show."""
    model = report["model"]
    return {
        "report": report,
        "dataset": report["dataset"],
        "training": report["training"],
        "kind": kind_of(report),
        "title": model[:1].upper() + model[1:],
        "summary": summary(report),
        "verdict": verdict(report),
        "feature_rows": tables.feature_rows(report),
        "order": order(report),
        "prior": prior(report),
        "prior_rows": tables.prior_rows(report),
    }


def metrics_table(report: Report, split: str = "test", *, n_tables: int | None = None) -> str:
    """Return the metrics of a split as tables, one for each protocol, and a line on what could not be measured.

    `n_tables`: only the first ones; the metrics of ranks in the main protocol are the first.
    """
    measured = tables.metric_tables(report, split)[:n_tables] if split in report else []
    sections = [f"{LISTS_TITLE if table.is_of_lists else table.title}\n\n{_metric_table(table)}" for table in measured]
    return "\n\n".join(filter(None, [*sections, missing_figures(report, split)]))


def _metric_table(table: tables.MetricTable) -> str:
    header = [" " * len("best possible"), *(name.rjust(7) for name in table.metrics)]  # the same width for most tables
    rows = [
        [one.title, *(f"{one.metrics[table.protocol][name]:.4f}" for name in table.metrics)]
        for one in sorted(table.contestants, key=lambda one: LAST_ROWS.get(one.kind, 0))
    ]
    return markdown_table(header, rows)


def _features_table(report: Report) -> str:
    rows = tables.feature_rows(report)
    return markdown_table(["without", "NDCG@10 lost", "95 % interval"], rows) if rows else ""


def _prior_table(report: Report) -> str:
    rows = tables.prior_rows(report)
    return markdown_table(["", "HR@10", "NDCG@10"], rows) if rows else ""


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, is_numeric: bool = True) -> str:
    """Return an aligned table: the first column to the left, the others to the right if they are `is_numeric`.

    >>> print(markdown_table(["", "HR@10"], [["popularity", ".5"]]))
    |            | HR@10 |
    |------------|------:|
    | popularity |    .5 |
    """
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    pad, mark = (str.rjust, ":") if is_numeric else (str.ljust, "-")
    padded = [[row[0].ljust(widths[0]), *map(pad, row[1:], widths[1:])] for row in cells]
    head, *body = ("| " + " | ".join(row) + " |" for row in padded)
    rule = "|" + "-" * (widths[0] + 2) + "".join("|" + "-" * (width + 1) + mark for width in widths[1:]) + "|"
    return "\n".join([head, rule, *body])


def write_html(folder: Path, defaults: Settings) -> Path:
    """Write the page of the finished run in `folder`, and its pictures as PNG; return its path.

    `defaults`: all settings at their defaults. Raises `OSError` or `ValueError` for a folder that cannot be read or
    written.
    """
    contents = read_contents(folder)
    if contents.train:
        atomic_write(folder / PICTURE, to_png(learning_curve(contents.train, contents.validations, contents.report)))
    pictures = {}
    for chart in charts(contents):
        (folder / PICTURES).mkdir(exist_ok=True)
        atomic_write(folder / PICTURES / f"{chart.name}.png", to_png(chart.figure))
        pictures[chart.name] = page_values(chart)
    atomic_write(folder / HTML_PAGE, render("report.html.j2", charts=pictures, **_values(contents, defaults)))
    return folder / HTML_PAGE


def _values(contents: Contents, defaults: Settings) -> dict[str, Any]:
    """Return all values of the template, except the pictures."""
    report = contents.report
    found = checks(report, contents.validations, n_evaluated=contents.n_evaluated)
    identified, published = tables.published_tables(report)
    settings = tables.other_settings(contents.settings, defaults)
    shared = _shared_values(report)
    return {
        **shared,
        "name": contents.name,
        "summary": _unbroken(shared["summary"]),
        "verdict": shared["verdict"]._replace(text=_unbroken(shared["verdict"].text)),
        "warnings": [_unbroken(check.text) for check in found if check.is_warning],
        "passed": [_unbroken(check.text) for check in found if not check.is_warning],
        "held_out": rules(report),
        "no_test": missing_figures({}),
        "cell": tables.cell,
        "test_tables": tables.metric_tables(report),
        "validation_tables": tables.metric_tables(report, "validation"),
        "identified": identified,
        "published": published,
        "kind_titles": {name: kind.title for name, kind in KINDS.items()},
        "examples": contents.examples,
        "settings": [setting for setting in settings if not setting.is_chosen],
        "chosen": [setting for setting in settings if setting.is_chosen],
        "environment": contents.environment,
        "plan": contents.plan if len(contents.plan) <= MAX_PLAN else "",
    }


def _unbroken(text: str) -> "Markup":
    """Return the text, escaped, without a line break between a number and its sign.

    A long option breaks only after its dots and before its value.
    """
    from markupsafe import Markup, escape

    escaped = str(escape(text.replace(" %", "\N{NO-BREAK SPACE}%")))
    return Markup(OPTION_PART.sub(r'<span class="whole">\g<0></span><wbr>', escaped))
