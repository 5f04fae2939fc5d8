"""The trackers of a run, by the names that run.trackers has for them."""

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bert4rec.report.trackers.mlflow import MLflow
from bert4rec.report.trackers.tensorboard import TensorBoard
from bert4rec.report.trackers.tracker import Guarded
from bert4rec.report.trackers.wandb import WeightsAndBiases
from bert4rec.runtime.errors import SettingsError

EXTRAS = ("mlflow", "wandb")  # packages that are installed only where they are wanted


def require_packages(names: Sequence[str]) -> None:
    """Raise `SettingsError` for a tracker whose package is not installed: rather now than after a training."""
    for name in EXTRAS:
        if name in names and find_spec(name) is None:
            raise SettingsError(
                f"run.trackers: {name} is not installed; pip install -r requirements-{name}.txt (of an installed "
                f'package: pip install "bert4rec-torchrec[{name}]"), or leave it out of run.trackers'
            )


def open_trackers(
    names: Sequence[str], folder: Path, settings: Mapping[str, Mapping[str, Any]], *, purge_from: int
) -> list[Guarded]:
    """Those of `names`, for the run in `folder` with its `settings` (table → key → value), from a step on."""
    flat = {f"{table}.{key}": value for table, values in settings.items() for key, value in values.items()}
    makers = {
        "tensorboard": partial(TensorBoard, folder, flat, purge_from=purge_from),
        "mlflow": partial(MLflow, folder, flat),
        "wandb": partial(WeightsAndBiases, folder, flat),
    }
    return [Guarded(name, makers[name]) for name in names]
