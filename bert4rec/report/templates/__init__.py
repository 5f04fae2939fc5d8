"""The templates of the pages and of their sentences, which jinja2 fills."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.runtime.errors import format_duration, pluralize, rounded

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent


def render(template: str, **values: Any) -> str:
    """Return the page that `template` makes of `values`; HTML pages escape all text, and {{ style }} is their CSS.

    Raises `ValueError` for a value that is missing.
    """
    from markupsafe import Markup

    style = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    page = _environment(is_html=template.endswith(".html.j2")).get_template(template)
    return _fill(page.render, values | {"style": style})


def sentence(name: str, **values: Any) -> str:
    """Return the sentence that the macro `name` of sentences.j2 makes of `values`. Raises `ValueError`, too."""
    return _fill(getattr(_environment(is_html=False).get_template("sentences.j2").module, name), values).strip()


def _fill(template: Callable[..., str], values: Mapping[str, Any]) -> str:
    from jinja2 import UndefinedError

    try:
        return str(template(**values))
    except (UndefinedError, TypeError) as error:  # the latter by a filter
        raise ValueError(str(error)) from None


@cache
def _environment(*, is_html: bool) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=is_html, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "pluralize": pluralize,
        "rounded": rounded,
        "number": format,
        "percent": lambda share: f"{100 * share:.1f} %",
        "duration": lambda seconds: f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds),
        "day": lambda seconds: datetime.fromtimestamp(seconds, UTC).date().isoformat(),
    }
    return environment
