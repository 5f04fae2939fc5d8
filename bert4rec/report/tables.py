"""Make the tables of the pages: metrics, published results, and settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from bert4rec.dataset.format import METADATA_DEFAULTS
from bert4rec.evaluation import is_of_lists
from bert4rec.report.figures import MODEL, Candidate, Report, Settings, contestants, main_protocol
from bert4rec.report.summary import SHORT_TITLES, heading

PUBLISHED = Path(__file__).with_name("published.toml")
LISTED_AT = 10  # cut-off of the list metrics in the tables
NOT_SHOWN = ("users", "NDCG@1")  # NDCG@1 equals HR@1
PATHS = ("data.dataset_dir", "run.dir", "run.name", "run.resume")  # settings that do not change what is trained


class MetricTable(NamedTuple):
    """The `metrics` of the `contestants` in one protocol: rank metrics, or metrics of recommended lists."""

    title: str
    protocol: str
    metrics: list[str]
    contestants: list[Candidate]
    is_of_lists: bool


class Cell(NamedTuple):
    """A figure as text, and its interval ("" if unknown)."""

    text: str
    interval: str = ""


class Published(NamedTuple):
    """A published result, its source, and a `note` on why it is not fully comparable."""

    model: str
    hit_rate: float
    ndcg: float
    source: str
    url: str
    note: str
    is_own: bool = False


class Setting(NamedTuple):
    """A setting that differs from its default; `is_chosen`: its default is "auto"."""

    name: str
    value: str
    default: str
    is_chosen: bool


def metric_tables(report: Report, split: str = "test") -> list[MetricTable]:
    """Return the tables of each protocol: of all contestants on the test, of only the model on another split."""
    if split == "test":
        found = contestants(report)
    else:
        intervals = report.get("intervals", {}).get(split, {})
        found = [Candidate(MODEL, report["model"], report.get(split, {}), intervals)]
    tables = []
    for protocol in SHORT_TITLES:
        if not found or protocol not in found[0].metrics:
            continue
        measured = [one for one in found if protocol in one.metrics]
        title, names = heading(report, split, protocol), [*found[0].metrics[protocol]]
        rank_names = [name for name in names if name not in NOT_SHOWN and not is_of_lists(name)]
        rank_names.sort(key=lambda name: not name.endswith(f"@{LISTED_AT}"))  # those come first: a phone shows two
        tables.append(MetricTable(title, protocol, rank_names, measured, is_of_lists=False))
        list_names = [name for name in names if is_of_lists(name) and name.endswith(f"@{LISTED_AT}")]
        if with_lists := [one for one in measured if list_names and list_names[0] in one.metrics[protocol]]:
            tables.append(MetricTable(title, protocol, list_names, with_lists, is_of_lists=True))
    return tables


def feature_rows(report: Report) -> list[tuple[str, str, str]]:
    """Return for each item feature its name, how much NDCG@10 the test loses without it, and the interval."""
    return [
        (name, f"{loss['difference']:+.4f}", "{:+.4f} – {:+.4f}".format(*loss["interval"]))
        for name, loss in report.get("features", {}).items()
    ]


def prior_rows(report: Report) -> list[tuple[str, str, str]]:
    """Return HR@10 and NDCG@10 on the test of the model alone, of each source of its prior alone, and of all together.

    Without these figures, the result is [].
    """
    figures, protocol = report.get("prior", {}), main_protocol(report)
    if "sources" not in figures or protocol is None:
        return []
    rows = {f"{report['model']} alone": figures["model"]}
    rows |= {f"{source} alone": metrics for source, metrics in figures["sources"].items()}
    rows["all together"] = report["test"][protocol]
    return [(title, _number(metrics["HR@10"]), _number(metrics["NDCG@10"])) for title, metrics in rows.items()]


def cell(value: float | None, interval: Sequence[float] | None) -> Cell:
    """Return a figure with four decimals, or fewer if it is large: 0.3113, 12.46, 1,204."""
    if value is None:
        return Cell("–")
    return Cell(_number(value), f"{_number(interval[0])} – {_number(interval[1])}" if interval else "")


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def known_file(dataset: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Return the entry of a dataset's file in `published.toml`, and how it was identified; None if there is none.

    The counts must be equal, since rows can have been filtered; the checksum tells whether it is the same file.
    """
    if dataset["split"] != "leave_one_out" or dataset.keys() & METADATA_DEFAULTS.keys():
        return None
    for file in tomli.loads(PUBLISHED.read_text(encoding="utf-8"))["file"]:
        if all(file[name] == dataset[name] for name in ("users", "items", "rows")):
            is_same = dataset.get("file_sha256") == file["sha256"]
            return file, "the checksum of its file" if is_same else "its counts only, not by the checksum of its file"
    return None


def published(file: Mapping[str, Any], protocol: str, *, n_negatives: int) -> list[Published]:
    """Return the results in a protocol, the lowest NDCG@10 first; the papers use 100 sampled negatives."""
    if protocol != "full" and n_negatives != 100:
        return []
    rows = []
    for row in file["figures"].get(protocol, []):
        source, url = file["sources"][row["source"]]
        rows.append(Published(row["model"], row["HR"], row["NDCG"], source, url, row.get("note", "")))
    return sorted(rows, key=lambda row: row.ndcg)


def published_tables(report: Report) -> tuple[str, list[tuple[str, list[Published]]]]:
    """Return how the file was identified, and for each protocol the published results with the run's own."""
    dataset = report["dataset"]
    known = known_file(dataset) if report["seen_items"] == "leave_out" else None  # the papers leave seen items out
    if known is None:
        return "", []
    file, reason = known
    tables = []
    for protocol in SHORT_TITLES:
        rows = published(file, protocol, n_negatives=dataset["n_eval_negatives"])
        own = report.get("test", {}).get(protocol, {})
        if rows and {"HR@10", "NDCG@10"} <= own.keys():
            ours = Published(f"{report['model']}, this run", own["HR@10"], own["NDCG@10"], "", "", "", is_own=True)
            lines = sorted([*rows, ours], key=lambda row: row.ndcg)
            tables.append((heading(report, "test", protocol), lines))
    return f"{reason}: {file['name']}", tables


def other_settings(settings: Settings, defaults: Settings) -> list[Setting]:
    """Return the settings that differ from their defaults, in the order of `settings`."""
    changed = []
    for table, values in settings.items():
        for key, value in values.items():
            name, default = f"{table}.{key}", defaults.get(table, {}).get(key)
            if value != default and name not in PATHS:
                changed.append(Setting(name, _value(value), _value(default), default == "auto"))
    return changed


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
