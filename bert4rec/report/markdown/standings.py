"""The table of a benchmark: every contestant on every split by every protocol, as a mean over seeds."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec.evaluation.metric_names import LIST_METRICS
from bert4rec.report.markdown.page import HELD_OUT, PROTOCOL_TITLES, heading
from bert4rec.report.markdown.table import markdown_table

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Result:
    """The `report` of a contestant's run in `folder` on a `split`; `seed` None where nothing is drawn."""

    contestant: str
    split: str
    seed: int | None
    folder: Path
    report: Mapping[str, Any]


def standings_page(results: Sequence[Result]) -> str:
    """All tables as Markdown, a section a split; means, and with several seeds ± the standard deviation over them."""
    (dataset, *_) = [result.report["dataset"] for result in results]
    sections = [f"# Benchmark on {dataset['source']}: {dataset['users']:,} users, {dataset['items']:,} items"]
    for split in dict.fromkeys(result.split for result in results):
        of_split = [result for result in results if result.split == split]
        sections += [f"## Split: {split}", HELD_OUT[split], *_tables(of_split)]
    return "\n\n".join(sections) + "\n"


def standings_data(results: Sequence[Result]) -> dict[str, Any]:
    """The figures of every run, for programs."""
    return {
        "format_version": FORMAT_VERSION,
        "runs": [
            {
                "contestant": result.contestant,
                "split": result.split,
                "seed": result.seed,
                "run": str(result.folder),
                "seconds": result.report["training"]["seconds"],
                "test": result.report.get("test", {}),
            }
            for result in results
        ],
    }


def _tables(results: Sequence[Result]) -> Iterator[str]:
    for protocol in PROTOCOL_TITLES:
        rows = [row for row in _rows(results, protocol) if row[1]]
        if rows:
            measured = next(result.report for result in results if protocol in result.report.get("test", {}))
            yield f"{heading(measured, 'test', protocol)}\n\n{_table(rows)}"


def _rows(results: Sequence[Result], protocol: str) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """For each contestant its name, and metric → the values of its runs; none where it was not measured so."""
    for contestant in dict.fromkeys(result.contestant for result in results):
        reports = [result.report for result in results if result.contestant == contestant]
        yield contestant, _values([report.get("test", {}).get(protocol) for report in reports], reports)
    best_possible = results[0].report.get("best_possible", {}).get(protocol)
    if best_possible:
        yield "best possible", {name: [value] for name, value in best_possible.items() if _is_shown(name)}


def _values(
    metrics: Sequence[Mapping[str, float] | None], reports: Sequence[Mapping[str, Any]]
) -> dict[str, list[float]]:
    measured = [of_run for of_run in metrics if of_run]
    if not measured:
        return {}
    values = {name: [of_run[name] for of_run in measured] for name in measured[0] if _is_shown(name)}
    return values | {"minutes": [report["training"]["seconds"] / 60 for report in reports]}


def _is_shown(metric: str) -> bool:
    """Whether it has a column: what is said of whole lists would make the table too wide, and stands in the reports."""
    return metric != "users" and metric.partition("@")[0] not in LIST_METRICS


def _table(rows: Sequence[tuple[str, Mapping[str, Sequence[float]]]]) -> str:
    names = [*rows[0][1]]
    cells = [[title, *(_cell(name, values.get(name, [])) for name in names)] for title, values in rows]
    return markdown_table(["", *names], cells)


def _cell(name: str, values: Sequence[float]) -> str:
    if not values:
        return ""
    if name == "minutes":
        return f"{statistics.mean(values):.1f}"
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"
