"""One run of a kind that is not trained: it counts the training split, and is evaluated and reported like any other."""

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bert4rec.checkpoint.run_folder import CONFIG, ENVIRONMENT, lock, new_folder
from bert4rec.config.load import with_changes
from bert4rec.config.resolve import resolve_model, resolve_seen_items
from bert4rec.config.tables import Config
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation.examples import Example
from bert4rec.report.environment import environment
from bert4rec.report.figures import write_json
from bert4rec.runtime.collectives import gather_objects, on_rank_zero
from bert4rec.runtime.console import tell
from bert4rec.runtime.errors import Interrupted
from bert4rec.runtime.memory import PeakMemory
from bert4rec.runtime.processes import Processes
from bert4rec.runtime.signals import PATIENCE, Interruption
from bert4rec.training.build import facts_of_dataset, make_evaluator, metrics_log
from bert4rec.training.evaluate import RankingProgress
from bert4rec.training.finish.files import optional, write_files
from bert4rec.training.results import find, make_report

logger = logging.getLogger(__name__)


def complete_untrained(
    config: Config, world: Processes, dataset: Dataset, resources: ExitStack, peak_memory: PeakMemory, *, may_exit: bool
) -> Path:
    """Count, evaluate, and only then make the run folder and write into it; return that folder.

    Every process of the launch calls this. The folder is locked as long as `resources` are open.
    """
    kind, began = config.model.kind, time.monotonic()
    facts = facts_of_dataset(dataset)
    config = resolve_seen_items(resolve_model(config, facts), facts)
    config = with_changes(config, "parallelism", {"device": world.device.type})
    evaluator = make_evaluator(config, world, dataset)
    held_out = evaluator.held_out()
    n_parts = evaluator.counting.n_parts(kind)
    with Interruption(PATIENCE if may_exit else None) as interruption:
        n_batches = n_parts + evaluator.n_batches(held_out)
        try:
            with RankingProgress(interruption, world, n_batches=n_batches) as progress:
                scorer = evaluator.counting.scorer(kind, progress.advance)
                seconds = time.monotonic() - began
                found = find(evaluator, scorer, held_out, progress.advance)
                examples = evaluator.examples(scorer, found.ranks)
        except Interrupted as interrupted:
            interrupted.advice = "start it again"
            raise
        peaks = gather_objects(peak_memory.read())
        folder = on_rank_zero(lambda: new_folder(Path(config.run.dir), config.run_name))
        if world.is_first:
            resources.enter_context(lock(folder))
            report = make_report(evaluator, found, kind=kind, mode=config.parallelism.mode)
            report["training"] = _about_counting(seconds, peaks, n_positions=int(dataset.popularity.sum()))
            with interruption.busy():
                with optional(folder / "ranks-*.parquet"):
                    evaluator.write_ranks(folder, found.ranks, held_out)
                _write(folder, config, world, dataset, report, examples)
    return folder


def _about_counting(seconds: float, peak_memory: list[int], *, n_positions: int) -> dict[str, Any]:
    """Return what a report says of a training if there was none: `seconds` were spent on counting."""
    return {
        "epochs": 0.0,
        "steps": 0,
        "seconds": seconds,
        "best_epoch": 0.0,
        "stopped_by": "nothing to train",
        "sequences_per_second": 0.0,
        "peak_memory_bytes": peak_memory,
        "resumed": [],
        "positions": n_positions,
    }


def _write(
    folder: Path, config: Config, world: Processes, dataset: Dataset, report: dict[str, Any],
    examples: Sequence[Example],
) -> None:  # fmt: skip
    """Write all files of the run, the report last."""
    (folder / CONFIG).write_text(with_changes(config, "run", {"resume": ""}).to_toml())
    write_json(folder / ENVIRONMENT, environment(world.device, world.world_size))
    log = metrics_log(config, folder)
    if validation := report.get("validation", {}).get("full"):
        log.add("validation", 0, epoch=0.0, full=validation)
    logger.info(f"run folder: {folder}")
    tell(run=str(folder))
    write_files(folder, report, dataset, examples, log)
    log.close()
