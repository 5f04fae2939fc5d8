"""`bert4rec extend RUN DATASET`: add the new items of a grown dataset, or of a file of items, to a trained model."""

import argparse
import logging
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert4rec.checkpoint.run_folder import Trained, find_trained, numbers
from bert4rec.checkpoint.run_settings import on_processes, with_dataset
from bert4rec.config.addresses import is_url
from bert4rec.config.load import Overrides, parse_command_line, take_positional
from bert4rec.config.stored import dataset_folder
from bert4rec.config.tables import expand_user
from bert4rec.runtime.console import hide_warnings, log_to_terminal
from bert4rec.runtime.errors import DataError, SettingsError, pluralize
from bert4rec.runtime.files import cache_folder
from bert4rec.runtime.startup import importing

logger = logging.getLogger(__name__)

ALONE = "--where=train_count = 0"  # recommends items without interactions only
UNCHANGED_SETTINGS = ("training.optimizer", "parallelism.sparse_optimizer", "run.resume", "run.init_from")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the help for the settings."""
    parser.usage = "%(prog)s RUN (DATASET | --items=FILE) [--table.key=value …]"
    parser.description = (
        "Makes a new run for DATASET, which `bert4rec prepare` has made with --data.extends: the items of RUN keep "
        "their ids, and new items are numbered after them. All weights, the state of the optimizers and the number of "
        "their updates are kept exactly. A new item starts near the mean of its known neighbours in the training "
        "histories. Epochs, steps, minutes, schedule and early stopping start at 0. The new run can recommend at once, "
        "and `bert4rec train --resume` continues its training. RUN is not changed. Needs memory for one copy of the "
        "weights and of the optimizers' state, with the new rows. With --items=FILE no interactions are needed: new "
        "items are ranked by their features."
    )
    parser.epilog = (
        "--table.key=value: any setting, as `bert4rec train` takes it, except the model and the optimizers; "
        "training.n_epochs: epochs on the new dataset (default: a tenth of those so far)"
    )
    parser.set_defaults(settings=[])
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="run folder (its best weights) or a checkpoint")
    parser.add_argument(
        "--items", metavar="FILE", default="",
        help="file of new items, with their ids and the features that the dataset has; items that the dataset has are "
        "left as they are. Makes a new dataset, in --data.dataset_dir=FOLDER (default: beside that of the run), whose "
        "histories are links. DATASET: the dataset of the run if it was moved",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Make the new run, and return the exit status 0. Raises `UserError`."""
    log_to_terminal(stream="stderr")
    trained = find_trained(arguments.run_folder)
    if trained.is_package:
        raise DataError(f"{trained.folder}: a model package cannot be extended; name the run that it was exported from")
    if not trained.kind.is_transformer:
        raise DataError(
            f"{trained.folder}: a matrix factorisation has a vector for each user too, and new rows change the users; "
            "train it anew on the grown dataset"
        )
    given, overrides = _parse(arguments.settings, has_items=bool(arguments.items))
    checkpoint, saved = trained.folder, trained.metadata
    hide_warnings()
    with importing():
        from bert4rec.training.extend import extend  # imports torch

    with _with_items(trained, arguments.run_folder, given, arguments.items, overrides) as (grown, about_items):
        folder, dataset, n_epochs, n_alone = extend(trained, arguments.run_folder, with_dataset(grown, overrides))
    n_new = dataset.n_items - saved["n_items"]
    again = on_processes(saved["world_size"], f"--resume={folder}", f"--training.n_epochs={n_epochs}")
    recommend = ["bert4rec", "recommend", str(folder), "--all"]
    about_items = about_items or (
        f"{dataset.folder}: {pluralize(n_new, 'new item')}; {n_new - n_alone:,} start near the known items "
        f"next to them in histories, {n_alone:,} have no known items next to them and start at the mean of all items\n"
    )
    then = f"To train it further, for {pluralize(n_epochs, 'epoch')} of the new dataset:\n  {again}"
    if arguments.items:
        then = f"Only items without interactions, as the new ones:\n  {shlex.join([*recommend, ALONE])}"
    print(
        f"{checkpoint}: {pluralize(saved['n_items'], 'item')}, {pluralize(saved['state']['epochs'], 'epoch')}\n"
        f"{about_items}new run: {folder}, which keeps all weights and optimizer state; "
        f"its epochs, steps and early stopping start at 0\n\n"
        f"It recommends at once:\n  {shlex.join(recommend)}\n{then}"
    )
    return 0


def _parse(settings: list[str], *, has_items: bool) -> tuple[str, Overrides]:
    """Return the dataset that is given, or "", and the other settings."""
    dataset, options = take_positional(settings)
    file, overrides = parse_command_line(options)
    if file is not None:
        raise SettingsError("--config: an extended run has the run's settings; override them by --table.key=value")
    if not dataset and not has_items:
        raise SettingsError(
            "DATASET is missing: after the run, name the folder that was made with --data.extends, or name a file "
            "of new items: --items=FILE"
        )
    for name, typed in overrides.typed.items():
        if name.startswith("model.") or name in UNCHANGED_SETTINGS:
            raise SettingsError(f"{typed}: an extended run keeps the model and the optimizers of the run; remove it")
    return dataset, overrides


@contextmanager
def _with_items(
    trained: Trained, run: Path, dataset: str, path: str, overrides: Overrides
) -> Iterator[tuple[str, str]]:
    """Yield the folder of a new dataset, with the items of the file at `path`, and lines about it.

    They are added to `dataset`, or if it is "" to that of the run. The folder is removed if the block fails. If `path`
    is "", only `dataset` is yielded.
    """
    if not path:
        yield dataset, ""
        return
    from bert4rec.dataset.reader import read_metadata  # imports Arrow
    from bert4rec.prepare.new_items import add_items  # imports Polars

    previous = dataset_folder(dataset) if dataset else trained.dataset
    metadata = read_metadata(previous)
    if not trained.model.get("item_features", True) or "item_features" not in metadata:
        raise DataError(
            f"{run}: its model has no item features, so nothing is known of an item without interactions; prepare the "
            "log with a file of all items (bert4rec prepare LOG --items=FILE), or with features among its own columns "
            "(--data.item_features.COLUMN=category), and train a new model"
        )
    if not dataset and metadata["fingerprint"] != trained.metadata["fingerprint"]:
        raise DataError(
            f"{previous}: is not the dataset that {run} was trained on; name that one: "
            "bert4rec extend RUN DATASET --items=FILE"
        )
    if "data.dataset_dir" not in overrides and previous.is_relative_to(cache_folder()):
        raise SettingsError("name the folder of the new dataset: --data.dataset_dir=FOLDER")
    free = next(f"{previous}{number}" for number in numbers() if not Path(f"{previous}{number}").exists())
    place = expand_user(overrides.pop("data.dataset_dir", free))
    if is_url(place):
        raise SettingsError(f"--data.dataset_dir={place}: must be a folder of this machine, with --items")
    if (folder := Path(place)).exists():
        raise SettingsError(f"--data.dataset_dir={folder}: already exists; choose another folder")
    added = add_items(previous, path, folder)
    known = f"; {pluralize(added.known, 'known item')}, left as in the dataset" if added.known else ""
    try:
        yield (
            str(folder),
            f"{path}: {pluralize(added.new, 'new item')} without interactions, ranked by features{known}\n"
            f"new dataset: {folder}, which is {previous} with the new items\n",
        )
    except BaseException:
        shutil.rmtree(folder)
        raise
