"""Draw what a dataset holds as one HTML page: its counts, what stands out, rows over time, popularity, lengths."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert4rec.dataset.findings import findings
from bert4rec.dataset.format import describe
from bert4rec.dataset.reader import Dataset
from bert4rec.report.charts import MODEL_COLOR, Chart, draw_lengths, new_figure, page_values, show_counts
from bert4rec.report.templates import render
from bert4rec.runtime.files import atomic_write

N_BARS = 60  # bars of the rows over time


def write_dataset_page(dataset: Dataset, path: Path) -> Path:
    """Write the page of a dataset to `path`, and return it."""
    metadata = dataset.metadata
    page = render(
        "dataset.html.j2", name=dataset.folder.name, metadata=metadata, facts=describe(metadata),
        findings=findings(metadata), charts=[page_values(chart) for chart in _charts(dataset)],
    )  # fmt: skip
    atomic_write(path, page)
    return path


def _charts(dataset: Dataset) -> Iterator[Chart]:
    if dataset.histories.has_times and dataset.metadata["time_span"]:
        yield _rows_over_time(dataset)
    yield _popularity(dataset)
    yield draw_lengths(dataset.metadata["lengths"])


def _rows_over_time(dataset: Dataset) -> Chart:
    first, last = dataset.metadata["time_span"]
    edges = np.linspace(first, last + 1, N_BARS + 1)
    counts = sum(np.histogram(times, edges)[0] for times in dataset.histories.all_times())
    days = edges[:-1].astype("datetime64[s]")
    with new_figure(height=2.6) as (figure, (axes,)):
        axes.bar(days, counts, width=np.diff(edges).astype("timedelta64[s]"), align="edge", color=MODEL_COLOR)
        axes.set(ylabel="interactions")
        show_counts(axes)
        axes.tick_params(axis="x", labelrotation=30)
        axes.grid(visible=False, axis="x")
    busiest = np.datetime_as_string(days[int(np.argmax(counts))], unit="D")
    text = f"Interactions from {days[0].astype('datetime64[D]')} on; the most are from about {busiest}."
    return Chart("rows_over_time", "Interactions over time", text, figure)


def _popularity(dataset: Dataset) -> Chart:
    counts = np.sort(dataset.popularity)[::-1]
    shares = np.cumsum(counts) / max(1, counts.sum())
    ranks = np.unique(np.geomspace(1, len(counts), 200).astype(int))
    with new_figure(height=2.6) as (figure, (axes,)):
        axes.plot(100 * ranks / len(counts), 100 * shares[ranks - 1], color=MODEL_COLOR)
        axes.set(xlabel="most popular items, %", ylabel="of the interactions, %", ylim=(0, 102))
    tenth = shares[max(0, len(counts) // 10 - 1)]
    text = f"The most popular tenth of the items has {100 * tenth:.0f} % of the interactions."
    return Chart("popularity", "Share of the most popular items", text, figure)
