"""`report.html`: one file with all that there is to see of a run."""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import HTML_PAGE, PICTURE, PICTURES
from bert4rec.config.abilities import is_trained
from bert4rec.report.html import facts, tables
from bert4rec.report.html.charts import charts, learning_curve
from bert4rec.report.html.contents import Contents, Settings, read_contents
from bert4rec.report.html.drawing import to_svg, write_png
from bert4rec.report.markdown.page import NO_TEST, rules
from bert4rec.report.summary import summary
from bert4rec.report.warnings import checks
from bert4rec.runtime.files import write_whole
from bert4rec.runtime.wording import counted

TEMPLATE, STYLE = "report.html.j2", "style.css"
MOST_PLAN = 4000  # characters of the plan: that of a thousand processes stands in its file alone


def write_html(folder: Path, defaults: Settings) -> Path:
    """Write the page of the finished run in `folder`, and its pictures as PNG; the page.

    `defaults`: what settings are where nobody says otherwise. Raises `OSError` or `ValueError` for a folder that
    cannot be read or written.
    """
    contents = read_contents(folder)
    if contents.train:
        write_png(learning_curve(contents.train, contents.validations, contents.report), folder / PICTURE)
    pictures = {chart.name: chart for chart in charts(contents)}
    if pictures:
        (folder / PICTURES).mkdir(exist_ok=True)
    for chart in pictures.values():
        write_png(chart.figure, folder / PICTURES / f"{chart.name}.png")
    shown = {
        name: {
            "title": chart.title,
            "description": chart.description,
            "svg": _safe(to_svg(chart.figure, name, html.escape(chart.description))),
        }
        for name, chart in pictures.items()
    }
    write_whole(folder / HTML_PAGE, render(contents, defaults, shown))
    return folder / HTML_PAGE


def render(contents: Contents, defaults: Settings, pictures: Mapping[str, Any]) -> str:
    """The page; `pictures`: name → title, description and SVG."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = _safe((here / STYLE).read_text(encoding="utf-8"))
    return environment.get_template(TEMPLATE).render(_shown(contents, defaults), charts=pictures, style=style)


def _shown(contents: Contents, defaults: Settings) -> dict[str, Any]:
    """All that the template shows, but for the pictures."""
    report = contents.report
    looked_at = checks(report, contents.validations, n_evaluated=contents.n_evaluated)
    passed = [check for check in looked_at if not check.is_warning]
    file, published = tables.published_tables(report)
    settings = facts.other_settings(contents.settings, defaults)
    people = [_person(user, contents) for user in contents.examples.get("users", [])]
    found = {
        "name": contents.name,
        "model": _capitalized(str(report.get("model", "Bert4Rec"))),
        "source": report["dataset"].get("file") or report["dataset"]["source"],
        "subtitle": _subtitle(report),
        "summary": _unbroken(summary(report)),
        "warnings": [_unbroken(check.text) for check in looked_at if check.is_warning],
        "passed": [_unbroken(check.text) for check in passed],
        "passed_title": f"{counted(len(passed), 'check')} passed",
        "tiles": facts.tiles(report),
        "held_out": rules(report),
        "no_test": NO_TEST,
        "test_tables": tables.metric_tables(report),
        "validation_tables": tables.metric_tables(report, "validation"),
        "file": file,
        "published": published,
        "slices": tables.slice_tables(report),
        "people": people,
        "people_title": f"{counted(len(people), 'test user')} from the best served to the worst, evenly spread: "
        "what they had, what came next, and what was recommended. A bar shows the score.",
        "data": facts.data_facts(report),
        "time": facts.time_parts(report),
        "memory": facts.memory(report),
        "settings": [setting for setting in settings if not setting.is_chosen],
        "chosen": [setting for setting in settings if setting.is_chosen],
        "versions": facts.versions(contents),
        "plan": contents.plan if len(contents.plan) <= MOST_PLAN else "",
    }
    return found | {"sections": _sections(found, contents)}


def _sections(shown: Mapping[str, Any], contents: Contents) -> list[tuple[str, str]]:
    """Id and title of those that there are."""
    has_curves = contents.train or shown["validation_tables"]
    return [
        ("test", "Test"),
        *([("published", "Published")] if shown["published"] else []),
        *([("learning", "Learning" if contents.train else "Validation")] if has_curves else []),
        *([("slices", "For whom it works")] if shown["slices"] else []),
        *([("examples", "Examples")] if shown["people"] else []),
        ("data", "Data"),
        ("run", "Run"),
    ]


def _subtitle(report: Mapping[str, Any]) -> str:
    processes = counted(report.get("world_size", 1), "process")
    return f"mode {report['mode']}, {processes}" if is_trained(report.get("kind", "bert4rec")) else processes


def _person(user: Mapping[str, Any], contents: Contents) -> dict[str, Any]:
    """An example user as the page shows one."""
    scores = [item["score"] for item in user["recommendations"]]
    low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)
    recommendations = [
        {
            **item,
            "is_next": item["item"] == user["target"]["item"],
            "width": 8 + 92 * (item["score"] - low) / (high - low) if high > low else 100,
        }
        for item in user["recommendations"]
    ]
    is_hit = any(item["is_next"] for item in recommendations)
    n_shown, n = len(user["history"]), user["n_history"]
    return {
        "user": user["user"],
        "history": user["history"],
        "target": user["target"],
        "recommendations": recommendations,
        "is_hit": is_hit,
        "place": f"place {user['rank']:,} of {contents.examples['n_items']:,}",
        "before": f"The last {n_shown} of {n:,} items" if n > n_shown else counted(n, "item"),
    }


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _unbroken(text: str) -> str:
    """With no line break between a number and its sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _safe(text: str) -> Any:
    """As it stands: text of the project's own, or escaped already."""
    from markupsafe import Markup

    return Markup(text)
