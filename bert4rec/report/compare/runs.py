"""What a finished run has left behind, as far as it can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from bert4rec.checkpoint.run_folder import CONFIG, METRICS, REPORT
from bert4rec.config.load import flat
from bert4rec.report.log import read_records
from bert4rec.report.reading import read_report
from bert4rec.runtime.errors import DataError


@dataclass(frozen=True)
class Run:
    """The `folder` of a run or of an evaluation, its report, and the settings by "table.key", {} where none are there.

    `curve`: the epochs and what was measured on validation after each, by metric.
    """

    folder: Path
    report: Mapping[str, Any]
    settings: Mapping[str, Any]
    curve: list[tuple[float, Mapping[str, float]]]

    @property
    def fingerprint(self) -> str:
        """Of the dataset."""
        return str(self.report["dataset"]["fingerprint"])

    @property
    def seed(self) -> Any:
        """Of the training."""
        return self.settings.get("training.seed")


def read_run(folder: Path) -> Run:
    """The run in `folder`, or an evaluation there, whose settings are those of the run around it. Raises `DataError`.

    Settings are read as they stand, whichever version has written them.
    """
    report = read_report(folder)
    if "fingerprint" not in report["dataset"]:
        raise DataError(f"{folder / REPORT}: does not name its dataset, so that it cannot be compared")
    return Run(folder, report, _settings(folder), _curve(folder))


def _settings(folder: Path) -> dict[str, Any]:
    path = next((path for path in (folder / CONFIG, folder.parent / CONFIG) if path.is_file()), None)
    if path is None:
        return {}
    try:
        return flat(tomli.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _curve(folder: Path) -> list[tuple[float, Mapping[str, float]]]:
    if not (folder / METRICS).is_file():
        return []
    try:
        records = read_records(folder, "validation")
        return [(float(record["epoch"]), record["full"]) for record in records if "full" in record]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / METRICS}: cannot be read: {error}") from None
