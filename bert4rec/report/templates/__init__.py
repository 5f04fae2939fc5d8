"""The templates of the pages, which jinja2 fills."""

from pathlib import Path
from typing import Any

from bert4rec.runtime.errors import pluralize, rounded


def render(template: str, **values: Any) -> str:
    """Return the page that `template` makes of `values`; HTML pages escape all text, and {{ style }} is their CSS."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=template.endswith(".html.j2"), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"pluralize": pluralize, "rounded": rounded}
    style = Markup((folder / "style.css").read_text(encoding="utf-8"))
    return environment.get_template(template).render(style=style, **values)
