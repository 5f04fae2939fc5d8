"""MLflow: one run of its own for each run folder, or for each part of a run that is resumed."""

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert4rec.report.trackers.tracker import Numbers

STORE, FILES = "mlflow.db", "mlflow-files"  # beside the run folders, where MLFLOW_TRACKING_URI names no other place
EXPERIMENT = "bert4rec"  # where MLFLOW_EXPERIMENT_NAME names no other
AT_ONCE = 100  # parameters that MLflow takes in one call
FORBIDDEN = re.compile(r"[^\w\-. :/]")  # in MLflow's names
QUIET = {
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # a server that is gone would hold the training up for many minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}


class MLflow:
    """A run named as `folder`, with the `settings` (name → value) as its parameters."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        place = folder.absolute().parent
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place / STORE}")
        tags = {"run_folder": str(folder.absolute())}
        run = self._client.create_run(self._experiment(place), run_name=folder.name, tags=tags)
        self._id = run.info.run_id
        params = [Param(name, str(value)) for name, value in settings.items()]
        for first in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._id, params=params[first : first + AT_ONCE])

    def _experiment(self, place: Path) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        if found := self._client.get_experiment_by_name(name):
            return str(found.experiment_id)
        is_local = not os.environ.get("MLFLOW_TRACKING_URI")
        location = (place / FILES).as_uri() if is_local else None
        return str(self._client.create_experiment(name, artifact_location=location))

    def add(self, step: int, numbers: Numbers) -> None:
        """Metrics; where MLflow allows a character not, its name in place of it: `HR_at_10`."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_name(name), number, now, step) for name, number in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """Metrics without a step, and the files."""
        self.add(0, results)
        for path in files:
            self._client.log_artifact(self._id, str(path))

    def close(self, *, is_finished: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FINISHED" if is_finished else "KILLED")


def _name(name: str) -> str:
    return FORBIDDEN.sub("_", name.replace("@", "_at_"))
