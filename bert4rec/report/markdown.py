"""Reports as Markdown: `report.md`, and tables that a terminal shows as tables too."""

from collections.abc import Sequence

from bert4rec.checkpoint import run_folder
from bert4rec.report.figures import BEST_POSSIBLE, MODEL, Report, kind_of
from bert4rec.report.summary import missing_figures, ratings_line, rules, summary
from bert4rec.report.tables import LISTED_AT, MetricTable, metric_tables
from bert4rec.report.templates import render

LISTS = f"Their lists of the {LISTED_AT} best items:"
LAST = {MODEL: 1, BEST_POSSIBLE: 2}  # rows, in this order; the baselines come first


def report_page(report: Report) -> str:
    """Return the report as Markdown."""
    model, training = report["model"], report["training"]
    page = render(
        "report.md.j2",
        report=report,
        dataset=report["dataset"],
        training=training,
        title=model[0].upper() + model[1:],
        summary=summary(report),
        rules=rules(report),
        kind=kind_of(report),
        peak=f"{max(training['peak_memory_bytes']) / 2**20:,.0f}",
        metrics_table=metrics_table,
        ratings_line=ratings_line,
        files=run_folder,
    )
    return page + "\n"


def metrics_table(report: Report, split: str = "test") -> str:
    """Return the metrics of a split as tables, one for each protocol, and a line on what could not be measured."""
    tables = metric_tables(report, split) if split in report else []
    sections = [f"{LISTS if table.is_of_lists else table.title}\n\n{_metric_table(table)}" for table in tables]
    return "\n\n".join(filter(None, [*sections, missing_figures(report, split)]))


def _metric_table(table: MetricTable) -> str:
    header = [" " * len("best possible"), *(name.rjust(7) for name in table.metrics)]  # the same width for most tables
    rows = [
        [one.title, *(f"{one.metrics[table.protocol][name]:.4f}" for name in table.metrics)]
        for one in sorted(table.contestants, key=lambda one: LAST.get(one.kind, 0))
    ]
    return markdown_table(header, rows)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, of_numbers: bool = True) -> str:
    """Return an aligned table: the first column to the left, the others to the right if they are `of_numbers`.

    >>> print(markdown_table(["", "HR@10"], [["popularity", ".5"]]))
    |            | HR@10 |
    |------------|------:|
    | popularity |    .5 |
    """
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    pad, mark = (str.rjust, ":") if of_numbers else (str.ljust, "-")
    padded = [[row[0].ljust(widths[0]), *map(pad, row[1:], widths[1:])] for row in cells]
    head, *body = ("| " + " | ".join(row) + " |" for row in padded)
    rule = "|" + "-" * (widths[0] + 2) + "".join("|" + "-" * (width + 1) + mark for width in widths[1:]) + "|"
    return "\n".join([head, rule, *body])
