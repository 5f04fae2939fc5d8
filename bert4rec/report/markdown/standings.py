"""The table of a benchmark: every contestant on every split by every protocol, as a mean over seeds."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec.evaluation.metric_names import is_of_lists
from bert4rec.report.markdown.page import HELD_OUT, LISTED_AT, PROTOCOL_TITLES, heading
from bert4rec.report.markdown.table import markdown_table

FORMAT_VERSION = 1
HOW_TO_READ = (
    "In brackets: 95 % intervals over users. With several seeds: the mean ± the standard deviation over them. Minutes "
    "are those of training and validation. Other cut-offs, and what is said of lists, stand in each run's report."
)


@dataclass(frozen=True)
class Result:
    """The `report` of a contestant's run in `folder` on a `split`; `seed` None where nothing is drawn."""

    contestant: str
    split: str
    seed: int | None
    folder: Path
    report: Mapping[str, Any]


def standings_page(results: Sequence[Result]) -> str:
    """All tables as Markdown, a section a split: of one seed figures with their intervals, of several mean ± spread."""
    (dataset, *_) = [result.report["dataset"] for result in results]
    sections = [f"# Benchmark on {dataset['source']}: {dataset['users']:,} users, {dataset['items']:,} items"]
    for split in dict.fromkeys(result.split for result in results):
        of_split = [result for result in results if result.split == split]
        sections += [f"## Split: {split}", HELD_OUT[split], *_tables(of_split)]
    return "\n\n".join([*sections, HOW_TO_READ]) + "\n"


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
    """By each protocol that was measured, a row a contestant and the best possible, where that is known."""
    for protocol in PROTOCOL_TITLES:
        measured = [result for result in results if protocol in result.report.get("test", {})]
        if not measured:
            continue
        names = [name for name in measured[0].report["test"][protocol] if _is_shown(name)]
        rows = []
        for contestant in dict.fromkeys(result.contestant for result in measured):
            reports = [result.report for result in measured if result.contestant == contestant]
            minutes = statistics.mean(report["training"]["seconds"] / 60 for report in reports)
            rows.append([contestant, *(_cell(reports, "test", protocol, name) for name in names), f"{minutes:.1f}"])
        first = measured[0].report
        if protocol in first.get("best_possible", {}):
            rows.append(["best possible", *(_cell([first], "best_possible", protocol, name) for name in names), ""])
        yield f"{heading(first, 'test', protocol)}\n\n{markdown_table(['', *names, 'minutes'], rows)}"


def _is_shown(metric: str) -> bool:
    """Whether it has a column: with other cut-offs and what is said of whole lists the table would be too wide."""
    return metric == "MRR" or (metric.endswith(f"@{LISTED_AT}") and not is_of_lists(metric))


def _cell(reports: Sequence[Mapping[str, Any]], split: str, protocol: str, metric: str) -> str:
    """Of several runs mean and spread, of one the figure and, where it is known, its interval."""
    values = [report[split][protocol][metric] for report in reports]
    if len(values) > 1:
        return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"
    interval = reports[0].get("intervals", {}).get(split, {}).get(protocol, {}).get(metric)
    return f"{values[0]:.4f}" + (f" ({interval[0]:.4f} – {interval[1]:.4f})" if interval else "")
