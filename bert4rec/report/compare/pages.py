"""A comparison as a page: text that is Markdown too, and one HTML file that needs nothing else."""

from collections.abc import Sequence
from pathlib import Path

from bert4rec.report.compare.contents import Comparison, Table
from bert4rec.report.compare.curves import METRIC, curves_svg, has_curves

TEMPLATE = "comparison.html.j2"


def text_page(comparison: Comparison, *, picture: str = "") -> str:
    """Markdown, whose tables are aligned for a terminal; `picture`: the file of the curves."""
    sections = [_list(comparison.sentences), *map(_section, comparison.tables)]
    if picture:
        sections.append(f"## Learning curves\n\n![Validation {METRIC} by epoch]({picture})")
    sections.append(f"## How to read this\n\n{_list(comparison.notes)}")
    return "\n\n".join(filter(None, sections)) + "\n"


def html_page(comparison: Comparison) -> str:
    """One file without scripts, light or dark as the reader's system is; all text is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    picture = curves_svg(comparison.columns) if has_curves(comparison.columns) else ""
    return environment.get_template(TEMPLATE).render(comparison=comparison, picture=picture)


def _section(table: Table) -> str:
    return f"## {table.title}\n\n{_table(table.header, table.rows)}"


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *body = (
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    )
    return "\n".join([head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *body])
