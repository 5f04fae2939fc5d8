"""Name and find run folders, checkpoints and model packages on the disk, without importing torch."""

import itertools
import json
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli

from bert4rec.checkpoint.models_folder import DATASET, models_folder_of, run_at
from bert4rec.checkpoint.package import PRIOR, is_package, read_settings
from bert4rec.config.kinds import KINDS, Kind
from bert4rec.config.load import flat
from bert4rec.config.recognition import what_is
from bert4rec.config.stored import cached
from bert4rec.config.tables import Data
from bert4rec.dataset.format import METADATA, extends, fingerprint_of, kinds_of
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.runtime import files
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.runtime.files import sha256, shortened, try_lock
from bert4rec.runtime.storage import is_stored

RUN_LOCK = ".lock"
CONFIG = "config.toml"  # the resolved settings
PLAN = "plan.txt"
ENVIRONMENT = "environment.json"
METRICS_FILE = "metrics.jsonl"
EXAMPLES = "examples.json"
RECENT_COUNTS = "recent_counts.npy"  # only if users without a history get the recently most popular items
COMES_AGAIN = "comes_again.npy"  # only with evaluation.seen_items = "by_item"
PICTURE, PAGE, HTML_PAGE, REPORT = "learning_curve.png", "report.md", "report.html", "report.json"
REPORTS = (PICTURE, EXAMPLES, HTML_PAGE, PAGE, REPORT)  # the last one marks the run as finished
PICTURES = "pictures"  # folder of the page's pictures
CHECKPOINTS = "checkpoints"
FACTS_FILE = "facts.json"  # file in a checkpoint for everything but tensors
METADATA_VERSION = 5  # format version of that file
BEST_LINK = "best"  # link in `CHECKPOINTS` to the best checkpoint
STEP_PREFIX = "step-"  # prefix of a checkpoint's name; the number of the step follows
UNFINISHED = ".tmp"  # suffix of a checkpoint that is being written
REPLACED = ".old"  # suffix of a checkpoint that a newer version replaces

logger = logging.getLogger(__name__)


def new_folder(parent: Path, name: str) -> Path:
    """Make the folder `parent`/`name`, or `name`-2, -3, … if there is one. Raises `SettingsError`."""
    for number in numbers():
        folder = parent / f"{name}{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise SettingsError(f"run.dir: cannot make {folder}: {error.strerror}; choose another folder") from None
        return folder
    raise AssertionError


def numbers() -> Iterator[str]:
    """Yield suffixes that make a name unique: "", -2, -3, …"""
    return ("" if number == 1 else f"-{number}" for number in itertools.count(1))


def runs(parent: Path, name: str) -> list[Path]:
    """Return the folders of the runs of that name, in the order of their numbers."""
    form = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    matches = [match for path in parent.glob("*") if (match := form.fullmatch(path.name))]
    return [parent / match[0] for match in sorted(matches, key=lambda match: int(match[1] or 1))]


def found(folder: Path) -> list[Path]:
    """Return the finished checkpoints in `folder`, the earliest first."""
    paths = (path for path in folder.glob(f"{STEP_PREFIX}*") if path.suffix not in (UNFINISHED, REPLACED))
    return sorted(path for path in paths if path.is_dir())


def step_folder(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step` in `folder`."""
    return folder / f"{STEP_PREFIX}{step:09d}"


def checkpoint_of(path: Path) -> Path:
    """Return `path` if it is a checkpoint, or the best checkpoint of the run `path`, or else its last one.

    A models folder means the run of its champion. Raises `DataError` if it is neither a checkpoint nor a run with one.
    """
    path = run_at(path)
    present = [path, path / CHECKPOINTS / BEST_LINK, *found(path / CHECKPOINTS)[::-1]]
    folder = next((folder for folder in present if (folder / FACTS_FILE).is_file()), None)
    if folder is None and (kind := untrained_kind(path)):
        raise _without_weights(path, kind)
    if folder is None:
        raise DataError(f"{path}: expected a run with a checkpoint, a checkpoint or a model package; {what_is(path)}")
    return folder


def _without_weights(path: Path, kind: str) -> DataError:
    return DataError(
        f'{path}: model.kind = "{kind}" only counts and has no weights; train a transformer, whose prior has such '
        "counts, and name its run"
    )


def starting_weights(path: Path) -> Path | None:
    """Return the best checkpoint of the run `path`, or `path` itself if it is a checkpoint; None for anything else.

    A models folder means the run of its champion. Raises `DataError` if its aliases cannot be read.
    """
    path = run_at(path)
    return next((folder for folder in (path / CHECKPOINTS / BEST_LINK, path) if (folder / FACTS_FILE).is_file()), None)


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the metadata of a checkpoint. Raises `DataError` if it is damaged or of another format version."""
    try:
        metadata: dict[str, Any] = json.loads((checkpoint / FACTS_FILE).read_text())
        version = metadata["facts_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{checkpoint}: this checkpoint is damaged: {FACTS_FILE} cannot be read") from None
    if version != METADATA_VERSION:
        raise DataError(
            f"{checkpoint}: another version of this program wrote this checkpoint (format {version}, this program "
            f"reads {METADATA_VERSION}); use that version"
        )
    return metadata


def untrained_kind(run: Path) -> str:
    """Return the model kind of a run whose model is not trained; "" for any other folder."""
    try:
        kind = KINDS[tomli.loads((run / CONFIG).read_text(encoding="utf-8"))["model"]["kind"]]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "" if kind.is_trained else kind.name


def newest_run(parent: Path, name: str, *, is_finished: bool) -> Path | None:
    """Return the newest run of that name with a checkpoint, either finished or not; None if there is none."""
    with_checkpoint = (run for run in reversed(runs(parent, name)) if found(run / CHECKPOINTS))
    return next((run for run in with_checkpoint if (run / REPORT).exists() == is_finished), None)


def named_run(resume: str) -> tuple[Path, Path | None]:
    """Return the run that the path `resume` names, and the checkpoint if it names one. Raises `SettingsError`."""
    run, checkpoint = _named_run(resume)
    if models_folder_of(run):
        advice = f"start a new run from its weights: --run.init_from={run}"
        raise SettingsError(f'run.resume = "{resume}": a version of a model never changes; {advice}')
    return run, checkpoint


def _named_run(resume: str) -> tuple[Path, Path | None]:
    path = run_at(Path(resume))
    if found(path / CHECKPOINTS):
        return path, None
    path = path.resolve()  # it may be the link to the best checkpoint
    if path.name == CHECKPOINTS and found(path):
        return path.parent, None
    if path.parent.name == CHECKPOINTS and path in found(path.parent):
        return path.parent.parent, path
    if kind := untrained_kind(path):
        raise SettingsError(
            f'run.resume = "{resume}": model.kind = "{kind}" is not trained: there is nothing to resume'
        )
    problem = "has no checkpoint" if path.is_dir() else "is no folder" if path.exists() else "is not there"
    raise SettingsError(
        f'run.resume = "{resume}": {problem}; name a run folder, one of its {CHECKPOINTS}/step-…, or auto'
    )


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock `folder` against jobs on this host, and on all hosts if the file system supports that.

    Raises `SettingsError` if another job holds the lock. The lock ends with the process.
    """
    try:
        file = (folder / RUN_LOCK).open("a+")
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be written to: {error.strerror}") from None
    with file:
        if not try_lock(file):
            file.seek(0)
            holder = file.read() or "an unknown process"
            raise SettingsError(f"{folder}: another job ({holder}) uses this folder; stop that job, or wait for it")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


@dataclass(frozen=True)
class Trained:
    """The `folder` of trained weights, a checkpoint or a model package, its `metadata` and its `run`.

    A run whose model only counts is its own folder. `run` is None if the folder does not belong to a run.
    """

    folder: Path
    metadata: Mapping[str, Any]
    run: Path | None
    is_package: bool = False

    @property
    def n_items(self) -> int:
        """Return the number of items that the model knows."""
        return int(self.metadata["n_items"])

    @property
    def kinds(self) -> Sequence[str]:
        """Return the kinds of events that the model reads, by number; () for none."""
        return () if self.kind.learns_pairs else tuple(self.metadata.get("events", ()))

    @property
    def settings(self) -> dict[str, Any]:
        """Return all settings of the training, "table.key" → value."""
        return flat(self.metadata["config"])

    @property
    def model(self) -> dict[str, Any]:
        """Return the settings of the model."""
        return self.metadata["config"]["model"]

    @property
    def kind(self) -> Kind:
        """Return the kind of the model. Raises `DataError` for a kind that this version does not have."""
        if (kind := KINDS.get(self.model["kind"])) is None:
            valid = f"valid in this version: {', '.join(KINDS)}"
            raise DataError(f'{self.folder}: model.kind = "{self.model["kind"]}" is not known; {valid}')
        return kind

    @property
    def prior_weights(self) -> dict[str, list[float]]:
        """Return the weights of the sources of the prior that is added to the scores; {} for none."""
        return dict((self.metadata if self.is_package else self.metadata["state"]).get("prior", {}))

    @property
    def prior(self) -> Path:
        """Return the file of the prior. Raises `DataError` if the checkpoint has weights of it, but no run."""
        folder = self.folder if self.is_package else self.run
        if folder is None or not (folder / PRIOR).is_file():
            advice = "copy the whole run" if folder else "put the checkpoint back into its run, and name the run"
            raise DataError(f"{folder or self.folder}: its scores need {PRIOR}, which is missing; {advice}")
        return folder / PRIOR

    @cached_property
    def dataset(self) -> Path:
        """Return the dataset folder of the settings, relative to the current folder or to where the run was started.

        A version of a models folder has the dataset there, which grows. A dataset in object storage that cannot be
        fetched is no error: its folder is missing.
        """
        if self.run is not None and (models := models_folder_of(self.run)):
            return models / DATASET
        settings = self.metadata["config"]
        data, runs = Data.model_validate(settings["data"]), Path(settings["run"]["dir"])
        if is_stored(data.place):
            return self._stored_dataset(data)
        folder = data.folder
        if self.run is None or runs.is_absolute() or ".." in runs.parts or (folder / METADATA).is_file():
            return folder
        parents = self.run.resolve().parents
        started = parents[len(runs.parts)] if len(runs.parts) < len(parents) else Path()
        return started / folder if (started / folder / METADATA).is_file() else folder

    def _stored_dataset(self, data: Data) -> Path:
        folder = cached(self.metadata["fingerprint"])
        if not self.is_of(folder):
            try:
                return data.folder
            except DataError as error:
                logger.warning(str(error))
        return folder

    @cached_property
    def catalogue(self) -> Path | None:
        """Return the folder with the table of the model's items: the run's own links, or else the dataset.

        None if neither is there: then the ids of a few items are known.
        """
        from bert4rec.dataset.runs import CATALOGUE  # imports Arrow

        if self.run and self.is_of(self.run / CATALOGUE):
            return self.run / CATALOGUE
        return self.dataset if self.has_dataset else None

    @cached_property
    def has_dataset(self) -> bool:
        """Return whether the dataset that the model was trained on is where its run names it."""
        return not self.is_package and self.is_of(self.dataset)

    def is_of(self, folder: Path) -> bool:
        """Return whether `folder` is the dataset that the model was trained on, or has links to it."""
        return fingerprint_of(folder) == self.metadata["fingerprint"]

    def has_users_in(self, folder: Path) -> bool:
        """Return whether histories can be read from `folder`: the model's dataset, or any that extends it.

        Numbers of users and items are the same there. New items, which the model does not know, have higher ones.
        """
        return extends(folder, self.metadata["fingerprint"])

    @property
    def checksum(self) -> str:
        """Return the checksum of the manifest, which holds the checksums of all files of the folder."""
        return sha256(self.folder / files.MANIFEST)[:12]

    @property
    def is_reported(self) -> bool:
        """Return whether the run's report is about these weights, the run's best ones."""
        if self.run is None:
            return False
        return not self.kind.is_trained or self.folder.resolve() == checkpoint_of(self.run).resolve()


def find_trained(path: Path) -> Trained:
    """Return the weights at `path`: of a run the best ones, of a models folder those of its champion.

    Reads no tensor. Raises `DataError`.
    """
    if is_package(path):
        trained = Trained(path, read_settings(path), None, is_package=True)
        if not trained.kind.is_trained:
            raise _without_weights(path, trained.kind.name)
        return trained
    folder = checkpoint_of(path).resolve()  # it may be the link to the best checkpoint
    metadata = read_metadata(folder)
    if not (folder / files.MANIFEST).is_file():
        raise DataError(f"{folder}: this checkpoint is damaged: {files.MANIFEST} is missing")
    run = folder.parent.parent
    has_run = folder.parent.name == CHECKPOINTS and (run / CONFIG).is_file()
    return Trained(shortened(folder), metadata, shortened(run) if has_run else None)


def find_counted(run: Path) -> Trained:
    """Return a run whose model only counts, with what a checkpoint says of its own. Raises `DataError`."""
    from bert4rec.dataset.reader import read_metadata as read_about  # imports Arrow
    from bert4rec.dataset.runs import CATALOGUE

    about, config = read_about(run / CATALOGUE), tomli.loads((run / CONFIG).read_text(encoding="utf-8"))
    kinds = kinds_of(about)
    metadata = {
        "config": config, "fingerprint": about["fingerprint"], "n_items": about["items"], "state": {},
        "events": kinds if HiddenEvents.of(config["preprocessing"], kinds) else (),  # for what is hidden alone
    }  # fmt: skip
    return Trained(run, metadata, run)
