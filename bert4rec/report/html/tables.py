"""The figures of a report as tables: rows of cells that the page lays out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert4rec.evaluation.metric_names import is_of_lists
from bert4rec.report.contestants import MODEL, Contestant, contestants
from bert4rec.report.html.published import Published, known_file, published
from bert4rec.report.markdown.page import PROTOCOL_TITLES, heading

SLICES = {
    "history_length": "By the length of the history",
    "item_popularity": "By how popular the target is",
    "target": "By whether the target was in training",
    "repeated": "By whether the user has seen the target before",
    "time": "By when it was",
}
SLICE_METRICS = ("HR@10", "NDCG@10")


class Cell(NamedTuple):
    """A figure as it is shown, and its interval, "" where that is not known."""

    text: str
    interval: str = ""


class Row(NamedTuple):
    """One contestant of a table; `kind` decides how it looks."""

    kind: str
    title: str
    cells: list[Cell]


class Table(NamedTuple):
    """What was measured by one protocol."""

    title: str
    columns: list[str]
    rows: list[Row]


class Line(NamedTuple):
    """One line of the published figures; `bar`: its share of the largest NDCG@10, in %."""

    title: str
    hit_rate: str
    ndcg: str
    bar: float
    source: str
    url: str
    note: str
    is_own: bool


class Slice(NamedTuple):
    """A part of the test's users; `bars`: for each metric its share of the largest one, in %."""

    name: str
    users: str
    cells: list[Cell]
    bars: list[float]


def metric_tables(report: Mapping[str, Any], split: str = "test") -> list[Table]:
    """A table a protocol: everybody on the test, the model alone on another split."""
    if split == "test":
        found = contestants(report)
    else:
        intervals = report.get("intervals", {}).get(split, {})
        found = [Contestant(MODEL, str(report.get("model", "Bert4Rec")), report.get(split, {}), intervals)]
    tables = []
    for protocol in PROTOCOL_TITLES:
        present = [one for one in found if protocol in one.metrics]
        if present and present[0] is found[0]:  # what the model was not ranked by is no matter
            title, names = heading(report, split, protocol), [*present[0].metrics[protocol]]
            of_ranks = [name for name in names if name != "users" and not is_of_lists(name)]
            tables.append(_table(title, protocol, of_ranks, present))
            of_lists = [name for name in names if is_of_lists(name) and name.endswith("@10")]
            listed = [one for one in present if of_lists and of_lists[0] in one.metrics[protocol]]
            if listed:
                tables.append(_table(f"{title}: their lists of the ten best", protocol, of_lists, listed))
    return tables


def _table(title: str, protocol: str, columns: list[str], found: Sequence[Contestant]) -> Table:
    rows = [Row(one.kind, one.title, [_cell(one, protocol, name) for name in columns]) for one in found]
    return Table(title, columns, rows)


def _cell(one: Contestant, protocol: str, metric: str) -> Cell:
    value = one.metrics[protocol].get(metric)
    return Cell("–") if value is None else Cell(_shown(value), _interval(one.interval(protocol, metric)))


def _shown(value: float) -> str:
    """Four digits behind the point, or fewer of a large number: 0.3113, 12.46, 1,204."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def _interval(interval: Sequence[float] | None) -> str:
    return f"{_shown(interval[0])} – {_shown(interval[1])}" if interval else ""


def published_tables(report: Mapping[str, Any]) -> tuple[str, list[tuple[str, list[Line]]]]:
    """By what the file is known, and which it is; and for each protocol the published figures with the run's own."""
    dataset, model = report["dataset"], report.get("test", {})
    known = known_file(dataset) if report.get("seen_items") != "keep" else None  # the papers leave them out
    if known is None:
        return "", []
    file, by = known
    n_negatives, title = dataset.get("n_eval_negatives", 100), str(report.get("model", "Bert4Rec"))
    tables = []
    for protocol in PROTOCOL_TITLES:
        rows = published(file, protocol, n_negatives=n_negatives)
        own = model.get(protocol, {})
        if rows and {"HR@10", "NDCG@10"} <= own.keys():
            ours = Published(f"{title}, this run", own["HR@10"], own["NDCG@10"], "", "", "")
            tables.append((heading(report, "test", protocol), list(_lines(rows, ours))))
    return f"{by}: {file['name']}", tables


def _lines(rows: Sequence[Published], ours: Published) -> Iterator[Line]:
    together = sorted([*rows, ours], key=lambda row: row.ndcg)
    largest = max(row.ndcg for row in together)
    for row in together:
        figures = f"{row.hit_rate:.4f}", f"{row.ndcg:.4f}", 100 * row.ndcg / largest
        yield Line(row.model, *figures, row.source, row.url, row.note, row is ours)


def slice_tables(report: Mapping[str, Any]) -> list[tuple[str, list[Slice]]]:
    """Title and parts of each way of cutting the test's users, where that makes several parts."""
    of_test = report.get("slices", {}).get("test", {})
    return [(SLICES.get(name, name), _slices(parts)) for name, parts in of_test.items() if len(parts) > 1]


def _slices(parts: Sequence[Mapping[str, Any]]) -> list[Slice]:
    largest = {name: max((part.get(name) or 0) for part in parts) or 1 for name in SLICE_METRICS}
    return [
        Slice(
            str(part["name"]),
            f"{part['users']:,}",
            [_slice_cell(part, name) for name in SLICE_METRICS],
            [100 * (part.get(name) or 0) / largest[name] for name in SLICE_METRICS],
        )
        for part in parts
    ]


def _slice_cell(part: Mapping[str, Any], name: str) -> Cell:
    value = part.get(name)
    return Cell("–") if value is None else Cell(_shown(value), _interval(part.get("intervals", {}).get(name)))
