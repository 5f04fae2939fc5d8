"""The records of a run: metrics.jsonl, and the trackers TensorBoard, MLflow, and Weights & Biases.

A tracker that fails does not stop a training.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from bert4rec.checkpoint.run_folder import METRICS_FILE
from bert4rec.config.load import flat
from bert4rec.runtime.errors import SettingsError

logger = logging.getLogger(__name__)

EXTRAS = ("mlflow", "wandb")  # optional packages
NAME = "bert4rec"  # of the experiment or project, unless MLFLOW_EXPERIMENT_NAME or WANDB_PROJECT is set
MLFLOW_BATCH = 100  # parameters that MLflow takes in one call
MLFLOW_FORBIDDEN = re.compile(r"[^\w\-. :/]")  # characters in MLflow's names
MLFLOW_ENVIRONMENT = {
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # MLflow's own value would block a training for minutes if the server is down
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
WANDB_ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}

Numbers = Mapping[str, float]
"""Name, with slashes between its parts → value."""

Tracker: TypeAlias = "TensorBoard | MLflow | WeightsAndBiases"
"""A tracker of one run: `add` numbers by step, `finish` with the results and files, and `close`, always."""


def require_packages(names: Sequence[str]) -> None:
    """Raise `SettingsError` for a tracker whose package is not installed: before a training, not after it."""
    for name in EXTRAS:
        if name in names and find_spec(name) is None:
            raise SettingsError(
                f'run.trackers: {name} is not installed; type pip install "bert4rec-torchrec[{name}]", or remove it '
                "from run.trackers"
            )


def open_trackers(
    names: Sequence[str], folder: Path, settings: Mapping[str, Mapping[str, Any]], *, purge_from: int
) -> dict[str, Callable[[], Tracker]]:
    """Return a factory for each tracker of `names`, for the run in `folder` with `settings` (table → key → value)."""
    factories: dict[str, Callable[[], Tracker]] = {
        "tensorboard": partial(TensorBoard, folder, flat(settings), purge_from=purge_from),
        "mlflow": partial(MLflow, folder, flat(settings)),
        "wandb": partial(WeightsAndBiases, folder, flat(settings)),
    }
    return {name: factories[name] for name in names}


class TensorBoard:
    """Write event files to the run folder, with the `settings` (name → value) and the results for the tab HPARAMS.

    A run that is resumed after step `purge_from` repeats later steps; TensorBoard shows only the last ones.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, purge_from: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard reads files in the order of their names, which start with the time in seconds.
        while any(folder.glob(f"events.out.tfevents.{int(time.time())}.*")):
            time.sleep(0.01)
        self._settings = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in settings.items()
        }
        self._events = SummaryWriter(str(folder), purge_step=purge_from + 1 if purge_from else None)

    def add(self, step: int, numbers: Numbers) -> None:
        """Write scalars."""
        for name, number in numbers.items():
            self._events.add_scalar(name, number, step)

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """Write the settings and the results; the files are in the folder already."""
        self._events.add_hparams(self._settings, dict(results), run_name=".")

    def close(self, *, is_finished: bool) -> None:
        """Write all buffered data."""
        self._events.close()


class MLflow:
    """A run named as `folder`, or one for each part of a resumed run; the `settings` are its parameters.

    It is stored next to the run folders, unless MLFLOW_TRACKING_URI is set.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        for name, value in MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        parent, address = folder.absolute().parent, os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(address or f"sqlite:///{parent / 'mlflow.db'}")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or NAME
        if experiment := self._client.get_experiment_by_name(name):
            experiment_id = experiment.experiment_id
        else:
            files = None if address else (parent / "mlflow-files").as_uri()
            experiment_id = self._client.create_experiment(name, artifact_location=files)
        tags = {"run_folder": str(folder.absolute())}
        self._id = self._client.create_run(str(experiment_id), run_name=folder.name, tags=tags).info.run_id
        params = [Param(name, str(value)) for name, value in settings.items()]
        for first in range(0, len(params), MLFLOW_BATCH):
            self._client.log_batch(self._id, params=params[first : first + MLFLOW_BATCH])

    def add(self, step: int, numbers: Numbers) -> None:
        """Write metrics; a character that MLflow forbids is replaced: `HR_at_10`."""
        from mlflow.entities import Metric

        names = {name: MLFLOW_FORBIDDEN.sub("_", name.replace("@", "_at_")) for name in numbers}
        now = int(1000 * time.time())
        metrics = [Metric(names[name], number, now, step) for name, number in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """Write metrics without a step, and the files."""
        self.add(0, results)
        for path in files:
            self._client.log_artifact(self._id, str(path))

    def close(self, *, is_finished: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FINISHED" if is_finished else "KILLED")


class WeightsAndBiases:
    """A run named as `folder`, in its subfolder `wandb`, with the `settings` (name → value) as its configuration.

    Offline, for `wandb sync`, unless WANDB_MODE is set.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        for name, value in WANDB_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or NAME,
            name=folder.name,
            dir=str(folder),
            config=dict(settings),
            mode=os.environ.get("WANDB_MODE") or "offline",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )

    def add(self, step: int, numbers: Numbers) -> None:
        """Write the numbers of a step; training and validation may share one."""
        self._run.log(dict(numbers), step=step)

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """Write the results as the run's summary, and the files."""
        self._run.summary.update(dict(results))
        for path in files:
            self._run.save(str(path), base_path=str(path.parent), policy="now")

    def close(self, *, is_finished: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if is_finished else 1)


class MetricsLog:
    """Append records to `metrics.jsonl`, and send their numbers to trackers; `factories` (name → factory) open them.

    A tracker gets no further calls after its first failure, which is logged as one warning.
    """

    def __init__(self, folder: Path, factories: Mapping[str, Callable[[], Tracker]] | None = None) -> None:
        self._is_full = False
        self._file = (folder / METRICS_FILE).open("ab+")
        _cut_torn_line(self._file)
        self._trackers: dict[str, Tracker] = {}
        for name, factory in (factories or {}).items():
            with self._unless_failing(name):
                self._trackers[name] = factory()

    def add(self, kind: str, step: int, **values: Any) -> None:
        """Write a record: its kind ("train", "validation"), the step, and numbers or mappings of numbers."""
        self.add_note(kind, step, **values)
        self._notify(lambda tracker: tracker.add(step, flat_numbers({kind: values})))

    def add_note(self, kind: str, step: int, **values: Any) -> None:
        """Write a record that is no measurement, such as "resume", without sending it to trackers."""
        with self._unless_full():
            self._file.write((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())
            self._file.flush()  # if the disk is full, the data stay in the buffer until the next write

    def finish(self, results: Numbers, files: Sequence[Path]) -> None:
        """Send the results of the run, and the files that show them, to the trackers."""
        self._notify(lambda tracker: tracker.finish(results, files))

    def close(self, *, is_finished: bool = True) -> None:
        """Write all buffered data; `is_finished`: whether the run is complete."""
        with self._unless_full():
            self._file.close()
        self._notify(lambda tracker: tracker.close(is_finished=is_finished))
        self._trackers = {}

    def _notify(self, call: Callable[[Tracker], None]) -> None:
        """Call each tracker that has not failed yet."""
        for name, tracker in [*self._trackers.items()]:
            with self._unless_failing(name):
                call(tracker)

    @contextmanager
    def _unless_failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a third-party package may raise anything
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            logger.warning(f"{name} fails: {reason}; the training continues without {name}")
            self._trackers.pop(name, None)

    @contextmanager
    def _unless_full(self) -> Iterator[None]:
        """Let the training continue if its log cannot be written, and log this once."""
        try:
            yield
        except OSError as error:
            if not self._is_full:
                logger.info(f"{self._file.name}: {error.strerror}; the training continues, its log may have gaps")
            self._is_full = True


def flat_numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of nested mappings by path.

    >>> flat_numbers({"train": {"loss": 0.5, "full": {"HR@1": 1.0}}})
    {'train/loss': 0.5, 'train/full/HR@1': 1.0}
    """
    numbers: dict[str, float] = {}
    for name, value in values.items():
        numbers |= flat_numbers(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return numbers


def _cut_torn_line(file: BinaryIO) -> None:
    """Remove an incomplete last line, which a killed process may leave."""
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)


def read_records(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the records of some kinds in order, [] without a log; not those of steps that a resumed run repeated."""
    path, records = folder / METRICS_FILE, list[dict[str, Any]]()
    for line in path.read_text().splitlines() if path.exists() else ():
        record = json.loads(line)
        if record["kind"] == "resume":
            records = [earlier for earlier in records if earlier["step"] <= record["step"]]
        records.append(record)
    return [record for record in records if record["kind"] in kinds]
