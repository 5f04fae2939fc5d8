"""Start a run: resolve the settings, plan the sharding, make and lock the run folder, restore a checkpoint."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bert4rec.checkpoint import resume, run_folder
from bert4rec.checkpoint.store import verify
from bert4rec.config.kinds import KINDS
from bert4rec.config.load import with_changes
from bert4rec.config.resolve import choices, resolve, slow_settings
from bert4rec.config.tables import Config
from bert4rec.dataset.format import TEST, VALIDATION
from bert4rec.dataset.reader import Dataset, problem_of
from bert4rec.dataset.runs import link_catalogue
from bert4rec.evaluation.evaluator import Evaluator
from bert4rec.feed.pairs import PairExamples
from bert4rec.report.figures import write_json
from bert4rec.report.log import MetricsLog
from bert4rec.report.results_folder import environment
from bert4rec.runtime.collectives import on_rank_zero
from bert4rec.runtime.console import emit_event
from bert4rec.runtime.errors import DataError, SettingsError, pluralize, rounded
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.memory_check import few_negatives, few_steps
from bert4rec.sharding.plan import Plan, summary, to_text
from bert4rec.training import build
from bert4rec.training.state import State
from bert4rec.training.trainer import Trainer

STATE_SETTINGS = {
    "parallelism": ["sparse_optimizer"],
    "training": ["optimizer", "learning_rate", "weight_decay", "n_train_negatives", "negatives_shared_by"],
}
"""Settings that "auto" does not choose anew when a run is resumed on other processes or another type of device."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Context:
    """The resolved settings of a run, its plan, its folder, and where it starts.

    `resumption` is the checkpoint to resume from, `origin` the checkpoint that initializes the weights; None if unused.
    `chosen` has one line for each setting that was chosen from the data.
    """

    config: Config
    world: Processes
    dataset: Dataset
    plan: Plan
    folder: Path
    resumption: resume.Resumption | None = None
    origin: Path | None = None
    chosen: Sequence[str] = ()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return all settings as JSON values."""
        return self.config.model_dump(mode="json")

    @property
    def global_batch(self) -> int:
        """Return the number of sequences per step on all ranks together."""
        return self.config.training.per_device * self.world.world_size

    def state(self) -> State:
        """Return the training state to start from."""
        if not self.resumption:
            return State()
        training, state = self.config.training, State(**self.resumption.metadata["state"])
        is_stuck = state.is_stuck(state.validated, training.patience)
        is_late = 0 < training.max_minutes <= state.seconds / 60
        state.stopped_by = "max_minutes" if is_late else "patience" if is_stuck else ""
        return state

    def checkpoint_metadata(self) -> dict[str, Any]:
        """Return the metadata of the run that every checkpoint holds."""
        kinds = self.dataset.histories.kinds
        return {
            "facts_version": run_folder.METADATA_VERSION,
            **({"events": list(kinds)} if kinds else {}),
            "config": self.settings,
            "features": _features(self.config, self.dataset),
            "fingerprint": self.dataset.metadata["fingerprint"],
            "n_items": self.dataset.n_items,
            "items": self.dataset.first_ids,
            **({"parts": self.dataset.placement.checksum} if self.dataset.placement else {}),
            "world_size": self.world.world_size,
            "global_batch": self.global_batch,
            "plan": to_text(self.plan),
        }


def make_context(config: Config, world: Processes, dataset: Dataset, resources: ExitStack) -> Context:
    """Return the context of a run; its folder is locked until `resources` close.

    Raises `SettingsError`, on every rank and before a new folder is made or memory is allocated, if the job cannot fit
    or does not match the run to resume.
    """

    def claim(folder: Path) -> None:
        resources.enter_context(run_folder.lock(folder))

    run = config.run
    resumption = resume.find(run.resume, Path(run.dir), config.run_name, claim=claim) if run.resume else None
    facts = build.facts_of_dataset(config, dataset)
    if resumption:
        for table, keys in STATE_SETTINGS.items():
            saved, current = resumption.metadata["config"][table], getattr(config, table)
            config = with_changes(config, table, {key: saved[key] for key in keys if getattr(current, key) == "auto"})
    chosen = [*choices(config, facts, world.world_size)]
    config = resolve(config, world.device.type, facts, world.world_size)
    plan = build.plan_of_all(config, world, build.sizes_of(config, dataset))
    if resumption:
        resume.check_settings(resumption.metadata, config.model_dump(mode="json"), dataset.metadata["fingerprint"])
        resume.check_parts(resumption.metadata, dataset.placement.checksum if dataset.placement else "")
    origin = _origin(config, dataset)

    def new() -> Path:
        folder = run_folder.new_folder(Path(config.run.dir), config.run_name)
        claim(folder)
        return folder

    folder = resumption.run if resumption else on_rank_zero(new)
    return Context(config, world, dataset, plan, folder, resumption, origin, chosen)


def begin_folder(folder: Path, config: Config, world: Processes) -> None:
    """Write the settings and the environment of a run, link its items, and log its folder; rank zero calls this."""
    repeatable = with_changes(config, "run", {"resume": ""})
    (folder / run_folder.CONFIG).write_text(repeatable.to_toml())
    write_json(folder / run_folder.ENVIRONMENT, environment(world.device, world.world_size))
    link_catalogue(config.data.folder, folder)
    logger.info(f"run folder: {folder}")
    emit_event(run=str(folder))


def write_run_header(context: Context, evaluator: Evaluator, n_sequences: int) -> None:
    """Write and log the plan, the chosen settings and the warnings; rank zero calls this before the first step.

    `n_sequences` is the number of training examples.
    """
    config, world, folder = context.config, context.world, context.folder
    (folder / run_folder.PLAN).write_text(to_text(context.plan))
    for choice in context.chosen:
        logger.info(choice)
    logger.info(summary(context.plan))
    unit = KINDS[config.model.kind].sample_name
    too_few_steps = few_steps(n_sequences, config.training.per_device, world.world_size, unit=unit)
    for warning in filter(None, [too_few_steps, few_negatives(context.plan.job), *slow_settings(config)]):
        logger.warning(warning)
    if config.training.loss == "mse":
        logger.info(_held_out_pairs(evaluator.pairs))
    elif not len(context.dataset.splits[VALIDATION]):
        what = "validation" if len(context.dataset.splits[TEST]) else "validation or test"
        logger.info(f"this dataset holds nothing out for {what}: the run keeps its last weights")
    if features := context.dataset.features:
        names = ", ".join(f"{name} ({feature['kind']})" for name, feature in features.about.items())
        is_used = config.model.item_features
        logger.info(f"item features: {names if is_used else 'not used (model.item_features = false)'}")
    if evaluator.left_out:
        logger.info(evaluator.left_out)
    begin_folder(folder, config, world)


def _held_out_pairs(pairs: Mapping[str, PairExamples]) -> str:
    """Return a line with the number of rated pairs for training, test and validation."""
    n = {name: len(part) for name, part in pairs.items()}
    chosen = f"{n['validation']:,} to choose the best epoch by" if n["validation"] else "none to choose an epoch by"
    return f"{pluralize(n['training'], 'rated pair')} to train on, {n['test']:,} held out for the report, {chosen}"


def _origin(config: Config, dataset: Dataset) -> Path | None:
    """Return the checkpoint that initializes the weights, or None. Raises `SettingsError` if it does not fit."""
    if not config.run.init_from:
        return None
    folder, facts = resume.best_of(Path(config.run.init_from))
    shape = {"kind", *KINDS[config.model.kind].settings} - {"dropout"}
    current, saved = config.model.model_dump(mode="json", include=shape), facts["config"]["model"]
    pairs = {name: (value, saved.get(name, value)) for name, value in current.items()} | {
        "n_items": (dataset.n_items, facts["n_items"]),
        "items (their ids)": (dataset.first_ids, facts["items"]),
        "kinds of events": (list(dataset.histories.kinds), facts.get("events", [])),
        "item features (their values)": (_features(config, dataset), facts.get("features", "")),
    }
    if dataset.n_items > facts["n_items"] and not problem_of(
        dataset, n_items=facts["n_items"], first_ids=facts["items"], fingerprint=facts["fingerprint"]
    ):
        options = [config.run.init_from, str(dataset.folder)]
        raise SettingsError(
            f"run.init_from: this dataset has {dataset.n_items - facts['n_items']:,} items more than the run; add them "
            f"to the run: {shlex.join(['bert4rec', 'extend', *options])}"
        )
    if differences := [f"{name} = {new}, but {old} in that run" for name, (new, old) in pairs.items() if new != old]:
        raise SettingsError(f"run.init_from: its weights do not fit this run: {'; '.join(differences)}")
    return folder


def _features(config: Config, dataset: Dataset) -> str:
    """Return a checksum of the item features that the model uses, "" for none."""
    return dataset.features.meaning if dataset.features and config.model.item_features else ""


def restore(context: Context, trainer: Trainer, log: MetricsLog | None) -> None:
    """Load the checkpoint that the run starts from, if any, and log it; every rank calls this."""
    if context.resumption:
        _resume(context, context.resumption, trainer, log)
    elif context.origin:
        trainer.checkpoints.load_weights_of(context.origin)
        logger.info(f"starts from the weights of {context.origin}")


def _resume(context: Context, resumption: resume.Resumption, trainer: Trainer, log: MetricsLog | None) -> None:
    saved, state, world_size = resumption.metadata, trainer.state, context.world.world_size
    previous = _dropout_draws_from(saved["world_size"], saved["config"])
    current = _dropout_draws_from(world_size, context.settings)
    trainer.checkpoints.restore(resumption.checkpoint, random=previous == current)
    _check_best(context, resumption, trainer)
    n_newer = on_rank_zero(lambda: resume.quarantine_newer(resumption))
    logger.info(f"resumed after step {state.step}, epoch {rounded(trainer.epoch)}, from {resumption.checkpoint}")
    if n_newer:
        logger.info(f"moved {pluralize(n_newer, 'newer checkpoint')} to {resume.QUARANTINE}/")
    if previous != current:
        logger.info(f"dropout draws other numbers: {current}, before {previous}")
    if saved["global_batch"] != context.global_batch:
        logger.info(f"global batches of {context.global_batch} sequences, before {saved['global_batch']}")
    changed = resume.changes(saved, context.settings)
    for name, (old, new) in changed.items():
        logger.info(f"{name} = {new}, before {old}")
    if log:
        log.add_note("resume", state.step, world_size=world_size, changed=changed)


def _check_best(context: Context, resumption: resume.Resumption, trainer: Trainer) -> None:
    """Forget the best validation so far if its checkpoint is missing or damaged."""
    state = trainer.state
    best = run_folder.step_folder(resumption.run / run_folder.CHECKPOINTS, state.best_step)
    if not state.best_step or best == resumption.checkpoint:
        return
    try:
        if not on_rank_zero(best.is_dir):
            raise DataError(f"the best checkpoint so far, {best.name}, is missing")
        verify(best)
    except DataError as error:
        logger.warning(f"{error}; the search for the best weights restarts from this step")
        state.best_ndcg, state.best_step, state.best_epoch, state.n_worse, state.validated = -1.0, 0, 0.0, 0, -1.0


def _dropout_draws_from(world_size: int, settings: Mapping[str, Any]) -> str:
    """Return what the random states of dropout depend on: the number of ranks and the type of device."""
    return f"{world_size} x {settings['parallelism']['device']}"
