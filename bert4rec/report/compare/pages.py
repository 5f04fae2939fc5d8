"""A comparison as a page: text that is Markdown too, and one HTML file that needs nothing else."""

from collections.abc import Sequence
from pathlib import Path

from bert4rec.report.compare.contents import Comparison, Table
from bert4rec.report.compare.curves import METRIC, curves_svg, has_curves
from bert4rec.report.markdown.table import markdown_table

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
    return f"## {table.title}\n\n{markdown_table(table.header, table.rows, of_numbers=False)}"


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
