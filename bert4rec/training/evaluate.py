"""Evaluate trained weights on a dataset folder, and write a report and the ranks of all users."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from torch import nn

from bert4rec.checkpoint.contents import Weights
from bert4rec.checkpoint.package import WEIGHTS
from bert4rec.checkpoint.run_folder import REPORT, Trained
from bert4rec.checkpoint.store import verify
from bert4rec.checkpoint.stored_tensors import MODEL_PREFIX, StoredTensors
from bert4rec.config.tables import Config
from bert4rec.dataset.format import EVALUATED, METADATA, NO_ITEM, TEST, VALIDATION, fingerprints_of
from bert4rec.dataset.held_out import ChosenTargets, later_targets, targets_from
from bert4rec.dataset.reader import Dataset, Sizes, open_catalogue, open_dataset, problem_of, require_kinds
from bert4rec.dataset.trained import count_trained
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.evaluation.scorers import KnownItems
from bert4rec.feed.features import FeatureReader, feature_reader_of
from bert4rec.models.baselines import BaselineFactory
from bert4rec.models.names import FEATURE_VALUES
from bert4rec.models.prior import Prior
from bert4rec.report.figures import TRAINED_TARGETS, common_figures, differences, write_json
from bert4rec.report.results_folder import ResultsFolder
from bert4rec.runtime.arrays import Bools, Int32s, Int64s
from bert4rec.runtime.collectives import StepSync, on_rank_zero
from bert4rec.runtime.console import ProgressBar
from bert4rec.runtime.errors import DataError, Interrupted, RunInterruptedError, SettingsError, format_duration
from bert4rec.runtime.processes import Processes, process_group, rendezvous, this_process
from bert4rec.runtime.signals import Interruption
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.load import read_again
from bert4rec.serving.package import read_ids
from bert4rec.serving.stored_items import StoredItemIds
from bert4rec.sharding.parallelize import unwrap
from bert4rec.sharding.plan import summary
from bert4rec.training.agreement import CommonFacts, environment_facts, preflight
from bert4rec.training.build import (
    build_model,
    make_evaluator,
    plan_of_all,
    refuse_parts_by_host,
    require_counted_kinds,
    resolved,
)
from bert4rec.training.by_host import keep_own_parts
from bert4rec.training.list_files import LIST_LENGTH, write_lists
from bert4rec.training.prior import own_prior
from bert4rec.training.results import EvaluationResult, evaluate_model, make_report

MOST_LATER = 4096  # targets by which baselines are compared

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """The `report` of an evaluation, and its `folder`, None on all ranks but rank zero."""

    report: dict[str, Any]
    folder: Path | None


def evaluate(config: Config, trained: Trained, output: Path, *, lists: str = "", targets: str = "") -> Evaluation:
    """Evaluate `trained` weights, write the results to `output`, or to `output`-2, -3, … if it exists, and return them.

    `lists` is the format of the file with the list of each test user, "" for none; `targets` are those of
    `targets_from` instead of the dataset's own, "" for these. Every rank of the launch calls this. Raises `UserError`.
    """
    if lists and "full" not in config.evaluation.protocols:
        raise SettingsError(
            f'--lists={lists}: needs "full" in evaluation.protocols, the ranking of the whole catalogue'
        )
    store, rank, world_size = rendezvous()
    world, dataset, known = preflight(store, rank, world_size, lambda: _prepare(config, trained, store, targets))
    if config.data.parts_by_host:
        dataset = keep_own_parts(dataset, world, store, partial(_checked, trained))
    training = config.training
    with process_group(world, store, deterministic=training.deterministic, precision=training.precision):
        # The model lives in this call only, so that its shards are gone when the process group ends.
        return _complete(config, trained, world, dataset, known, output, lists)


def load_weights(trained: Trained, model: nn.Module) -> None:
    """Load the weights into a parallelized `model`; every rank calls this. Raises `DataError` for damaged weights."""
    if trained.is_package:
        Weights(model).load_package(trained.folder / WEIGHTS)  # its manifest was verified on opening
        return
    verify(trained.folder)
    Weights(model).load(trained.folder)


def _prepare(
    config: Config, trained: Trained, store: dist.Store, targets: str = ""
) -> tuple[tuple[Processes, Dataset, KnownItems | None], CommonFacts]:
    """Return this rank, its dataset and the known items; and the facts that must be equal on all ranks."""
    world = this_process(config.parallelism.device, store, minutes=config.parallelism.timeout_minutes)
    dataset = _open_dataset(config, trained, verify=world.local_rank == 0)
    if targets:
        dataset = _with_targets(dataset, targets, config)
    refuse_parts_by_host(config)
    require_counted_kinds(config, dataset)
    facts = environment_facts(config.model_dump(mode="json"), dataset.metadata["fingerprint"], world.device.type)
    return (world, dataset, _known_items(dataset, trained)), facts | {
        "weights": {"weights (checksum)": trained.checksum}
    }


def _open_dataset(config: Config, trained: Trained, *, verify: bool) -> Dataset:
    """Return the dataset; any split and any items are allowed.

    Raises `DataError` if it is missing, or does not fit a matrix factorisation; and, if the host has all of it, if it
    has no held-out users.
    """
    folder = config.data.folder
    if not (folder / METADATA).is_file():
        advice = "if the dataset was moved, name its folder after the run"
        raise DataError(f"{folder}: no dataset folder (no {METADATA}); {advice}")
    dataset = open_dataset(
        folder, verify=verify, with_times=config.model.knows_times, parts_by_host=config.data.parts_by_host
    )
    require_kinds(folder, dataset.metadata, trained.kinds)
    if not trained.kind.is_transformer and dataset.metadata["fingerprint"] != trained.metadata["fingerprint"]:
        raise DataError(
            f"{folder}: is not the dataset that the model was trained on, and a matrix factorisation can only score "
            "the users that it was trained on; train another model on this dataset"
        )
    return dataset if config.data.parts_by_host else _checked(trained, dataset)


def _checked(trained: Trained, dataset: Dataset) -> Dataset:
    """Return the dataset. Raises `DataError` if it has no held-out users."""
    if not any(len(dataset.splits[split]) for split in EVALUATED) and trained.settings["training.loss"] != "mse":
        raise DataError(f"{dataset.folder}: holds nothing out for validation or test, so there is nothing to evaluate")
    return dataset


def _with_targets(dataset: Dataset, which: str, config: Config) -> Dataset:
    """Return the dataset with the targets of `targets_from` for its test, and without a validation.

    Raises `SettingsError` for a dataset that does not begin its test at an instant.
    """
    settings = dataset.metadata["preprocessing"]
    if settings["split"] != "time":
        raise SettingsError(
            f"--targets={which}: needs a dataset that is split by time, and {dataset.folder} has split = "
            f"{settings['split']}; prepare the data with --split=time"
        )
    if settings.get("target_events"):
        raise SettingsError(
            f"--targets={which}: takes all events, but {dataset.folder} has target_events; leave out --targets"
        )
    if config.data.parts_by_host:
        raise SettingsError(f"--targets={which}: needs the whole dataset on each host, data.parts_by_host = false")
    histories, instant = dataset.histories, dataset.metadata["split_instant"]
    test = targets_from(histories, dataset.folder, which, instant=instant, seed=settings["seed"])
    if not len(test):
        raise DataError(f"{dataset.folder}: no user has an interaction after the first and from split_at on")
    nothing = np.zeros(0, np.int64)
    splits = {TEST: test, VALIDATION: ChosenTargets(VALIDATION, histories, dataset.folder, nothing, nothing)}
    return replace(dataset, splits=splits, metadata={**dataset.metadata, "targets": which})


def _known_items(dataset: Dataset, trained: Trained) -> KnownItems | None:
    """Return which items of `dataset` the `trained` model knows, by original id; None if both have the same items.

    Raises `DataError` if no item is known, or if the original ids of the model's items are not available.
    """
    if dataset.metadata["fingerprint"] == trained.metadata["fingerprint"]:
        return None
    if (ids := _own_ids(trained)) is not None:
        indices = np.full(dataset.n_items, NO_ITEM, np.int64)
        for items, originals in StoredItemIds(dataset.folder).parts():
            indices[items] = ids.indices(originals)
    elif not problem_of(
        dataset, n_items=trained.n_items, first_ids=trained.metadata["items"],
        fingerprint=trained.metadata["fingerprint"],
    ):  # fmt: skip
        indices = np.arange(dataset.n_items)  # the dataset extends that of the model
        indices[trained.n_items :] = NO_ITEM
    else:
        raise DataError(
            f"{dataset.folder}: its items are not those of the model, and the original ids of the model's items are "
            f"missing: {trained.dataset} is not the dataset that it was trained on; move that dataset back there"
        )
    if (indices == NO_ITEM).all():
        raise DataError(
            f"{dataset.folder}: the model knows none of its {dataset.n_items:,} items; after the run, "
            "name a dataset that has items of the model"
        )
    if np.array_equal(indices, np.arange(trained.n_items)):
        return None
    return KnownItems(indices.astype(np.int32))


def _own_ids(trained: Trained) -> ItemIds | None:
    """Return the original ids of the model's items; None if neither the run nor a dataset has them."""
    if trained.is_package:
        return read_ids(trained.folder, dict(trained.metadata))
    return StoredItemIds(trained.catalogue) if trained.catalogue else None


class RankedTest(NamedTuple):
    """The test of a model: `users` [U], their `targets` [U], and name → `ranks` [U] in the full catalogue.

    The names are TEST for the model, and those of baselines. `lists` [U, 10] are the best items of the model, the best
    first. `later`: NDCG@10 of the baselines on later targets of these users, too. All is empty but on rank zero.
    """

    users: Int32s
    targets: Int32s
    ranks: Mapping[str, Int32s]
    lists: Int64s
    later: Mapping[str, float] = MappingProxyType({})


def rank_test(
    config: Config, trained: Trained, *, known: Int32s | None = None, baselines: Sequence[str] = (),
    counted: Path | None = None,
) -> RankedTest:  # fmt: skip
    """Return the ranks of the test targets of the dataset of `config` by `trained` weights; every rank calls this.

    `known` [V]: the number in the model of each item, NO_ITEM for one that is neither read nor ranked; by default as
    `evaluate` finds it. `baselines` are counted in the training part of the dataset `counted`, which this one extends.
    Raises `UserError`.
    """
    store, rank, world_size = rendezvous()
    world, dataset, found = preflight(store, rank, world_size, lambda: _prepare(config, trained, store))
    training = config.training
    with process_group(world, store, deterministic=training.deterministic, precision=training.precision):
        chosen = found if known is None else KnownItems(known)
        config, evaluator, model = _ready(config, trained, world, dataset, chosen)
        if counted:
            histories = open_dataset(counted, verify=False, with_times=config.model.knows_times).histories
            counting = BaselineFactory(
                dataset=replace(dataset, histories=histories), partition=evaluator.counting.partition
            )
            evaluator = replace(evaluator, counting=counting)
        evaluator = replace(
            evaluator, baselines=baselines, protocols=["full"], without_order={}, features=(), n_listed=LIST_LENGTH
        )
        held_out = {TEST: np.zeros(0, bool)}
        n_batches = evaluator.n_batches(held_out)
        with Interruption() as stop, RankingProgress(stop, world, n_batches=n_batches) as progress:
            rankings = evaluator.ranks(model, held_out, progress.advance)
        later = {}
        if baselines:
            every = later_targets(dataset.histories, dataset.folder, n=MOST_LATER, seed=training.seed)
            later = evaluator.baselines_on(every)
        if not world.is_rank_zero:
            return RankedTest(np.zeros(0, np.int32), np.zeros(0, np.int32), {}, np.zeros((0, LIST_LENGTH), np.int64))
        split, lists = dataset.splits[TEST], rankings[TEST].lists
        assert lists is not None, "the full catalogue is ranked"
        ranks = {name: ranking.ranks["full"] for name, ranking in rankings.items()}
        return RankedTest(split.users, split.targets(np.arange(len(split))), ranks, lists.kept_items, later)


def _ready(
    config: Config, trained: Trained, world: Processes, dataset: Dataset, known: KnownItems | None
) -> tuple[Config, Evaluator, nn.Module]:
    """Return the resolved settings, the evaluator of the model, and the model with its weights."""
    config = resolved(config, world, dataset)
    features = _features(trained, dataset)
    feature_sizes = features.sizes if features else None
    weights = {} if config.model.prior == "none" else trained.prior_weights
    sizes = Sizes(
        trained.n_items, dataset.n_users, features=feature_sizes, events=len(trained.kinds), prior=list(weights)
    )
    plan = plan_of_all(config, world, sizes, trains=False)
    logger.info(summary(plan))
    logger.info(f"weights: {trained.folder}; dataset: {dataset.folder}")
    is_own = dataset.metadata["fingerprint"] == trained.metadata["fingerprint"]
    if not is_own:
        logger.info(f"{dataset.folder} is not the dataset that these weights were trained on")
    model = build_model(config, world, plan, features)
    again = None if is_own else partial(_again, trained, known)
    evaluator = make_evaluator(config, world, dataset, features, again)
    prior = _prior(trained, weights, model, world, dataset, known)
    evaluator = replace(evaluator, known_items=known, prior=prior)
    load_weights(trained, model)
    return config, evaluator, model


def _complete(
    config: Config, trained: Trained, world: Processes, dataset: Dataset, known: KnownItems | None, output: Path,
    lists: str,
) -> Evaluation:  # fmt: skip
    config, evaluator, model = _ready(config, trained, world, dataset, known)
    evaluator = replace(evaluator, n_listed=LIST_LENGTH if lists else 0)
    held_out = evaluator.held_out()
    if "targets" in dataset.metadata:  # what was counted by the preparation is about others
        n, n_seen = len(held_out[TEST]), int(held_out[TEST].sum())
        about = {"repeated_targets": {TEST: {"users": n_seen, "of": n}}, "left_out": {TEST: {"users": 0, "of": n}}}
        dataset = replace(dataset, metadata={**dataset.metadata, **about})
        evaluator = replace(evaluator, dataset=dataset, protocols=["full"])
    on_rank_zero(lambda: _attempt(output))  # fail before the work, not after it
    with Interruption() as interruption:
        with RankingProgress(interruption, world, n_batches=evaluator.n_batches(held_out)) as progress:
            result = evaluate_model(evaluator, model, held_out, progress.advance)
        report = make_report(evaluator, result, config.model, mode=config.parallelism.mode)
        report["evaluation"] = _about(config, trained, evaluator)
        folder = None
        if world.is_rank_zero:
            with interruption.busy():
                folder = _write(output, evaluator, report, result, lists)
            _compare(report, trained)
        return Evaluation(report, folder)


def _again(trained: Trained, known: KnownItems | None) -> Bools:
    """Return which items of another dataset come again: as `recommend` does it, none that the model does not know.

    Raises `DataError` if that is unknown.
    """
    if trained.is_package:
        again = read_ids(trained.folder, dict(trained.metadata)).comes_again
    else:
        again = read_again(trained, trained.dataset if trained.has_dataset else None)
    return again if known is None else (known.ids != NO_ITEM) & again[known.ids]


def _features(trained: Trained, dataset: Dataset) -> FeatureReader | None:
    """Return the reader of the features of the model's items, as they were in the training, if it has any.

    Raises `DataError` if neither the run nor a dataset has them.
    """
    if trained.is_package or MODEL_PREFIX + FEATURE_VALUES not in StoredTensors(trained.folder):
        return None
    tables_from = trained.model["feature_tables_from"]
    if dataset.metadata["fingerprint"] == trained.metadata["fingerprint"]:
        return feature_reader_of(dataset, tables_from)
    if trained.catalogue is None:
        raise DataError(
            f"{trained.dataset}: is not the dataset that the model was trained on, whose item features it needs; move "
            "that dataset back there"
        )
    return feature_reader_of(open_catalogue(trained.catalogue), tables_from)


def _prior(
    trained: Trained, weights: Mapping[str, list[float]], model: nn.Module, world: Processes, dataset: Dataset,
    known: KnownItems | None,
) -> Prior | None:  # fmt: skip
    """Return the prior of the model with these `weights` for the items of `dataset`; None without weights."""
    if not weights:
        return None
    partition, ids = unwrap(model).item_table.world, known.ids if known else None
    return own_prior(trained.prior, partition, world.device, dataset.n_items, weights=weights, known=ids)


class RankingProgress(ProgressBar):
    """Show the progress of a ranking, and stop it on all ranks when a rank has received a signal.

    It raises `Interrupted` between two batches, or at the end.
    """

    def __init__(self, interruption: Interruption, world: Processes, *, n_batches: int) -> None:
        super().__init__(n_batches)
        self._consensus, self._done = StepSync(interruption, world.minutes), 0

    def advance(self) -> None:
        """Count a batch."""
        _handle_signal(self._consensus.interrupted())
        if self.is_due():
            left = f"{format_duration(self.seconds_left(self._done))} left"
            self.show(self._done, f"ranking  {left}", line=f"ranking  {self._done / self._total:4.0%}  {left}")
        self._done += 1

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        if failure == (None, None, None):
            _handle_signal(self._consensus.wait().interrupted)


def _handle_signal(number: int) -> None:
    """Raise `Interrupted` for the signal `number`; 0 is no signal."""
    if number:
        raise Interrupted(number, "nothing was written")


def _about(config: Config, trained: Trained, evaluator: Evaluator) -> dict[str, Any]:
    """Return the weights, the device and the settings of the evaluation, and whether the dataset is another one."""
    fingerprint = trained.metadata["fingerprint"]
    return {
        "weights": {"checkpoint": str(trained.folder), "checksum": trained.checksum},
        "device": evaluator.world.device.type,
        "settings": config.evaluation.model_dump(mode="json") | {"precision": evaluator.precision},
        **({"without_prior": True} if trained.prior_weights and not evaluator.prior else {}),
        **({"trained_on": fingerprint} if fingerprint != evaluator.dataset.metadata["fingerprint"] else {}),
        **({"unknown": _unknown(evaluator, evaluator.known_items)} if evaluator.known_items else {}),
        **_trained_targets(evaluator.dataset, trained, evaluator.known_items),
    }


def _trained_targets(dataset: Dataset, trained: Trained, known: KnownItems | None) -> dict[str, Any]:
    """Return how many targets of each split of another dataset the model has trained on; None if that is unknown.

    It is unknown if the dataset that the model was trained on is missing, or if this one is on several hosts, unless
    this one extends it.
    """
    own, *extended = fingerprints_of(dataset.metadata)
    fingerprint = trained.metadata["fingerprint"]
    if own == fingerprint:
        return {}
    if trained.has_dataset and dataset.placement is None:
        items = known.ids if known else np.arange(dataset.n_items, dtype=np.int32)
        return {TRAINED_TARGETS: on_rank_zero(lambda: count_trained(dataset, trained.dataset, items))}
    return {} if fingerprint in extended else {TRAINED_TARGETS: None}


def _unknown(evaluator: Evaluator, known: KnownItems) -> dict[str, Any]:
    """Return how many items the model does not know, and how many targets and whole histories of each split."""
    splits = {name: evaluator.dataset.splits[name] for name in EVALUATED if len(evaluator.dataset.splits[name])}
    return {
        "items": {"items": known.n_unknown, "of": len(known.ids)},
        **{
            what: {
                name: {"users": int(getattr(known.unknown(split), what).sum()), "of": len(split)}
                for name, split in splits.items()
            }
            for what in ("targets", "histories")
        },
    }


def _attempt(output: Path) -> None:
    """Raise `SettingsError` if no folder can be made; remove it again, since a signal may end the process any time."""
    with ResultsFolder(output):
        pass


def _write(output: Path, evaluator: Evaluator, report: Mapping[str, Any], result: EvaluationResult, lists: str) -> Path:
    """Write the results, and return their folder."""
    try:
        with ResultsFolder(output) as results:
            write_json(results.unfinished / REPORT, report)  # before the ids, which need more memory
            evaluator.write_ranks(results.unfinished, result.ranks, result.held_out)
            if lists and TEST in result.ranks:
                write_lists(results.unfinished, lists, evaluator.dataset, result.ranks[TEST])
            return results.finish()
    except OSError as error:
        raise RunInterruptedError(
            f"{output}: cannot be written: {error.strerror}; name another folder with --output=FOLDER"
        ) from None


def _compare(report: Mapping[str, Any], trained: Trained) -> None:
    """Log whether the figures equal those of the run's report, if both are about the same weights and dataset."""
    if trained.run is None:
        return
    path = trained.run / REPORT
    try:
        run_report = json.loads(path.read_text())
    except (OSError, ValueError):
        logger.info(f"{path}: cannot be read: these figures were not compared with it")
        return
    if not trained.is_reported:
        logger.info(f"{path} is about other weights: the best of {trained.run}")
    elif "without_prior" in report["evaluation"]:
        logger.info(f"{path} is about the model with what is counted under it")
    elif report["dataset"]["fingerprint"] != run_report["dataset"]["fingerprint"]:
        logger.info(f"{path} is about another dataset")
    elif "targets" in report["dataset"]:
        logger.info(f"{path} is about the first target of each user")
    elif different := differences(report, run_report):
        logger.warning(f"these figures differ from those of {path}: {different}")
    else:
        n = len(common_figures(report, run_report))
        logger.info(f"{path} has the same figures: {n} compared")
