"""Build the parts of a training from resolved settings: job, plan, model, batches, sampler, checkpoints, trainer."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import nn

from bert4rec.checkpoint import run_folder
from bert4rec.checkpoint.contents import CheckpointManager, CheckpointSettings
from bert4rec.checkpoint.run_folder import CHECKPOINTS
from bert4rec.config.kinds import EASE, KINDS, OPTIONAL_BASELINES, needs_negatives
from bert4rec.config.resolve import MANY_REPEATS, Facts, max_len, resolve, resolve_times
from bert4rec.config.tables import (
    ALL_BASELINES_UP_TO,
    ALL_BASELINES_UP_TO_SCORES,
    ALL_PAIRS_UP_TO,
    PRIOR_UP_TO,
    PRIOR_UP_TO_ITEMS,
    Config,
    Table,
)
from bert4rec.dataset.format import TEST, VALIDATION, numbers_of_kinds
from bert4rec.dataset.histories import Histories, TrainingPairs, TrainingWindows
from bert4rec.dataset.placement import Placement
from bert4rec.dataset.reader import Dataset, Sizes, moved_share, read_metadata
from bert4rec.evaluation.evaluator import BatchCallback, Evaluator
from bert4rec.evaluation.ranker import Metrics
from bert4rec.evaluation.seen_items import BY_ITEM, LeavesOut
from bert4rec.feed.batches import AT_START, ChosenWindows, HostShare, Position, TrainingBatches, Windows
from bert4rec.feed.features import FeatureReader, feature_reader_of
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.feed.pairs import parts_of_pairs
from bert4rec.models.again import comes_again, missed_by_item
from bert4rec.models.baselines import BaselineFactory
from bert4rec.models.item_features import FeatureSettings
from bert4rec.models.losses import LossSettings
from bert4rec.models.prior import PRIOR_SOURCES
from bert4rec.models.ranking_model import model_class
from bert4rec.models.transitions import TrainingHistories
from bert4rec.report.log import MetricsLog, open_trackers
from bert4rec.runtime.arrays import Bools
from bert4rec.runtime.collectives import Partition, all_reduce_min, gather_objects, on_rank_zero
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.runtime.memory import Memory, available
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.signals import Interruption
from bert4rec.sharding.footprint import Job
from bert4rec.sharding.memory_check import refuse_unless_it_fits
from bert4rec.sharding.optimizer import Optimizers, OptimizerSettings
from bert4rec.sharding.parallelize import compile_blocks, parallelize
from bert4rec.sharding.plan import Plan, make_plan
from bert4rec.training.state import Checkpoints, State
from bert4rec.training.trainer import Step, Trainer, TrainerSettings

OF_EXAMPLES = (
    "seed", "loss", "rating_validation", "mask_prob", "last_item_mask_prob", "mask_token_share",
    "random_token_share",
)  # fmt: skip

logger = logging.getLogger(__name__)


def resolved(config: Config, world: Processes, dataset: Dataset) -> Config:
    """Return `config` with every "auto" resolved. Raises `SettingsError` for settings the device does not support."""
    if dataset.features is not None and config.model.item_features and config.model.head == "linear":
        raise SettingsError(
            'model.head = "linear": has no vectors of items to which features could be added; set model.head = "tied", '
            "or model.item_features = false"
        )
    return resolve(config, world.device.type, facts_of_dataset(config, dataset), world.world_size)


def facts_of_dataset(config: Config, dataset: Dataset) -> Facts:
    """Return the facts of the dataset that "auto" settings depend on."""
    n_windows = _on_all_hosts(dataset, len(training_windows(config, dataset)))
    known = dataset.n_items, dataset.n_rows, dataset.typical_length, n_windows, dataset.share_of_repeats
    is_asked = config.evaluation.seen_items == "auto" and dataset.share_of_repeats > MANY_REPEATS
    missed = missed_by_item(dataset) if is_asked else None
    return Facts(*known, missed, **_facts_of_times(config, dataset.metadata), prior=choose_prior(config, dataset))


def _facts_of_times(config: Config, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a dataset with this `metadata` that decide on `model.times`."""
    # The start of the run refuses a folder without weights.
    if config.run.init_from and (folder := run_folder.starting_weights(Path(config.run.init_from))):
        return {"times": run_folder.read_metadata(folder)["config"]["model"]["times"]}
    return {"moved": moved_share(metadata)}


def knows_times(config: Config) -> bool:
    """Return whether the model uses the timestamps of its dataset; the settings need not be resolved."""
    if config.model.times != "auto":
        return config.model.knows_times
    facts = Facts(0, **_facts_of_times(config, read_metadata(config.data.folder)))
    return resolve_times(config, facts) != "none"


def training_windows(config: Config, dataset: Dataset) -> TrainingWindows:
    """Return the training windows; the settings need not be resolved."""
    length = max_len(config, dataset.typical_length)
    return dataset.windows(max_len=length, step=config.training.sliding_step or length)


def _on_all_hosts(dataset: Dataset, n: int) -> int:
    """Return the sum of `n` over the hosts if each has its own parts of the dataset, else `n`; all ranks call this."""
    placement = dataset.placement
    return n if placement is None else sum(gather_objects(n if placement.place == 0 else 0))


def sizes_of(config: Config, dataset: Dataset) -> Sizes:
    """Return the sizes of the dataset, its windows, its features and its prior that a job depends on."""
    features = dataset.features if config.model.item_features else None
    windows, n_events = training_windows(config, dataset), len(dataset.histories.kinds)
    length = _on_all_hosts(dataset, windows.n_items) / max(1, _on_all_hosts(dataset, len(windows)))
    sizes = features.sizes._replace(tables_from=config.model.feature_tables_from) if features else None
    return Sizes(dataset.n_items, dataset.n_users, length, sizes, n_events, choose_prior(config, dataset))


def feature_reader(config: Config, dataset: Dataset) -> FeatureReader | None:
    """Return the reader of the item features of `dataset`; None if it has none, or if the settings exclude them."""
    return feature_reader_of(dataset, config.model.feature_tables_from) if config.model.item_features else None


def _shared(table: Table, settings: type[Any]) -> dict[str, Any]:
    """Return the keys, with values, that a settings table shares with the dataclass `settings`."""
    return {field.name: getattr(table, field.name) for field in fields(settings) if hasattr(table, field.name)}


def job(
    config: Config, sizes: Sizes, *, device_type: str, world_size: int, local_world_size: int, trains: bool = True
) -> Job:
    """Return the job of a training, or of an evaluation, from resolved settings."""
    training = config.training
    described = Job(
        **_shared(training, Job),
        **_shared(config.parallelism, Job),
        kind=config.model.kind,
        model=_shape(config, sizes),
        device_type=device_type,
        world_size=world_size,
        local_world_size=local_world_size,
        batch_size=training.per_device if trains else config.evaluation.per_device_eval_batch_size,
        window_length=sizes.window_length if trains else 0.0,
        trains=trains,
        averages=trains and training.average_age != 0,
        prior=tuple(sizes.prior),
    )
    return described if trains else replace(described, sharding_group_size=0)


def _shape(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Return the keyword arguments of the model, without those of its loss."""
    kind = KINDS[config.model.kind]
    table_sizes = {"n_items": sizes.items, "n_users": sizes.users}
    shape = {name: table_sizes[name] for name in kind.size_arguments}
    shape |= {name: getattr(config.model, name) for name in kind.settings}
    if kind.is_transformer and sizes.events:
        shape["n_events"] = sizes.events
    if sizes.features is None:
        return shape
    return shape | {"features": FeatureSettings(sizes.features, config.model.id_dropout)}


def plan_of_all(config: Config, world: Processes, sizes: Sizes, *, trains: bool = True) -> Plan:
    """Return the sharding plan for all ranks, made for the host and the GPU with the least memory.

    Raises `SettingsError`, on every rank, if the job cannot fit.
    """
    local = available(world.device, world.local_world_size)
    memory = Memory(*(None if limit is None else all_reduce_min(limit) for limit in (local.host, local.device)))
    described = job(
        config, sizes, device_type=world.device.type, world_size=world.world_size,
        local_world_size=world.local_world_size, trains=trains,
    )  # fmt: skip

    def checked_plan() -> Plan:
        plan = make_plan(described, memory)
        refuse_unless_it_fits(plan, min_len=config.shortest_window)
        return plan

    return on_rank_zero(checked_plan)


def build(
    config: Config, world: Processes, plan: Plan, features: FeatureReader | None = None
) -> tuple[nn.Module, Optimizers]:
    """Return the parallelized model, which reads item features from `features`, and its optimizers."""
    wrapped = build_model(config, world, plan, features)
    settings = OptimizerSettings(
        **_shared(config.training, OptimizerSettings),
        **_shared(config.parallelism, OptimizerSettings),
    )
    return wrapped, Optimizers(wrapped, settings, plan.job.updates)


def build_model(config: Config, world: Processes, plan: Plan, features: FeatureReader | None = None) -> nn.Module:
    """Return the model, parallelized according to `plan`; its weights are initialized if the plan is for training."""
    parallelism, training = config.parallelism, config.training
    assert parallelism.sparse_learning_rate != "auto", "the settings are resolved"
    loss = LossSettings(**_shared(training, LossSettings))
    model = model_class(config.model.kind)(**plan.job.model, loss=loss)
    wrapped = parallelize(
        model,
        plan,
        device=world.device,
        seed=training.seed,
        sparse_learning_rate=parallelism.sparse_learning_rate,
        repeatable=world.device.type == "cpu" or training.deterministic,
        timeout=timedelta(minutes=parallelism.timeout_minutes),
    )
    if training.compile:
        compile_blocks(wrapped)
    if (encoder := model.item_table.features) is not None:
        encoder.reader, encoder.seed = features, training.seed
    return wrapped


def require_counted_kinds(config: Config, dataset: Dataset) -> None:
    """Raise `DataError` if the settings name a kind that needs item features or fewer items than `dataset` has."""
    named = {"model.kind": [config.model.kind]}
    if config.evaluation.baselines != "auto":
        named["evaluation.baselines"] = config.evaluation.baselines
    for key, kinds in named.items():
        if dataset.features is None and (needing := [kind for kind in kinds if KINDS[kind].needs_features]):
            raise DataError(
                f"{dataset.folder}: has no item features, but {key} names {needing[0]}, which needs them; prepare the "
                "data again with --data.items_path=FILE, or remove it"
            )
        if too_many := [kind for kind in kinds if 0 < KINDS[kind].most_items < dataset.n_items]:
            most = KINDS[too_many[0]].most_items
            raise DataError(
                f"{dataset.folder}: has {dataset.n_items:,} items, but {key} names {too_many[0]}, which takes at "
                f"most {most:,} items; remove it"
            )


def refuse_parts_by_host(config: Config) -> None:
    """Raise `SettingsError` for a training that needs the parts of all hosts at once."""
    if config.data.parts_by_host and config.training.loss == "mse":
        raise SettingsError(
            'training.loss = "mse": holds out ratings of all users together, which data.parts_by_host = true does not '
            "allow; choose another loss, or copy the whole dataset to each host"
        )


def make_evaluator(
    config: Config, world: Processes, dataset: Dataset, features: FeatureReader | None = None,
    again: Callable[[], Bools] | None = None,
) -> Evaluator:  # fmt: skip
    """Return the evaluator for resolved settings, of a model with the item `features`.

    With seen_items = "by_item", `again` returns which items come again; by default they are counted in the dataset.
    """
    settings = config.evaluation
    baselines, left_out = choose_baselines(config, dataset)
    names, not_tested = choose_features(config, dataset, features)
    is_rated = config.training.loss == "mse"
    leaves_out_seen: LeavesOut = settings.seen_items == "leave_out"
    if settings.seen_items == BY_ITEM:
        leaves_out_seen = ~(again() if again else comes_again(TrainingHistories(dataset)))
    return Evaluator(
        dataset=dataset,
        world=world,
        protocols=settings.protocols,
        ks=sorted({*settings.ks, 10}),
        batch_size=settings.per_device_eval_batch_size,
        max_len=config.max_len,
        precision=config.training.precision,
        baselines=baselines,
        counting=BaselineFactory(dataset=dataset, partition=Partition(world.rank, world.world_size)),
        leaves_out_seen=leaves_out_seen,
        left_out=left_out,
        features=names,
        features_not_tested=not_tested,
        without_order=choose_orderless(config, dataset, baselines),
        prior_is_auto=config.model.prior == "auto",
        prior_tested_up_to=ALL_BASELINES_UP_TO_SCORES,
        pairs=parts_of_pairs(TrainingPairs(dataset.histories), **_example_settings(config)) if is_rated else {},
    )


def choose_baselines(config: Config, dataset: Dataset) -> tuple[list[str], str]:
    """Return the baselines of a trained model other than popularity, and why some are left out.

    The reason is "" if the settings name the baselines, or if none is left out.
    """
    if not KINDS[config.model.kind].is_trained:
        return [], ""
    if config.evaluation.baselines != "auto":
        return [kind for kind in OPTIONAL_BASELINES if kind in config.evaluation.baselines], ""
    possible = [
        kind for kind in OPTIONAL_BASELINES
        if (dataset.features is not None or not KINDS[kind].needs_features)
        and (not KINDS[kind].most_items or dataset.n_items <= ALL_PAIRS_UP_TO)
    ]  # fmt: skip
    n_positions, n_users = dataset.metadata["train_positions"], len(dataset.splits[TEST])
    if n_positions <= ALL_BASELINES_UP_TO and n_users * dataset.n_items <= ALL_BASELINES_UP_TO_SCORES:
        return possible, ""
    return [], (
        f"Popularity is the only baseline: with {n_positions:,} training positions, {n_users:,} test users and "
        f"{dataset.n_items:,} items the rest takes minutes; set evaluation.baselines = {json.dumps(possible)} to "
        "include it."
    )


def choose_orderless(config: Config, dataset: Dataset, baselines: Sequence[str]) -> dict[str, str]:
    """Return the rankings of the test that are repeated with histories in random order, and their kinds.

    They are those of the model and of the `baselines` that read the order; {} if that takes minutes.
    """
    kinds = {TEST: config.model.kind} | {kind: kind for kind in baselines}
    kinds = {name: kind for name, kind in kinds.items() if KINDS[kind].reads_order}
    n_scores = len(kinds) * len(dataset.splits[TEST]) * dataset.n_items
    return kinds if n_scores <= ALL_BASELINES_UP_TO_SCORES else {}


def choose_features(config: Config, dataset: Dataset, features: FeatureReader | None) -> tuple[list[str], str]:
    """Return the item features without which the test is repeated, and why it is not ("" if it is or has none)."""
    names = [] if features is None else features.names
    chosen, n_users = config.evaluation.feature_ablation, len(dataset.splits[TEST])
    if not names or not n_users or chosen is False:
        return [], ""
    if chosen is True or len(names) * n_users * dataset.n_items <= ALL_BASELINES_UP_TO_SCORES:
        return names, ""
    return [], (
        f"What each item feature gives was not measured: with {len(names)} features, {n_users:,} test users and "
        f"{dataset.n_items:,} items it takes minutes; set evaluation.feature_ablation = true to measure it."
    )


def choose_prior(config: Config, dataset: Dataset) -> list[str]:
    """Return the sources of the prior that are counted: those that are named, or those that are counted in seconds.

    Raises `DataError` if sources are named and the dataset has no validation users.
    """
    sources, n_users = sources_of(config, dataset.n_items), len(dataset.splits[VALIDATION])
    if not sources:
        return []
    if config.model.prior == "auto":
        return sources if n_users and dataset.metadata["train_positions"] <= PRIOR_UP_TO else []
    if not n_users:
        raise DataError(
            f"{dataset.folder}: has no validation users, by whom the weights of model.prior are chosen; set "
            'model.prior = "none", or prepare the data again'
        )
    return sources


def sources_of(config: Config, n_items: int) -> list[str]:
    """Return the sources of the prior for `n_items`; "auto": as far as the training positions are few enough."""
    chosen = config.model.prior
    is_large = chosen == "auto" and n_items > PRIOR_UP_TO_ITEMS
    if not KINDS[config.model.kind].is_transformer or chosen == "none" or is_large:
        return []
    if chosen == "auto":
        return [name for name in PRIOR_SOURCES if name != EASE or n_items <= ALL_PAIRS_UP_TO]
    return [name for name in PRIOR_SOURCES if name in chosen]


def event_weights(config: Config, histories: Histories) -> list[float]:
    """Return the weight in the loss of each kind of event by number, 0 for one that is not predicted; [] if all are 1.

    Raises `DataError` for unknown kinds and if no weight is positive, `SettingsError` for a loss that has no weights.
    """
    named, targets = config.training.event_weights, histories.target_kinds
    if not named and not targets:
        return []
    numbers = numbers_of_kinds("training.event_weights", named, histories.kinds)
    if config.training.loss == "mse":
        raise SettingsError(
            'training.loss = "mse": learns all ratings; expected: no training.event_weights and a dataset without '
            "preprocessing.target_events"
        )
    weights = [float(not targets or number in targets) for number in range(len(histories.kinds))]
    for number, weight in zip(numbers, named.values(), strict=True):
        weights[number] *= weight
    if not any(weights):
        predicted = ", ".join(histories.kinds[number] for number in targets) or "all of them"
        raise DataError(
            f"training.event_weights = {json.dumps(named)}: no kind of event is left to learn from (predicted: "
            f"{predicted}); give one of them a weight above 0"
        )
    return weights if set(weights) != {1.0} else []


def _example_settings(config: Config) -> dict[str, Any]:
    return {"times": config.model.times} | {name: getattr(config.training, name) for name in OF_EXAMPLES}


def training_batches(
    config: Config, world: Processes, dataset: Dataset, features: FeatureReader | None = None, *,
    start: Position = AT_START, chosen: Path | None = None,
) -> TrainingBatches:  # fmt: skip
    """Return the training batches of this rank from `start`, with the item `features`.

    `chosen`: a file that lists the windows to train on, as `ChosenWindows` reads it; None for all examples.
    """
    training, windows = config.training, training_windows(config, dataset)
    settings = _example_settings(config) | {"event_weights": event_weights(config, dataset.histories)}
    examples = model_class(config.model.kind).examples(windows, n_items=dataset.n_items, **settings)
    if chosen:
        assert isinstance(examples, Windows), "pairs are not updated"
        examples = ChosenWindows(examples, chosen)
    share: Partition | HostShare = Partition(world.rank, world.world_size)
    if placement := dataset.placement:
        share = _host_share(len(examples), placement)
        n_by_host, in_order = dict(gather_objects((placement.host, len(windows)))), placement.in_order
        windows.first_number = sum(n_by_host[host] for host in in_order[: in_order.index(placement.host)])
    return TrainingBatches(
        examples,
        share,
        n_epochs=training.n_epochs,
        per_device=training.per_device,
        seed=training.seed,
        sampler=sampler(config, dataset, world),
        features=features,
        start=start,
    )


def _host_share(n_examples: int, placement: Placement) -> HostShare:
    """Return the share of this process in the `n_examples` of its host.

    Each process takes as many examples in an epoch as the host with the most has for each of its own. So each example
    is in each epoch, and some of the hosts with fewer are there twice.
    """
    n_by_host = dict(gather_objects((placement.host, n_examples)))
    per_process = [-(-n // len(placement.hosts[host])) for host, n in n_by_host.items()]
    n_parts, sizes = Counter(placement.owners.values()), ", ".join(f"{n:,}" for n in n_by_host.values())
    logger.info(
        f"parts of the dataset by host: {', '.join(f'{n_parts[host]:,}' for host in n_by_host)}, with {sizes} "
        f"examples; each process takes {max(per_process):,} in an epoch"
    )
    partition, n_processes = Partition(placement.place, placement.n_local), placement.n_processes
    return HostShare(partition, max(per_process) * placement.n_local, n_processes)


def sampler(config: Config, dataset: Dataset, world: Processes) -> NegativeSampler | None:
    """Return the sampler of negatives for a sampled loss, shared by the ranks of a group; None for other losses."""
    training = config.training
    if not needs_negatives(training.loss):
        return None
    return NegativeSampler(
        n_items=dataset.n_items,
        n=training.n_negatives,
        power=training.negatives_power,
        seed=training.seed,
        popularity=dataset.popularity if training.negatives_power else None,
        group=world.rank // training.negatives_shared_by if isinstance(training.negatives_shared_by, int) else 0,
    )


def metrics_log(config: Config, folder: Path, *, purge_from: int = 0) -> MetricsLog:
    """Return the metrics log in the run's `folder`, with the trackers of the settings."""
    trackers = open_trackers(config.run.trackers, folder, config.model_dump(mode="json"), purge_from=purge_from)
    return MetricsLog(folder, trackers)


def checkpoint_manager(
    config: Config, world: Processes, folder: Path, *, about: Mapping[str, Any], last_step: int = 0
) -> CheckpointManager:
    """Return the manager of the checkpoints in the run's `folder`."""
    keys = config.checkpoint
    settings = CheckpointSettings(**_shared(keys, CheckpointSettings), asynchronous=keys.async_)
    return CheckpointManager(folder / CHECKPOINTS, settings, world, about=about, last_step=last_step)


def make_trainer(
    config: Config, step: Step, batches: TrainingBatches, manager: CheckpointManager, *,
    measure: Callable[[BatchCallback], Metrics], log: MetricsLog | None, state: State | None = None,
    interruption: Interruption | None = None,
) -> Trainer:  # fmt: skip
    """Return the trainer for `batches`, which saves and restores checkpoints through `manager`."""
    state, interruption = state or State(), interruption or Interruption()
    age = config.training.average_age
    assert age != "auto", "the settings are resolved"
    checkpoints = Checkpoints(
        step.model, step.optimizers, step.world, manager, state=state, interruption=interruption, average_age=age
    )  # fmt: skip
    settings = TrainerSettings(**_shared(config.training, TrainerSettings))
    return Trainer(
        step, batches, checkpoints, settings, measure=measure, interruption=interruption, log=log,
        examples=KINDS[config.model.kind].examples,
    )  # fmt: skip
