"""The tables and lists of the pages: metrics, published results, slices, and the facts of the data and the run."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from bert4rec.evaluation.metric_names import is_of_lists
from bert4rec.report.contents import Settings
from bert4rec.report.figures import MODEL, Candidate, Report, contestants, kind_of, main_protocol
from bert4rec.report.summary import PROTOCOL_TITLES, heading
from bert4rec.runtime.errors import format_duration, pluralize, rounded

PUBLISHED = Path(__file__).with_name("published.toml")
LISTED_AT = 10  # the cut-off of the metrics of lists that the tables show
SLICES = {
    "history_length": "By the length of the history",
    "item_popularity": "By how popular the target is",
    "target": "By whether the target was in training",
    "repeated": "By whether the user has seen the target before",
    "time": "By when it was",
}
SLICE_METRICS = ("HR@10", "NDCG@10")
PARTS = {
    "start": "start",
    "training": "training steps",
    "validation": "validation",
    "saving": "checkpoints",
    "test": "test and baselines",
}
PATHS = ("data.dataset_dir", "run.dir", "run.name", "run.resume")  # settings that do not change what is trained


class MetricTable(NamedTuple):
    """The `metrics` of the `contestants` by one protocol: of the ranks of targets, or of the recommended lists."""

    title: str
    protocol: str
    metrics: list[str]
    contestants: list[Candidate]
    is_of_lists: bool


class Cell(NamedTuple):
    """A figure as text, and its interval, "" if that is not known."""

    text: str
    interval: str = ""


class Published(NamedTuple):
    """A published result, its source, and in `note` why it is not fully comparable."""

    model: str
    hit_rate: float
    ndcg: float
    source: str
    url: str
    note: str
    is_own: bool = False


class Fact(NamedTuple):
    """A line of a list: a name, a value, perhaps a remark."""

    name: str
    value: str
    remark: str = ""


class Part(NamedTuple):
    """A part of the time of a run: its kind, name, and duration, and its share in %."""

    kind: str
    name: str
    value: str
    share: float


class Setting(NamedTuple):
    """A setting that differs from its default; `is_chosen`: the program chose it for "auto"."""

    name: str
    value: str
    default: str
    is_chosen: bool


def metric_tables(report: Report, split: str = "test") -> list[MetricTable]:
    """Return the tables of each protocol: of all contestants on the test, of the model alone on another split."""
    if split == "test":
        found = contestants(report)
    else:
        intervals = report.get("intervals", {}).get(split, {})
        found = [Candidate(MODEL, report["model"], report.get(split, {}), intervals)]
    tables = []
    for protocol in PROTOCOL_TITLES:
        if not found or protocol not in found[0].metrics:
            continue
        measured = [one for one in found if protocol in one.metrics]
        title, names = heading(report, split, protocol), [*found[0].metrics[protocol]]
        of_ranks = [name for name in names if name != "users" and not is_of_lists(name)]
        tables.append(MetricTable(title, protocol, of_ranks, measured, is_of_lists=False))
        of_lists = [name for name in names if is_of_lists(name) and name.endswith(f"@{LISTED_AT}")]
        if with_lists := [one for one in measured if of_lists and of_lists[0] in one.metrics[protocol]]:
            tables.append(MetricTable(title, protocol, of_lists, with_lists, is_of_lists=True))
    return tables


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
    if dataset["split"] != "leave_one_out":
        return None
    for file in tomli.loads(PUBLISHED.read_text(encoding="utf-8"))["file"]:
        if all(file[name] == dataset[name] for name in ("users", "items", "rows")):
            is_same = dataset.get("file_sha256") == file["sha256"]
            return file, "the checksum of its file" if is_same else "its counts alone, not by the checksum of its file"
    return None


def published(file: Mapping[str, Any], protocol: str, *, n_negatives: int) -> list[Published]:
    """Return the results by a protocol, the lowest NDCG@10 first; the papers have 100 sampled negatives."""
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
    known = known_file(dataset) if report["seen_items"] != "keep" else None  # the papers leave seen items out
    if known is None:
        return "", []
    file, reason = known
    tables = []
    for protocol in PROTOCOL_TITLES:
        rows = published(file, protocol, n_negatives=dataset["n_eval_negatives"])
        own = report.get("test", {}).get(protocol, {})
        if rows and {"HR@10", "NDCG@10"} <= own.keys():
            ours = Published(f"{report['model']}, this run", own["HR@10"], own["NDCG@10"], "", "", "", is_own=True)
            lines = sorted([*rows, ours], key=lambda row: row.ndcg)
            tables.append((heading(report, "test", protocol), lines))
    return f"{reason}: {file['name']}", tables


def slice_tables(report: Report) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return a title and the slices of each partition of the test users; `bars`: shares of the best slice, in %."""
    tables = []
    for name, slices in report.get("slices", {}).get("test", {}).items():
        if len(slices) < 2:
            continue
        largest = {metric: max(one[metric] for one in slices) or 1 for metric in SLICE_METRICS}
        rows = [
            {
                "name": one["name"],
                "users": f"{one['users']:,}",
                "cells": [cell(one[metric], one.get("intervals", {}).get(metric)) for metric in SLICE_METRICS],
                "bars": [100 * one[metric] / largest[metric] for metric in SLICE_METRICS],
            }
            for one in slices
        ]
        tables.append((SLICES[name], rows))
    return tables


def kpi_cards(report: Report) -> Iterator[Fact]:
    """Yield the few figures that are shown large."""
    protocol, training, kind = main_protocol(report), report["training"], kind_of(report)
    if protocol:
        model = contestants(report)[0]
        for name in ("HR@10", "NDCG@10"):
            if name in model.metrics[protocol]:
                interval = model.interval(protocol, name)
                remark = f"{interval[0]:.4f} – {interval[1]:.4f}" if interval else f"{protocol} ranking, test"
                yield Fact(name, f"{model.metrics[protocol][name]:.4f}", remark)
    if ratings := report.get("ratings"):
        yield Fact("RMSE", f"{ratings['RMSE']:.4f}", f"MAE {ratings['MAE']:.4f}")
    if kind.is_trained:
        remark = f"{pluralize(training['steps'], 'step')}, ended by {training['stopped_by']}"
        yield Fact("epochs", rounded(training["epochs"]), remark)
    rate = training["sequences_per_second"]
    speed = f"{rounded(rate)} {kind.examples}/s" if rate else ""
    yield Fact("training" if kind.is_trained else "counting", _duration(training["seconds"]), speed)


def data_facts(dataset: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the facts of a dataset, as far as its source has them."""
    yield Fact("source", dataset["source"], dataset["file"])
    for name, noun in (("users", "users"), ("items", "items"), ("rows", "interactions")):
        n_read = dataset.get(f"{name}_read")
        yield Fact(noun, f"{dataset[name]:,}", f"of {n_read:,} read" if n_read and n_read != dataset[name] else "")
    if density := dataset.get("density"):
        yield Fact("density", f"{100 * density:.3g} %", "of all pairs of a user and an item")
    if lengths := dataset.get("lengths"):
        yield Fact("a user has", f"{lengths['median']:,.0f}", f"interactions (median), {lengths['mean']:,.1f} (mean)")
    if span := dataset.get("time_span"):
        first, last = (datetime.fromtimestamp(time, UTC).date().isoformat() for time in span)
        yield Fact("from, to", f"{first}, {last}")
    if n_positions := dataset.get("train_positions"):
        yield Fact("training positions", f"{n_positions:,}")
    yield Fact("split", dataset["split"].replace("_", " "))
    for split in ("validation", "test"):
        if count := dataset["repeated_targets"].get(split):
            seen = f"{count['users']:,} with a target that they had seen" if count["users"] else ""
            yield Fact(f"{split} users", f"{count['of']:,}", seen)
    for kind, n in dataset.get("bad_rows", {}).items():
        yield Fact("unusable rows", f"{n:,}", kind)
    for name, n in dataset.get("dropped", {}).items():
        yield Fact("dropped rows", f"{n:,}", f"by {name}")
    yield Fact("fingerprint", dataset["fingerprint"][:12])


def time_parts(report: Report) -> list[Part]:
    """Return the parts of the time of a run; [] if nothing was trained."""
    seconds = report["training"].get("seconds_by_part", {})
    return [
        Part(kind, name, _duration(seconds[kind]), 100 * seconds[kind] / sum(seconds.values()))
        for kind, name in PARTS.items()
        if seconds.get(kind)
    ]


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def memory(report: Report) -> list[list[str]]:
    """Return a row for each rank: its number, the bytes of its weights, of its optimizer state, and its peak memory."""
    peaks, sharding = report["training"]["peak_memory_bytes"], report.get("sharding")
    weights, states = (sharding["weights"], sharding["optimizer_state"]) if sharding else ([None] * len(peaks),) * 2
    return [[str(rank), *map(_size, values)] for rank, values in enumerate(zip(weights, states, peaks, strict=True))]


def _size(n_bytes: float | None) -> str:
    """Return the bytes in the unit that leaves one to three digits before the point."""
    if n_bytes is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            break
        n_bytes /= 1000
    return f"{n_bytes:,.0f} {unit}" if unit == "B" else f"{n_bytes:,.3g} {unit}"


def other_settings(settings: Settings, defaults: Settings) -> list[Setting]:
    """Return the settings that differ from their defaults, in the order of `settings`."""
    found = []
    for table, values in settings.items():
        for key, value in values.items():
            name, default = f"{table}.{key}", defaults.get(table, {}).get(key)
            if value != default and name not in PATHS:
                found.append(Setting(name, _value(value), _value(default), default == "auto"))
    return found


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
