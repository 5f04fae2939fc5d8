"""Make the versions of a models folder: the first one of a run, each next one of the run that an update has trained."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.models_folder import (
    ABOUT,
    CHAMPION,
    DATASET,
    PACKAGE,
    VERSIONS,
    Version,
    find_version,
    is_models_folder,
    new_version_name,
    write_aliases,
)
from bert4rec.checkpoint.package import USUAL_FORMATS
from bert4rec.checkpoint.run_folder import (
    BEST_LINK,
    CHECKPOINTS,
    CONFIG,
    PICTURES,
    RUN_LOCK,
    Trained,
    find_trained,
    lock,
    step_folder,
)
from bert4rec.dataset.format import METADATA, fingerprint_of
from bert4rec.dataset.reader import open_dataset, read_metadata
from bert4rec.dataset.runs import CATALOGUE
from bert4rec.report.figures import read_report
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.runtime.files import atomic_write, link_or_copy, sync
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source

FIRST = "first"  # decision on a first version, which nothing was compared with
K = 10  # items in the examples of a package


def make_first_version(models: Path, run: Path) -> Version:
    """Make the models folder `models` from a finished run and its dataset, and return its version, the champion.

    Checkpoint, catalogue and dataset are hard links, or copies where links cannot be made; all other files are copies,
    since a later training of the run would change them. The folder is there when it is whole: until then its name is
    `.NAME.new`, which the next call removes. Raises `UserError` if `models` is there, or if the run cannot be updated:
    its model is none that learns from new rows, its dataset is gone or has no times.
    """
    trained, began = _require_run(run), datetime.now(UTC)
    _require_new(models)
    with _unfinished(models) as new:
        _copy_run(trained, new / "run")
        shutil.copyfile(new / "run" / CONFIG, new / CONFIG)
        _copy_dataset(trained, new / DATASET)
        name = new_version_name(new, began)
        about = about_version(new / DATASET, parent=None, decision=FIRST)
        add_version(new, new / "run", name, about)
        write_aliases(new, {CHAMPION: name})
    return find_version(models, name)


def add_version(models: Path, run: Path, name: str, about: Mapping[str, Any]) -> Path:
    """Move the folder of a finished `run` into the versions, with its package and `version.json`, and return it.

    `about` is what `about_version` returns. If this was done before, wholly or in part, only the rest is done. The run
    must be on the same file system. Raises `DataError` if it cannot be exported or written.
    """
    folder = models / VERSIONS / name
    if not run.is_dir() and folder.is_dir():
        return folder
    if not (run / PACKAGE).is_dir():
        for unfinished in run.glob(f"{PACKAGE}.*.tmp"):
            shutil.rmtree(unfinished)
        source = find_source(run)
        export(source, run / PACKAGE, USUAL_FORMATS, k=K, leaves_out_seen=source.leaves_out_seen)
    atomic_write(run / ABOUT, json.dumps({"time": name, **about}, indent=1) + "\n")
    folder.parent.mkdir(exist_ok=True)
    run.rename(folder)
    sync(folder.parent)
    return folder


def about_version(dataset: Path, *, parent: str | None, decision: str) -> dict[str, Any]:
    """Return what `version.json` says of a version that was trained on `dataset` and continues from `parent`."""
    metadata = read_metadata(dataset)
    seen = {key: metadata[key] for key in ("rows", "users", "items")}
    last = metadata["time_span"][1]
    return {"parent": parent, **seen, "last_time": last, "fingerprint": metadata["fingerprint"], "decision": decision}


def link_folder(folder: Path, new: Path) -> None:
    """Make `new` a folder with the same files as `folder`, whose `metadata.json` comes last if it has one."""
    names = [os.path.relpath(Path(place, name), folder) for place, _, names in os.walk(folder) for name in names]
    for name in sorted(names, key=lambda name: (name == METADATA, name)):
        link_or_copy(folder / name, new / name)


def _require_run(run: Path) -> Trained:
    """Return the best weights of a run that can be updated. Raises `DataError` for any other one."""
    trained = find_trained(run)
    if trained.is_package:
        raise DataError(f"{run}: a model package cannot be updated; name the run that it was exported from")
    if not trained.kind.is_transformer:
        raise DataError(
            f"{run}: a matrix factorisation has a vector for each user and does not learn from new rows; train a "
            "transformer, and name its run"
        )
    if trained.run is None or not trained.is_reported:
        raise DataError(f"{run}: expected a run folder, not one of its checkpoints; name the folder of the run")
    read_report(trained.run)
    dataset = trained.dataset
    if not trained.has_dataset:
        is_other = f"is not the dataset that {run} was trained on"
        problem = is_other if fingerprint_of(dataset) else f"the dataset of {run} is not there"
        raise DataError(f"{dataset}: {problem}; put that dataset there, or train a new run")
    if not open_dataset(dataset, verify=False).metadata["has_times"]:
        raise DataError(
            f"{dataset}: has no times of the interactions, by which new rows find their place; prepare the log again "
            "with a column of times (--time=COLUMN), and train a new run"
        )
    return trained


def _require_new(models: Path) -> None:
    if is_models_folder(models):
        raise SettingsError(f"{models}: is a models folder already; choose another name, or remove it")
    if any(models.iterdir()) if models.is_dir() else models.exists():
        raise SettingsError(f"{models}: already exists and is no models folder; choose another name")


@contextmanager
def _unfinished(models: Path) -> Iterator[Path]:
    """Yield an empty folder, locked, that becomes `models` at the end of the block; a failure removes it."""
    folder = models.absolute()
    unfinished = folder.with_name(f".{folder.name}.new")
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{models}: cannot be made: {error.strerror}; choose another folder") from None
    with lock(unfinished):
        try:
            _require_new(models)  # another process may have made it just now
            for path in unfinished.iterdir():  # what a killed process has left
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != RUN_LOCK:
                    path.unlink()
            yield unfinished
            unfinished.rename(folder)
            sync(folder.parent)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise DataError(f"{error.filename or models}: cannot be written: {error.strerror or error}") from None
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def _copy_run(trained: Trained, folder: Path) -> None:
    """Give `folder` the files of the run, with its best checkpoint alone, and without evaluations and exports."""
    run, checkpoint = trained.run, trained.folder
    assert run is not None, "refused before"
    shutil.copytree(run, folder, ignore=lambda _, names: [name for name in names if not _is_copied(run, name)])
    if (run / PICTURES).is_dir():
        shutil.copytree(run / PICTURES, folder / PICTURES)
    place = step_folder(folder / CHECKPOINTS, trained.metadata["state"]["step"])
    link_folder(checkpoint, place)  # a copy of a run may have the best checkpoint as a folder instead of a link
    (folder / CHECKPOINTS / BEST_LINK).symlink_to(place.name)
    link_folder(run / CATALOGUE, folder / CATALOGUE)


def _is_copied(run: Path, name: str) -> bool:
    return (run / name).is_file() and name != RUN_LOCK


def _copy_dataset(trained: Trained, folder: Path) -> None:
    """Give `folder` the files of the dataset. Raises `DataError` if it is replaced meanwhile."""
    link_folder(trained.dataset, folder)
    if not trained.is_of(folder):
        raise DataError(f"{trained.dataset}: was replaced meanwhile by another dataset; type the same again")
    open_dataset(folder, verify=False)
