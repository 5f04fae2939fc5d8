"""Show a models folder as one HTML page: whether the recommender is fresh and healthy, its updates and its versions."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert4rec.checkpoint.models_folder import MODELS_PAGE
from bert4rec.config.kinds import POPULARITY
from bert4rec.report.charts import page_values
from bert4rec.report.figures import MODEL
from bert4rec.report.tables import Cell, cell
from bert4rec.report.templates import render
from bert4rec.report.update_charts import (
    ONE_WEEK,
    SHOWN_METRIC,
    Score,
    Update,
    days_of,
    figures,
    mean_over,
    scores,
    update_charts,
)
from bert4rec.runtime.files import atomic_write

N_TABLE_ROWS = 30  # newest updates and newest versions in the tables
MANY_NOT_TAKEN = 3  # updates in a row without a new champion, from which the page warns
MEANINGS = {
    "blessed": "the new version is not worse than the champion before it",
    "refused": "the new version is worse than the champion",
    "cannot tell": "these users are too few to compare the new version with the champion",
    "stopped": "a check of the data failed, and nothing was learnt",
}


class Mean(NamedTuple):
    """A score as means over the users of the last seven days and of the 28 days before."""

    kind: str
    title: str
    week: Cell
    before: Cell


class Row(NamedTuple):
    """An update in the table of updates."""

    update: Update
    days: str
    score: str
    popularity: str
    difference: Cell
    pooled: Cell
    minutes: str


def write_models_page(
    folder: Path, updates: Sequence[Update], aliases: Mapping[str, str], versions: Sequence[Mapping[str, Any]]
) -> Path:
    """Write `index.html` into a models folder, and return its path.

    `updates`: the lines of `updates.jsonl`, the oldest first; `aliases`: alias → version; `versions`: the contents of
    each `version.json`. Keys other than `time` and `decision` may be missing or null. Raises `OSError` if the
    page cannot be written.
    """
    newest_first = sorted(versions, key=lambda version: version["time"], reverse=True)
    shown = [
        version
        for place, version in enumerate(newest_first)
        if place < N_TABLE_ROWS or version["time"] in aliases.values()
    ]
    page = render(
        "models.html.j2", name=folder.resolve().name, folder=shlex.quote(str(folder)), aliases=aliases,
        champion=next((version for version in versions if version["time"] == aliases.get("champion")), {}),
        last=updates[-1] if updates else None, warnings=[*_warnings(updates, aliases)], means=_means(updates),
        charts=[page_values(chart) for chart in update_charts(updates)], metric=SHOWN_METRIC,
        rows=[_row(update) for update in reversed(updates[-N_TABLE_ROWS:])], n_updates=len(updates),
        verdict=_verdict(updates[-1]) if updates else [],
        versions=shown, n_versions=len(versions), day=_day, moment=_moment,
    )  # fmt: skip
    atomic_write(folder / MODELS_PAGE, page)
    return folder / MODELS_PAGE


def _warnings(updates: Sequence[Update], aliases: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each reason to look after the recommender."""
    is_week = _is_recent(updates)[0]
    means = {score.kind: mean_over(score.values, score.users, is_week) for score in scores(updates)}
    if means.get(MODEL, np.nan) < means.get(POPULARITY, np.nan):
        yield (
            f"In the last seven days, popularity was better than the champion: {SHOWN_METRIC} {means[POPULARITY]:.4f} "
            f"and {means[MODEL]:.4f}. Read below how to go back to the version before."
        )
    taken = [place for place, update in enumerate(updates, 1) if update.get("taken")]
    n_not_taken = len(updates) - (taken[-1] if taken else 0)
    if n_not_taken >= MANY_NOT_TAKEN:
        yield (
            f"None of the last {n_not_taken} updates made a new champion, so it knows nothing of their days. "
            "Read the reasons below."
        )


def _verdict(update: Update) -> list[str]:
    """Return the sentences on the decision of an update; the gate's own sentence tells more than the one here."""
    decision, reasons = update["decision"], update.get("reasons") or []
    first = [] if reasons and reasons[0].lower().startswith(decision) else [f"{decision}: {MEANINGS[decision]}."]
    return [sentence[:1].upper() + sentence[1:] for sentence in [*first, *reasons]]


def _is_recent(updates: Sequence[Update]) -> tuple[Any, Any]:
    """Return which updates are of the last seven days, and which of the 28 days before, by days in UTC."""
    days = days_of(updates)
    last = max(days, default=np.datetime64(0, "D"))
    is_week = days > last - ONE_WEEK
    return is_week, ~is_week & (days > last - 5 * ONE_WEEK)


def _means(updates: Sequence[Update]) -> list[Mean]:
    groups = [
        Score("", f"champion, {title}", *(figures(updates, "score", name, key) for key in (SHOWN_METRIC, "users")))
        for name, title in (("known_items", "known items"), ("new_users", "second item of new users"))
    ]
    is_week, is_before = _is_recent(updates)
    found = [
        (score, [mean_over(score.values, score.users, is_chosen) for is_chosen in (is_week, is_before)])
        for score in [*scores(updates), *groups]
    ]
    return [Mean(score.kind, score.title, *map(_cell, means)) for score, means in found if np.isfinite(means).any()]


def _row(update: Update) -> Row:
    def number(*keys: str) -> float:
        return float(figures([update], *keys)[0])

    def difference(*keys: str) -> Cell:
        value, low, high = (number("gate", *keys, name) for name in ("difference", "low", "high"))
        interval = f"{low:+.4f} – {high:+.4f}" if np.isfinite([low, high]).all() else ""
        return Cell(f"{value:+.4f}", interval) if np.isfinite(value) else cell(None, None)

    days = [_day(seconds) for seconds in update.get("day") or []]
    seconds = sum((update.get("seconds") or {}).values())
    return Row(
        update, " to ".join(dict.fromkeys(days)) or "–", _cell(number("score", SHOWN_METRIC)).text,
        _cell(number("score", "popularity", SHOWN_METRIC)).text, difference(), difference("pooled"),
        f"{seconds / 60:.1f}",
    )  # fmt: skip


def _cell(value: float) -> Cell:
    return cell(value if np.isfinite(value) else None, None)


def _day(seconds: float | None) -> str:
    """Return a date in UTC; one far outside of the calendar, too, which a wrong clock can make."""
    return "–" if seconds is None else str(np.datetime64(int(seconds), "s").astype("datetime64[D]"))


def _moment(time: str) -> str:
    """Return the name of a version or update as a time for people: 2026-11-26 03:00."""
    return f"{time[:10]} {time[11:16].replace('-', ':')}"
