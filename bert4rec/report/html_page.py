"""`report.html`: one file that shows everything that is known of a run."""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import HTML_PAGE, PICTURE, PICTURES
from bert4rec.report import tables
from bert4rec.report.charts import charts, learning_curve, to_svg, write_png
from bert4rec.report.contents import Contents, Settings, read_contents
from bert4rec.report.figures import kind_of
from bert4rec.report.summary import NO_TEST, rules, summary
from bert4rec.report.templates import render
from bert4rec.report.warnings import checks
from bert4rec.runtime.errors import pluralize
from bert4rec.runtime.files import atomic_write

MAX_PLAN = 4000  # characters: the plan of a thousand processes is shown in its own file only


def write_html(folder: Path, defaults: Settings) -> Path:
    """Write the page of the finished run in `folder`, and its pictures as PNG; return its path.

    `defaults`: all settings at their defaults. Raises `OSError` or `ValueError` for a folder that cannot be read or
    written.
    """
    from markupsafe import Markup

    contents = read_contents(folder)
    if contents.train:
        write_png(learning_curve(contents.train, contents.validations, contents.report), folder / PICTURE)
    pictures = {}
    for chart in charts(contents):
        (folder / PICTURES).mkdir(exist_ok=True)
        write_png(chart.figure, folder / PICTURES / f"{chart.name}.png")
        svg = Markup(to_svg(chart.figure, chart.name, html.escape(chart.description)))
        pictures[chart.name] = {"title": chart.title, "description": chart.description, "svg": svg}
    atomic_write(folder / HTML_PAGE, render("report.html.j2", charts=pictures, **_values(contents, defaults)))
    return folder / HTML_PAGE


def _values(contents: Contents, defaults: Settings) -> dict[str, Any]:
    """Return all that the template shows, except the pictures."""
    report = contents.report
    found = checks(report, contents.validations, n_evaluated=contents.n_evaluated)
    source, published = tables.published_tables(report)
    settings = tables.other_settings(contents.settings, defaults)
    processes = pluralize(report["world_size"], "process")
    return {
        "name": contents.name,
        "model": report["model"][:1].upper() + report["model"][1:],
        "source": report["dataset"]["file"] or report["dataset"]["source"],
        "subtitle": f"mode {report['mode']}, {processes}" if kind_of(report).is_trained else processes,
        "summary": _unbroken(summary(report)),
        "warnings": [_unbroken(check.text) for check in found if check.is_warning],
        "passed": [_unbroken(check.text) for check in found if not check.is_warning],
        "cards": list(tables.kpi_cards(report)),
        "held_out": rules(report),
        "no_test": NO_TEST,
        "cell": tables.cell,
        "test_tables": tables.metric_tables(report),
        "validation_tables": tables.metric_tables(report, "validation"),
        "file": source,
        "published": published,
        "slices": tables.slice_tables(report),
        "people": [_person(user, contents) for user in contents.examples.get("users", [])],
        "data": list(tables.data_facts(report["dataset"])),
        "time": tables.time_parts(report),
        "memory": tables.memory(report),
        "settings": [setting for setting in settings if not setting.is_chosen],
        "chosen": [setting for setting in settings if setting.is_chosen],
        "versions": [
            tables.Fact(name.replace("_", " "), " ".join(map(str, value)) if isinstance(value, list) else str(value))
            for name, value in contents.environment.items()
        ],
        "plan": contents.plan if len(contents.plan) <= MAX_PLAN else "",
    }


def _person(user: Mapping[str, Any], contents: Contents) -> dict[str, Any]:
    """Return an example user as the page shows one; the width of a bar grows from the lowest score to the highest."""
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
    n_shown, n = len(user["history"]), user["n_history"]
    return {
        **user,
        "recommendations": recommendations,
        "is_hit": any(item["is_next"] for item in recommendations),
        "place": f"place {user['rank']:,} of {contents.examples['n_items']:,}",
        "before": f"The last {n_shown} of {n:,} items" if n > n_shown else pluralize(n, "item"),
    }


def _unbroken(text: str) -> str:
    """Return the text without a line break between a number and its sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")
