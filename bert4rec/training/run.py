"""Run a training, from settings and a dataset folder to a run folder with its report."""

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch import nn

from bert4rec.checkpoint.package import PRIOR
from bert4rec.checkpoint.run_folder import BEST_LINK, CHECKPOINTS, CONFIG, lock, new_folder
from bert4rec.checkpoint.run_settings import how_to_continue, train_command
from bert4rec.checkpoint.store import SaveError
from bert4rec.config.kinds import KINDS
from bert4rec.config.load import with_changes
from bert4rec.config.resolve import choices, resolve_model, resolve_seen_items
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation.evaluator import BatchCallback, Evaluator, Example
from bert4rec.evaluation.ranker import Metrics
from bert4rec.feed.batches import TrainingBatches
from bert4rec.models.prior import Prior
from bert4rec.report.log import MetricsLog, read_records, require_packages
from bert4rec.report.pages import metrics_table
from bert4rec.runtime.collectives import Partition, gather_objects, on_rank_zero
from bert4rec.runtime.errors import DataError, DivergenceError, Interrupted
from bert4rec.runtime.memory import PeakMemory
from bert4rec.runtime.processes import Processes, process_group, rendezvous, seed_everything, this_process
from bert4rec.runtime.signals import PATIENCE, Interruption
from bert4rec.sharding.parallelize import held_bytes, unwrap
from bert4rec.training import build, results
from bert4rec.training.agreement import CommonFacts, environment_facts, preflight
from bert4rec.training.by_host import keep_own_parts
from bert4rec.training.evaluate import RankingProgress
from bert4rec.training.prior import count_prior, own_prior
from bert4rec.training.start import Context, begin_folder, make_context, restore, write_run_header
from bert4rec.training.state import State
from bert4rec.training.trainer import Step, Trainer

logger = logging.getLogger(__name__)


def run(config: Config, *, may_exit: bool = True, windows: Path | None = None) -> Path:
    """Train, validate, test, write the report, and return the run folder. Every rank of the launch calls this.

    With `may_exit`, a signal ends the process, with the signal's status, if the training is stuck. `windows`: a file
    that lists the training windows to train on, instead of all.
    """
    began = time.monotonic()
    store, rank, world_size = rendezvous()
    world, dataset = preflight(store, rank, world_size, lambda: _prepare(config, store))
    if config.data.parts_by_host:
        dataset = keep_own_parts(dataset, world, store, partial(_checked, config))
    arithmetic = config.training
    group = process_group(world, store, deterministic=arithmetic.deterministic, precision=arithmetic.precision)
    with group, ExitStack() as resources:
        peak_memory = resources.enter_context(PeakMemory(world.device))
        # The model lives in this call only, so that its shards are gone when the process group ends.
        if KINDS[config.model.kind].is_trained:
            return _train_and_report(
                config, world, dataset, resources, peak_memory, may_exit=may_exit, began=began, windows=windows
            )
        return _count_and_report(config, world, dataset, resources, peak_memory, may_exit=may_exit)


def _prepare(config: Config, store: dist.Store) -> tuple[tuple[Processes, Dataset], CommonFacts]:
    """Return this rank and its dataset, and the facts that must be equal on all ranks."""
    require_packages(config.run.trackers)
    world = this_process(config.parallelism.device, store, minutes=config.parallelism.timeout_minutes)
    if config.run.resume not in ("", "auto") and not config.data.folder.exists():
        command = train_command("FOLDER", f"--resume={config.run.resume}")
        raise DataError(f"{config.data.folder}: there is no such folder; if the dataset was moved, type: {command}")
    dataset = open_dataset(
        config.data.folder, preprocessing=config.preprocessing.recipe,
        verify=world.local_rank == 0, with_times=build.knows_times(config), parts_by_host=config.data.parts_by_host,
    )  # fmt: skip
    if not config.data.parts_by_host:
        _checked(config, dataset)
    facts = environment_facts(config.model_dump(mode="json"), dataset.metadata["fingerprint"], world.device.type)
    return (world, dataset), facts


def _checked(config: Config, dataset: Dataset) -> Dataset:
    """Return the dataset. Raises `DataError` if it does not fit the settings."""
    if not any(n_train.any() for n_train in dataset.histories.n_train_parts(with_target=True)):
        raise DataError(f"{dataset.folder}: has no training interactions; loosen the filters of [preprocessing]")
    build.event_weights(config, dataset.histories)  # fail before the start
    if config.training.loss == "mse" and not dataset.histories.has_ratings:
        raise DataError(
            f'{dataset.folder}: has no ratings, but training.loss = "mse" needs them; prepare data with ratings (from '
            "a table: --data.rating_column=NAME), or choose another loss"
        )
    build.require_counted_kinds(config, dataset)
    build.choose_prior(config, dataset)
    build.refuse_parts_by_host(config)
    return dataset


def _train_and_report(
    config: Config, world: Processes, dataset: Dataset, resources: ExitStack, peak_memory: PeakMemory, *,
    may_exit: bool, began: float, windows: Path | None,
) -> Path:  # fmt: skip
    """Train, test the best weights, write the report; return the run folder, locked until `resources` close."""
    context = make_context(config, world, dataset, resources)
    config, folder = context.config, context.folder
    features, start = build.feature_reader(config, dataset), context.state().position
    batches = build.training_batches(config, world, dataset, features, start=start, chosen=windows)
    evaluator = build.make_evaluator(config, world, dataset, features)
    if world.is_rank_zero:
        write_run_header(context, evaluator, batches.n_sequences)
    log = build.metrics_log(config, folder, purge_from=start.steps) if world.is_rank_zero else None
    seed_everything(config.training.seed, world.rank)
    model, optimizers = build.build(config, world, context.plan, features)
    prior = _prior(folder, build.choose_prior(config, dataset), dataset, model, world)
    evaluator = replace(evaluator, prior=prior)
    with Interruption(max(PATIENCE, config.checkpoint.seconds_on_signal) if may_exit else None) as interruption:
        step = Step(model, optimizers, world, precision=config.training.precision)
        trainer = _trainer(context, step, batches, evaluator, interruption, log)
        result, examples = _fit_and_test(context, trainer, evaluator, model, log, began)
    peaks = gather_objects(peak_memory.read())
    bytes_by_rank = gather_objects(held_bytes(model, optimizers.states()))
    is_lost = trainer.checkpoints.is_lost
    if log:
        report = results.make_report(evaluator, result, config.model, mode=config.parallelism.mode)
        report["training"] = results.about_training(
            trainer.state, epochs=trainer.epoch, peak_memory=peaks, origin=context.origin, rate=trainer.meter.rate,
            resumed=read_records(folder, "resume"),
        )  # fmt: skip
        report["sharding"] = {kind: [n_bytes[kind] for n_bytes in bytes_by_rank] for kind in bytes_by_rank[0]}
        report["plan"] = results.about_plan(context.plan)
        if is_lost:
            logger.info(f"\n{metrics_table(report)}\n")  # these figures are in no file
        else:
            results.write_files(folder, report, evaluator, result, examples, log)
        log.close()
    if is_lost:
        advice = f"free the disk, then {how_to_continue(folder)}"
        raise SaveError(f"{folder}: the weights of these metrics could not be saved; {advice}")
    return folder


def _prior(folder: Path, sources: Sequence[str], dataset: Dataset, model: nn.Module, world: Processes) -> Prior | None:
    """Return the prior of the `sources` for this process's items; None for none. A resumed run has counted it."""
    if not sources:
        return None
    if not on_rank_zero((folder / PRIOR).is_file):
        count_prior(folder, sources, dataset, Partition(world.rank, world.world_size))
    return own_prior(folder / PRIOR, unwrap(model).item_table.world, world.device, dataset.n_items)


def _count_and_report(
    config: Config, world: Processes, dataset: Dataset, resources: ExitStack, peak_memory: PeakMemory, *, may_exit: bool
) -> Path:
    """Count the items, evaluate, then make the run folder; return it, locked until `resources` close."""
    kind, began, facts = config.model.kind, time.monotonic(), build.facts_of_dataset(config, dataset)
    if world.is_rank_zero:
        for line in choices(config, facts, world.world_size):
            logger.info(line)
    config = resolve_seen_items(resolve_model(config, facts), facts)
    config = with_changes(config, "parallelism", {"device": world.device.type})
    evaluator = build.make_evaluator(config, world, dataset)
    held_out = evaluator.held_out()
    n_batches = evaluator.counting.n_parts(kind) + evaluator.n_batches(held_out)
    with Interruption(PATIENCE if may_exit else None) as interruption:
        try:
            with RankingProgress(interruption, world, n_batches=n_batches) as progress:
                scorer = evaluator.counting.scorer(kind, progress.advance)
                state = State(seconds=time.monotonic() - began, stopped_by="nothing to train")
                result = results.evaluate_model(evaluator, scorer, held_out, progress.advance)
                examples = evaluator.examples(scorer, result.ranks)
        except Interrupted as interrupted:
            interrupted.advice = "start it again"
            raise
        peaks = gather_objects(peak_memory.read())
        folder = on_rank_zero(lambda: new_folder(Path(config.run.dir), config.run_name))
        if world.is_rank_zero:
            resources.enter_context(lock(folder))
            report = results.make_report(evaluator, result, config.model, mode=config.parallelism.mode)
            report["training"] = results.about_training(state, epochs=0.0, peak_memory=peaks) | {
                "positions": dataset.metadata["train_positions"]
            }
            with interruption.busy():
                begin_folder(folder, config, world)
                log = build.metrics_log(config, folder)
                if validation := report.get("validation", {}).get("full"):
                    log.add("validation", 0, epoch=0.0, full=validation)
                results.write_files(folder, report, evaluator, result, examples, log)
                log.close()
    return folder


def _fit_and_test(
    context: Context, trainer: Trainer, evaluator: Evaluator, model: nn.Module, log: MetricsLog | None, began: float
) -> tuple[results.EvaluationResult, list[Example]]:
    """Train, and return the results of the best weights. Raises `Interrupted` and `DivergenceError` with advice."""
    try:
        restore(context, trainer, log)
        trainer.stopwatch.add("start", time.monotonic() - began)
        trainer.fit()
        if evaluator.prior:
            evaluator.prior.weights = trainer.state.best_prior
        with trainer.stopwatch.of("test"):
            recommends = KINDS[context.config.model.kind].is_transformer
            result = trainer.evaluate(
                lambda between: results.evaluate_model(
                    evaluator, model, evaluator.held_out(), between, with_fallback=recommends
                )
            )
            return result, evaluator.examples(model, result.ranks)
    except Interrupted as interrupted:
        interrupted.advice = how_to_continue(context.folder)
        if log:
            log.add_note("stopped", trainer.state.step, message=str(interrupted))
            log.close(is_finished=False)
        raise
    except DivergenceError as error:
        trainer.checkpoints.wait()  # the advice depends on whether the best weights are saved
        raise DivergenceError(f"{error}; {_with_lower_rates(context)}") from None


def _trainer(
    context: Context, step: Step, batches: TrainingBatches, evaluator: Evaluator, interruption: Interruption,
    log: MetricsLog | None,
) -> Trainer:  # fmt: skip
    config, state, about = context.config, context.state(), context.checkpoint_metadata()
    manager = build.checkpoint_manager(config, context.world, context.folder, about=about, last_step=state.step)

    def measure(between: BatchCallback) -> Metrics:
        metrics = evaluator.validation_metrics(step.model, between)
        if evaluator.prior:
            state.prior = dict(evaluator.prior.weights)
        return metrics

    return build.make_trainer(
        config, step, batches, manager, log=log, state=state, interruption=interruption,
        measure=measure,
    )  # fmt: skip


def _with_lower_rates(context: Context) -> str:
    """Return the advice after a divergence: another run, from the best weights if they were saved."""
    folder, table = context.folder, context.config.parallelism.sparse_learning_rate
    assert table != "auto", "the settings are resolved"
    dense = context.config.training.rate
    lower = [f"--training.learning_rate={dense / 10:.2g}", f"--parallelism.sparse_learning_rate={table / 10:.2g}"]
    has_best = (folder / CHECKPOINTS / BEST_LINK).is_dir()
    origin, words = ([f"--run.init_from={folder}"], ", from the best weights") if has_best else ([], "")
    options = [f"--config={folder / CONFIG}", *lower, *origin]
    return f"start again with lower learning rates{words}: {train_command(*options)}"
