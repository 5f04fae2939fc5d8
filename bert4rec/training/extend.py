"""Make a run for a grown dataset from a trained one: it has new items, and keeps all that was learnt."""

import logging
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert4rec.checkpoint.growth import initialize_new_items, read_grown, write_grown
from bert4rec.checkpoint.models_folder import models_folder_of
from bert4rec.checkpoint.run_folder import (
    CHECKPOINTS,
    COMES_AGAIN,
    CONFIG,
    METADATA_VERSION,
    RECENT_COUNTS,
    Trained,
    new_folder,
    step_folder,
)
from bert4rec.checkpoint.store import verify
from bert4rec.config.load import Overrides, load_config
from bert4rec.config.resolve import Facts, resolve
from bert4rec.config.tables import Config
from bert4rec.dataset.format import VALIDATION
from bert4rec.dataset.reader import FIRST_IDS, Dataset, open_dataset, problem_of, require_kinds
from bert4rec.dataset.runs import link_catalogue
from bert4rec.dataset.trained import count_trained
from bert4rec.evaluation.seen_items import BY_ITEM
from bert4rec.models.again import comes_again
from bert4rec.models.baselines import RECENT_SHARE, recent_counts
from bert4rec.models.transitions import TrainingHistories
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.processes import group_of_one
from bert4rec.training.build import choose_prior, facts_of_dataset
from bert4rec.training.prior import count_prior
from bert4rec.training.results import write_facts
from bert4rec.training.state import State

FURTHER = 0.1  # default number of epochs, as a share of the epochs so far

logger = logging.getLogger(__name__)


class Extended(NamedTuple):
    """The `folder` of a new run, its `dataset` and its number of epochs.

    `n_alone`: how many of its new items have no known items beside them in histories.
    """

    folder: Path
    dataset: Dataset
    n_epochs: int
    n_alone: int


def extend(trained: Trained, run: Path, overrides: Overrides, *, may_keep_old: bool = True) -> Extended:
    """Return a new run for the grown dataset that `overrides` name, with all that the `run` has `trained`.

    When it is trained, it keeps these weights if no validation is better, or if it may not, those of its own best one.
    Raises `DataError` if the dataset does not extend that of the run, or if its checkpoint is damaged; then no folder
    is left.
    """
    with group_of_one():
        verify(trained.folder)
        config = _config(trained, overrides, trained.folder)
        dataset = _open(config, trained, run)
        config = _resolved(config, trained.metadata, dataset)
        folder = new_folder(Path(config.run.dir), config.run_name)
        try:
            n_alone = _fill(folder, trained, config, dataset, may_keep_old=may_keep_old)
        except BaseException:
            shutil.rmtree(folder)
            raise
    return Extended(folder, dataset, config.training.n_epochs, n_alone)


def _config(trained: Trained, overrides: Overrides, checkpoint: Path) -> Config:
    """Return the settings of the run with the `overrides`, for a new run in the same folder of runs."""
    settings = trained.settings | {"run.resume": "", "run.init_from": ""}
    settings["training.n_epochs"] = max(1, math.ceil(FURTHER * trained.metadata["state"]["epochs"]))
    checkpoints = checkpoint.resolve().parent
    if checkpoints.name == CHECKPOINTS and models_folder_of(checkpoints.parent) is None:
        # else the checkpoint was copied, or is of a version, and only the settings name the folder of runs
        runs, current = checkpoints.parent.parent, Path.cwd()
        settings["run.dir"] = str(runs.relative_to(current) if runs.is_relative_to(current) else runs)
    return load_config(None, Overrides(settings | overrides, overrides.typed))


def _resolved(config: Config, saved: Mapping[str, Any], dataset: Dataset) -> Config:
    """Return the settings resolved for the device and the world size of the run, unless overridden."""
    settings = config.parallelism
    device = saved["config"]["parallelism"]["device"] if settings.device == "auto" else settings.device
    facts = facts_of_dataset(config, dataset)  # the model is that of the run
    return resolve(config, device, Facts(facts.n_items, n_windows=facts.n_windows), saved["world_size"])


def _open(config: Config, trained: Trained, run: Path) -> Dataset:
    """Return the new dataset. Raises `DataError` if it does not extend that of the run."""
    saved, previous = trained.metadata, trained.dataset
    dataset = open_dataset(
        config.data.folder, preprocessing=config.preprocessing.recipe, with_times=config.model.knows_times
    )
    require_kinds(dataset.folder, dataset.metadata, trained.kinds)
    if dataset.metadata["fingerprint"] == saved["fingerprint"]:
        raise DataError(f"{dataset.folder}: nothing to extend: {run} was trained on this dataset")
    if trained.catalogue is None:
        logger.warning(f"the dataset of {run} is not at {previous}: only the first {FIRST_IDS:,} ids are compared")
    if problem := problem_of(
        dataset, n_items=saved["n_items"], first_ids=saved["items"], fingerprint=saved["fingerprint"],
        previous=trained.catalogue,
    ):  # fmt: skip
        advice = f"make it with --data.extends={previous}"
        raise DataError(f"{dataset.folder}: does not extend the dataset of {run}: {problem}; {advice}")
    if trained.has_dataset:
        _warn_of_trained_targets(dataset, previous, run)
    if (features := saved.get("features")) and (dataset.features is None or dataset.features.meaning != features):
        advice = f"make it with --data.extends={previous} and --items=FILE"
        raise DataError(f"{dataset.folder}: does not have the item features of {run}; {advice}")
    return dataset


def _warn_of_trained_targets(dataset: Dataset, previous: Path, run: Path) -> None:
    """Log how many validation targets the run has trained on, if any: no further epoch would look better."""
    items = np.arange(dataset.n_items, dtype=np.int32)  # known items have the same ids
    counts = count_trained(dataset, previous, items, splits=[VALIDATION])
    if n := counts.get(VALIDATION, {"users": 0})["users"]:
        logger.warning(
            f"{dataset.folder}: {run} has trained on {n:,} of its {counts[VALIDATION]['of']:,} validation targets, so "
            f"that no further epoch looks better than the old weights; prepare it again with --data.extends={previous}"
        )


def _fill(folder: Path, trained: Trained, config: Config, dataset: Dataset, *, may_keep_old: bool) -> int:
    """Write the new run, and return the number of new items without a known neighbour.

    If the run recommends by recent popularity without a history, so does the new one, by the counts of the new dataset.
    Which items come again is counted in it, too, and the prior, with the same weights.
    """
    checkpoint, saved = trained.folder, trained.metadata
    n_known = saved["n_items"]
    tensors = read_grown(checkpoint, dataset.n_items - n_known)
    n_alone = initialize_new_items(
        tensors, dataset.histories, dataset.popularity, n_known=n_known, embed_dim=config.model.embed_dim
    )
    # -1 makes the training validate before the first step, so that only better weights replace these.
    weights = trained.prior_weights
    validated = -1.0 if may_keep_old else 0.0
    state = State(updates=saved["state"]["updates"], validated=validated, prior=weights, best_prior=weights)
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
