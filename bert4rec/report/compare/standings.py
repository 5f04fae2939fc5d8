"""The table of a benchmark: every contestant on every split by every protocol, as a mean over seeds.

What others have published on the same file stands below them.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert4rec.dataset.ranks import LEFT_OUT
from bert4rec.dataset.schema import TEST
from bert4rec.evaluation.metric_names import is_of_lists
from bert4rec.evaluation.metrics import gains
from bert4rec.evaluation.results.intervals import mean_interval
from bert4rec.evaluation.results.rank_files import rank_file
from bert4rec.report.compare.paired import ranked_users
from bert4rec.report.markdown import markdown_table
from bert4rec.report.summary import HELD_OUT, PROTOCOL_TITLES, heading
from bert4rec.report.tables import LISTED_AT, known_file, published

FORMAT_VERSION = 1
HOW_TO_READ = (
    "In brackets: 95 % intervals over users. With several seeds: the mean ± the standard deviation over them, and the "
    "interval of the mean. Minutes are those of training and validation. Other cut-offs, and what is said of lists, "
    "stand in each run's report."
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
            of_seeds = [result for result in measured if result.contestant == contestant]
            minutes = statistics.mean(result.report["training"]["seconds"] / 60 for result in of_seeds)
            rows.append([contestant, *_cells(of_seeds, protocol, names), f"{minutes:.1f}"])
        first = measured[0].report
        if protocol in first.get("best_possible", {}):
            rows.append(["best possible", *(_figure(first, "best_possible", protocol, name) for name in names), ""])
        if first.get("seen_items") != "keep":  # the papers leave them out
            rows += _published(first["dataset"], protocol, names)
        yield f"{heading(first, 'test', protocol)}\n\n{markdown_table(['', *names, 'minutes'], rows)}"


def _is_shown(metric: str) -> bool:
    """Whether it has a column: with other cut-offs and what is said of whole lists the table would be too wide."""
    return metric == "MRR" or (metric.endswith(f"@{LISTED_AT}") and not is_of_lists(metric))


def _cells(results: Sequence[Result], protocol: str, names: Sequence[str]) -> Iterator[str]:
    """Of one run its figures, of several the mean, the spread, and how sure the mean is for other users."""
    if len(results) == 1:
        yield from (_figure(results[0].report, "test", protocol, name) for name in names)
        return
    gained = _mean_gains(results, protocol, names)
    for name in names:
        values = [result.report["test"][protocol][name] for result in results]
        interval = mean_interval(gained[name]) if name in gained else []
        yield f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}{_bounds(interval)}"


def _mean_gains(results: Sequence[Result], protocol: str, names: Sequence[str]) -> dict[str, npt.NDArray[np.float64]]:
    """What each user's metrics are on average over the runs, as far as the ranks of all users are there."""
    if not all((result.folder / rank_file(TEST)).is_file() for result in results):
        return {}
    ks = sorted({int(name.partition("@")[2]) for name in names if "@" in name})
    of_runs = [ranked_users(result.folder, result.report, TEST).ranks[protocol] for result in results]
    gained = [dict(gains(ranks[ranks != LEFT_OUT], ks)) for ranks in of_runs]
    return {name: np.mean([of_run[name] for of_run in gained], axis=0) for name in names if name in gained[0]}


def _figure(report: Mapping[str, Any], split: str, protocol: str, metric: str) -> str:
    """With its interval, where that is known."""
    interval = report.get("intervals", {}).get(split, {}).get(protocol, {}).get(metric, [])
    return f"{report[split][protocol][metric]:.4f}{_bounds(interval)}"


def _bounds(interval: Sequence[float]) -> str:
    return f" ({interval[0]:.4f} – {interval[1]:.4f})" if interval else ""


def _published(dataset: Mapping[str, Any], protocol: str, names: Sequence[str]) -> Iterator[list[str]]:
    """A row for each result of others on the same file, the lowest NDCG@10 first."""
    if (known := known_file(dataset)) is None:
        return
    for row in published(known[0], protocol, n_negatives=dataset["n_eval_negatives"]):
        figures = {"HR@10": f"{row.hit_rate:.4f}", "NDCG@10": f"{row.ndcg:.4f}"}
        about = f"published: {row.model}" + (f" ({row.note})" if row.note else "")
        yield [about, *(figures.get(name, "") for name in names), ""]
