"""The folder of a run: a new one for each, one job at a time in it, and the checkpoints that it holds.

Nothing here imports torch: which run is to be resumed is known before that.
"""

import itertools
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli

from bert4rec.config.abilities import is_trained
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.runtime.files import locked

LOCK = ".lock"
CONFIG = "config.toml"  # the resolved settings
PLAN = "plan.txt"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
EXAMPLES = "examples.json"
PICTURE, PAGE, HTML_PAGE, REPORT = "learning_curve.png", "report.md", "report.html", "report.json"
REPORTS = (PICTURE, EXAMPLES, HTML_PAGE, PAGE, REPORT)  # the last: the run is finished
PICTURES = "pictures"  # folder of those of the page
CHECKPOINTS = "checkpoints"
METADATA = "facts.json"  # in a checkpoint: all that is no tensor
METADATA_VERSION = 3  # of what that says of the run and its state
BEST = "best"  # in that: a link to the best of them
STEP = "step-"  # how the names of checkpoints begin; the number of the step follows
UNFINISHED = ".tmp"  # how the name of a checkpoint being written ends
REPLACED = ".old"  # and that of one of which there is a newer version


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
    """Yield endings for names that are taken: nothing, -2, -3, …"""
    return ("" if number == 1 else f"-{number}" for number in itertools.count(1))


def runs(parent: Path, name: str) -> list[Path]:
    """Return the folders of the runs of that name, in order of their numbers."""
    form = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    matches = [match for path in parent.glob("*") if (match := form.fullmatch(path.name))]
    return [parent / match[0] for match in sorted(matches, key=lambda match: int(match[1] or 1))]


def found(folder: Path) -> list[Path]:
    """Return the finished checkpoints in `folder`, the earliest first."""
    paths = (path for path in folder.glob(f"{STEP}*") if path.suffix not in (UNFINISHED, REPLACED))
    return sorted(path for path in paths if path.is_dir())


def step_folder(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step` in `folder`."""
    return folder / f"{STEP}{step:09d}"


def checkpoint_of(path: Path) -> Path:
    """Return the checkpoint that `path` is, or the best one of the run that it is, or else its last one.

    Raises `DataError` if it is neither.
    """
    present = [path, path / CHECKPOINTS / BEST, *found(path / CHECKPOINTS)[::-1]]
    folder = next((folder for folder in present if (folder / METADATA).is_file()), None)
    if folder is None and (kind := untrained_kind(path)):
        raise DataError(
            f'{path}: a run of model.kind = "{kind}", which is not trained: there are no weights; name the run of a '
            "trained model"
        )
    if folder is None:
        raise DataError(f"{path}: neither a run folder with a checkpoint, nor a checkpoint, nor a model package")
    return folder


def untrained_kind(run: Path) -> str:
    """Return the kind of model of a run without training; "" for any other folder."""
    try:
        kind = tomli.loads((run / CONFIG).read_text(encoding="utf-8"))["model"]["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "" if is_trained(kind) else str(kind)


def newest_run(parent: Path, name: str, *, is_finished: bool) -> Path | None:
    """Return the newest run of that name with a checkpoint, with or without a report."""
    with_checkpoint = (run for run in reversed(runs(parent, name)) if found(run / CHECKPOINTS))
    return next((run for run in with_checkpoint if (run / REPORT).exists() == is_finished), None)


def named_run(resume: str) -> tuple[Path, Path | None]:
    """Return the run that a path names, and the checkpoint if it names one. Raises `SettingsError`."""
    path = Path(resume)
    if found(path / CHECKPOINTS):
        return path, None
    path = path.resolve()  # of the link to the best, perhaps
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
    """Lock `folder` against other jobs, on this host, and on others if the file system supports that.

    Raises `SettingsError` if another job has it. The lock ends with the process.
    """
    try:
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be written to: {error.strerror}") from None
    with file:
        if not locked(file):
            file.seek(0)
            holder = file.read() or "an unknown process"
            raise SettingsError(f"{folder}: another job is at work there ({holder}); stop it, or wait for it")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
