"""A finished run: its metrics and its model."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.inference.load import load
from bert4rec.inference.recommender import Recommender
from bert4rec.report.contestants import contestants
from bert4rec.report.html.charts import learning_curve
from bert4rec.report.log import read_records
from bert4rec.report.markdown.page import metrics_table, result_line
from bert4rec.report.reading import read_report
from bert4rec.report.summary import summary
from bert4rec.runtime.console import quiet_libraries

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from polars import DataFrame


class Run:
    """Hold the folder of a finished run. Raises `DataError` for another folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.report = read_report(self.folder)

    def __repr__(self) -> str:
        return f"Run('{self.folder}': {result_line(self.report)})"

    def _repr_markdown_(self) -> str:
        """Return the text that a notebook shows."""
        return f"**{self.folder}**\n\n{summary(self.report)}\n\n{metrics_table(self.report)}"

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """Return protocol ("full", "popular", "uniform") → metric → value on the test; {} without a test split."""
        return dict(self.report.get("test", {}))

    def frame(self) -> "DataFrame":
        """Return the test as a Polars frame, a row for each "model", "protocol" and "metric".

        Other columns are "value" and its interval "low", "high", null where a figure has none. The model comes first,
        then its baselines.
        """
        from polars import DataFrame, Float64, String

        rows = [
            (one.title, protocol, metric, value, *(one.interval(protocol, metric) or (None, None)))
            for one in contestants(self.report)
            for protocol, metrics in one.metrics.items()
            for metric, value in metrics.items()
        ]
        names = dict.fromkeys(("model", "protocol", "metric"), String)
        return DataFrame(rows, names | dict.fromkeys(("value", "low", "high"), Float64), orient="row")

    def curves(self) -> "Figure":
        """Return training loss and validation by epoch, as in the report: a Matplotlib figure."""
        train, validations = ([r for r in self.history if r["kind"] == kind] for kind in ("train", "validation"))
        return learning_curve(train, validations, self.report)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Return the records of the training and of its validations, in order: "kind", "step", "epoch" and figures."""
        return read_records(self.folder, "train", "validation")

    def load(self, *, dataset: str | Path | None = None) -> Recommender:
        """Load the model with its best weights; `dataset` is the moved dataset folder. Raises `DataError`."""
        with quiet_libraries("torchrec"):
            return load(self.folder, dataset=dataset)
