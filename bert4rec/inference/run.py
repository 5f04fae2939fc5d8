"""A finished run: what was measured, and the model that came out of it."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from bert4rec.inference.load import load
from bert4rec.inference.recommender import Recommender
from bert4rec.report.log import read_records
from bert4rec.report.markdown.page import result_line
from bert4rec.report.reading import read_report
from bert4rec.runtime.console import quiet_libraries


class Run:
    """The folder of a finished run. Raises `DataError` for a folder that is none."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.report = read_report(self.folder)

    def __repr__(self) -> str:
        return f"Run('{self.folder}': {result_line(self.report)})"

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """Protocol ("full", "popular", "uniform") → metric → value on the test; empty where nothing was held out."""
        return dict(self.report.get("test", {}))

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The records of the training and of its validations, in order: "kind", "step", "epoch" and figures."""
        return read_records(self.folder, "train", "validation")

    def load(self, *, dataset: str | Path | None = None) -> Recommender:
        """The model with its best weights; `dataset` is where its dataset folder was moved. Raises `DataError`."""
        with quiet_libraries("torchrec"):
            return load(self.folder, dataset=dataset)
