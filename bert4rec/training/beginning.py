"""Where a training starts: at a checkpoint of its own, at the weights of another run, or with initial weights."""

import logging
from collections.abc import Mapping
from typing import Any

from bert4rec.checkpoint.resume import QUARANTINE, Resumption, changes, quarantine_newer, wants_fresh_optimizers
from bert4rec.checkpoint.run_folder import CHECKPOINTS, step_folder
from bert4rec.checkpoint.store import verify
from bert4rec.config.abilities import needs_negatives
from bert4rec.report.log import MetricsLog
from bert4rec.runtime.collectives import on_rank_zero
from bert4rec.runtime.errors import DataError
from bert4rec.runtime.wording import counted, rounded
from bert4rec.training.context import Context
from bert4rec.training.loop.trainer import Trainer

logger = logging.getLogger(__name__)


def begin(context: Context, trainer: Trainer, log: MetricsLog | None) -> None:
    """Restore what the run starts from, and log it; every process calls this."""
    if context.resumption:
        _resume(context, context.resumption, trainer, log)
    elif context.origin:
        trainer.checkpoints.start_from(context.origin)
        logger.info(f"starts from the weights of {context.origin}")


def _resume(context: Context, resumption: Resumption, trainer: Trainer, log: MetricsLog | None) -> None:
    saved, state, world_size = resumption.metadata, trainer.state, context.world.world_size
    is_reset = wants_fresh_optimizers(saved, context.settings)
    previous = _dropout_draws_from(saved["world_size"], saved["config"])
    current = _dropout_draws_from(world_size, context.settings)
    trainer.checkpoints.restore(resumption.checkpoint, optimizers=not is_reset, random=previous == current)
    _check_best(context, resumption, trainer)
    n_newer = on_rank_zero(lambda: quarantine_newer(resumption))
    logger.info(f"resumed after step {state.step}, epoch {rounded(trainer.epoch)}, from {resumption.checkpoint}")
    if n_newer:
        logger.info(f"moved {counted(n_newer, 'newer checkpoint')} to {QUARANTINE}/")
    if previous != current:
        logger.info(f"dropout draws other numbers: {current}, before {previous}")
    draws_before, draws = _draws(saved["world_size"], saved["config"]), _draws(world_size, context.settings)
    if draws_before != draws:
        logger.info(f"negatives of a step: {draws}, before {draws_before}")
    if is_reset:
        logger.info("with fresh optimizers")
    if saved["global_batch"] != context.global_batch:
        logger.info(f"global batches of {context.global_batch} sequences, before {saved['global_batch']}")
    changed = changes(saved, context.settings)
    for name, (old, new) in changed.items():
        logger.info(f"{name} = {new}, before {old}")
    if log:
        log.add_note("resume", state.step, world_size=world_size, changed=changed)


def _check_best(context: Context, resumption: Resumption, trainer: Trainer) -> None:
    """Restart the search for the best weights at the current ones if the best checkpoint is lost."""
    state = trainer.state
    best = step_folder(resumption.run / CHECKPOINTS, state.best_step)
    if not state.best_step or best == resumption.checkpoint:
        return
    try:
        if not on_rank_zero(best.is_dir):
            raise DataError(f"the best checkpoint so far, {best.name}, is missing")
        verify(best)
    except DataError as error:
        logger.warning(f"{error}; the search for the best weights restarts here")
        state.best_ndcg, state.best_step, state.best_epoch, state.n_worse, state.validated = -1.0, 0, 0.0, 0, -1.0


def _draws(world_size: int, settings: Mapping[str, Any]) -> str:
    """Return how often negatives are drawn for a step of a sampled loss; "" for others."""
    training = settings["training"]
    shared_by = training["negatives_shared_by"]
    n = 1 if shared_by == "all" else world_size // shared_by
    return counted(n, "draw") if needs_negatives(training["loss"]) else ""


def _dropout_draws_from(world_size: int, settings: Mapping[str, Any]) -> str:
    """Return what dropout depends on: each process of each kind of device has a random state of its own."""
    return f"{world_size} x {settings['parallelism']['device']}"
