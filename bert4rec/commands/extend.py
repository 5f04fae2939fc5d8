"""`bert4rec extend RUN DATASET`: add the new items of a grown dataset, or of a file of items, to a trained model."""

import argparse
import logging
import math
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.checkpoint.run_folder import (
    CHECKPOINTS,
    COMES_AGAIN,
    CONFIG,
    METADATA_VERSION,
    RECENT_COUNTS,
    Trained,
    find_trained,
    new_folder,
    numbers,
    step_folder,
)
from bert4rec.checkpoint.run_settings import on_processes, with_dataset
from bert4rec.config.addresses import is_url
from bert4rec.config.load import Overrides, load_config, parse_command_line, take_positional
from bert4rec.config.resolve import Facts, resolve
from bert4rec.config.stored import dataset_folder
from bert4rec.config.tables import Config, expand_user
from bert4rec.runtime.console import hide_warnings, log_to_terminal
from bert4rec.runtime.errors import DataError, SettingsError, pluralize
from bert4rec.runtime.files import cache_folder
from bert4rec.runtime.startup import importing

if TYPE_CHECKING:  # imports Arrow
    from bert4rec.dataset.reader import Dataset


logger = logging.getLogger(__name__)

FURTHER = 0.1  # default number of epochs, as a share of the epochs so far
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
        from bert4rec.checkpoint.store import verify
        from bert4rec.runtime.processes import group_of_one

    with group_of_one():
        verify(checkpoint)
        with _with_items(trained, arguments.run_folder, given, arguments.items, overrides) as (grown, about_items):
            config = _config(trained, with_dataset(grown, overrides), checkpoint)
            dataset = _open(config, trained, arguments.run_folder)
            config = _resolved(config, saved, dataset)
            folder = new_folder(Path(config.run.dir), config.run_name)
            try:
                n_alone = _fill(folder, trained, config, dataset)
            except BaseException:
                shutil.rmtree(folder)
                raise
    n_new, n_epochs = dataset.n_items - saved["n_items"], config.training.n_epochs
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


def _config(trained: Trained, overrides: Overrides, checkpoint: Path) -> Config:
    """Return the settings of the run with the `overrides`, for a new run in the same folder of runs."""
    settings = trained.settings | {"run.resume": "", "run.init_from": ""}
    settings["training.n_epochs"] = max(1, math.ceil(FURTHER * trained.metadata["state"]["epochs"]))
    checkpoints = checkpoint.resolve().parent
    if checkpoints.name == CHECKPOINTS:  # else the checkpoint was copied, and only the settings name the folder of runs
        runs, current = checkpoints.parent.parent, Path.cwd()
        settings["run.dir"] = str(runs.relative_to(current) if runs.is_relative_to(current) else runs)
    return load_config(None, Overrides(settings | overrides, overrides.typed))


def _resolved(config: Config, saved: Mapping[str, Any], dataset: "Dataset") -> Config:
    """Return the settings resolved for the device and the world size of the run, unless overridden."""
    from bert4rec.training.build import facts_of_dataset

    settings = config.parallelism
    device = saved["config"]["parallelism"]["device"] if settings.device == "auto" else settings.device
    facts = facts_of_dataset(config, dataset)  # the model is that of the run
    return resolve(config, device, Facts(facts.n_items, n_windows=facts.n_windows), saved["world_size"])


def _open(config: Config, trained: Trained, run: Path) -> "Dataset":
    """Return the new dataset. Raises `DataError` if it does not extend that of the run."""
    from bert4rec.dataset.reader import FIRST_IDS, open_dataset, problem_of, require_kinds

    saved, previous = trained.metadata, trained.dataset
    dataset = open_dataset(
        config.data.folder, preprocessing=config.preprocessing.recipe, with_times=config.model.knows_times
    )
    require_kinds(dataset.folder, dataset.metadata, trained.kinds)
    if dataset.metadata["fingerprint"] == saved["fingerprint"]:
        raise DataError(f"{dataset.folder}: nothing to extend: {run} was trained on this dataset")
    if trained.catalogue is None:
        logger.warning(f"the dataset of {run} is not at {previous}: only the first {FIRST_IDS:,} ids are compared")
    if problem := problem_of(dataset, n_items=saved["n_items"], first_ids=saved["items"], previous=trained.catalogue):
        advice = f"make it with --data.extends={previous}"
        raise DataError(f"{dataset.folder}: does not extend the dataset of {run}: {problem}; {advice}")
    if trained.has_dataset:
        _warn_of_trained_targets(dataset, previous, run)
    if (features := saved.get("features")) and (dataset.features is None or dataset.features.meaning != features):
        advice = f"make it with --data.extends={previous} and --items=FILE"
        raise DataError(f"{dataset.folder}: does not have the item features of {run}; {advice}")
    return dataset


def _warn_of_trained_targets(dataset: "Dataset", previous: Path, run: Path) -> None:
    """Log how many validation targets the run has trained on, if any: no further epoch would look better."""
    import numpy as np

    from bert4rec.dataset.format import VALIDATION
    from bert4rec.dataset.trained import count_trained

    items = np.arange(dataset.n_items, dtype=np.int32)  # known items have the same ids
    counts = count_trained(dataset, previous, items, splits=[VALIDATION])
    if n := counts.get(VALIDATION, {"users": 0})["users"]:
        logger.warning(
            f"{dataset.folder}: {run} has trained on {n:,} of its {counts[VALIDATION]['of']:,} validation targets, so "
            f"that no further epoch looks better than the old weights; prepare it again with --data.extends={previous}"
        )


def _fill(folder: Path, trained: Trained, config: Config, dataset: "Dataset") -> int:
    """Write the new run, and return the number of new items without a known neighbour.

    If the run recommends by recent popularity without a history, so does the new one, by the counts of the new dataset.
    Which items come again is counted in it, too, and the prior, with the same weights.
    """
    from bert4rec.checkpoint.growth import initialize_new_items, read_grown, write_grown
    from bert4rec.dataset.runs import link_catalogue
    from bert4rec.evaluation.seen_items import BY_ITEM
    from bert4rec.models.again import comes_again
    from bert4rec.models.baselines import RECENT_SHARE, recent_counts
    from bert4rec.models.transitions import TrainingHistories
    from bert4rec.runtime.collectives import Partition
    from bert4rec.training.build import choose_prior
    from bert4rec.training.prior import count_prior
    from bert4rec.training.results import write_facts
    from bert4rec.training.state import State

    checkpoint, saved = trained.folder, trained.metadata
    n_known = saved["n_items"]
    tensors = read_grown(checkpoint, dataset.n_items - n_known)
    n_alone = initialize_new_items(
        tensors, dataset.histories, dataset.popularity, n_known=n_known, embed_dim=config.model.embed_dim
    )
    # -1 makes the training validate before the first step, so that only better weights replace these.
    weights = trained.prior_weights
    state = State(updates=saved["state"]["updates"], validated=-1.0, prior=weights, best_prior=weights)
    if weights:  # a training of the new run takes the file as it is
        count_prior(folder, [*dict.fromkeys([*weights, *choose_prior(config, dataset)])], dataset, Partition())
    metadata = {name: value for name, value in saved.items() if name != "plan"} | {
        "facts_version": METADATA_VERSION,
        "config": config.model_dump(mode="json"),
        "fingerprint": dataset.metadata["fingerprint"],
        "n_items": dataset.n_items,
        "items": dataset.first_ids,
        "state": asdict(state),
    }
    (folder / CONFIG).write_text(config.to_toml())
    if trained.run and (trained.run / RECENT_COUNTS).is_file():
        write_facts(folder / RECENT_COUNTS, recent_counts(TrainingHistories(dataset), RECENT_SHARE))
    if config.evaluation.seen_items == BY_ITEM:
        write_facts(folder / COMES_AGAIN, comes_again(TrainingHistories(dataset)))
    write_grown(step_folder(folder / CHECKPOINTS, 0), tensors, metadata)
    link_catalogue(dataset.folder, folder)
    return n_alone
